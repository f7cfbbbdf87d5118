"""Golden pairs: a few pictures, questions and expected scores that travel with a merged reward model.

Whoever serves the folder asks them first: a server that answers otherwise serves something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from paco_core.data import tables
from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.pictures import read_image
from paco_core.io.shards import encode_png
from paco_core.reward_model.margins import MarginAgreement, compare, served
from paco_core.reward_model.yes_probability import PairQuery, PairScorer, Score

FILE, FOLDER = "golden.json", "golden"
CLEAR = 0.95  # score of a match that nobody doubts


@dataclass(frozen=True)
class Golden:
    """A question, its pictures, and the score that the model gives."""

    query: PairQuery
    score: float
    dtype: str  # in which the score was computed


def choose_golden(
    queries: Sequence[PairQuery], scores: Sequence[Score], consistent: Sequence[bool | None], count: int
) -> list[int]:
    """Numbers of the pairs to keep as golden ones: in turns a clear match and a clear mismatch.

    Clear is a score near :data:`CLEAR`, and no more extreme one: half precision rounds large log-odds coarsely, and
    servers in such a format are checked, too.

    Args:
        consistent: the label of each pair; None where it has none, and its score says on which side it is.
    """
    read = [number for number, score in enumerate(scores) if not score.failed]
    sides: list[list[int]] = []
    for yes, target in ((True, CLEAR), (False, 1 - CLEAR)):
        mine = [n for n in read if (scores[n].value >= 0.5 if consistent[n] is None else consistent[n]) == yes]
        sides.append(sorted(mine, key=lambda n, target=target: abs(scores[n].value - target)))  # type: ignore[misc]
    turns = [number for pair in zip_longest(*sides) for number in pair if number is not None]
    return turns[: min(count, len(queries))]


def write_golden(folder: Path, queries: Sequence[PairQuery], scores: Sequence[Score], dtype: str) -> None:
    """Write ``golden.json`` and the pictures it names (PNG) into a model folder; scores were computed in ``dtype``."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    pairs = []
    for number, (query, score) in enumerate(zip(queries, scores, strict=True)):
        names = [f"{FOLDER}/{number}-first.png", f"{FOLDER}/{number}-second.png"]
        for name, image in zip(names, (query.first, query.second), strict=True):
            (folder / name).write_bytes(encode_png(image))
        pairs.append({"first": names[0], "second": names[1], "instruction": query.instruction, "score": score.value})
    write_json(folder / FILE, {"dtype": dtype, "pairs": pairs})


def read_golden(folder: Path) -> list[Golden]:
    """The golden pairs of a model folder.

    Raises:
        DataError: when the file is missing or damaged, or names a picture that is not there.
    """
    path = folder / FILE
    content = read_json(path)
    try:
        dtype = str(content["dtype"])
        return [_golden(folder, number, pair, dtype) for number, pair in enumerate(content["pairs"])]
    except DataError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: not what `dvc repro reward_merged` writes ({error!r}); run it") from None


def agreement(golden: Sequence[Golden], scores: Sequence[Score], dtype: str) -> tuple[MarginAgreement, str]:
    """How far scores that a model gives now, in ``dtype``, lie from those it was written with; each pair in words."""
    bounds = served(dtype, *{pair.dtype for pair in golden})
    found = compare([pair.score for pair in golden], [score.value for score in scores], bounds)
    pairs = "; ".join(
        f"pair {number} {score.cause or f'{score.value:.4f}'}, expected {pair.score:.4f}"
        for number, (pair, score) in enumerate(zip(golden, scores, strict=True))
    )
    return found, pairs


def ask_golden(folder: Path, scorer: PairScorer, dtype: str) -> None:
    """Ask a model that was loaded from ``folder`` about its golden pairs, where it has any.

    Raises:
        DataError: when it answers otherwise than its number format explains: its files are not those it was written
            with.
    """
    if not (folder / FILE).is_file():
        return
    golden = read_golden(folder)
    found, pairs = agreement(golden, scorer.score([pair.query for pair in golden]), dtype)
    if not found.holds:
        raise DataError(
            f"{folder}: the model does not give the golden scores that it was written with: {pairs}; {found}; compare "
            "its weights, config.json, tokenizer.json, chat_template.jinja and processor_config.json with those of the "
            "complete model: one of them is damaged or another one; run `dvc repro reward_merged`, or copy it again"
        )


def _golden(folder: Path, number: int, pair: Mapping[str, Any], dtype: str) -> Golden:
    names = [pair[side] for side in ("first", "second")]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"{folder / FILE}: pair {number} names {missing[0]}, which is missing; run `dvc repro reward_merged`"
        )
    first, second = (read_image(folder / name) for name in names)
    score = tables.number(pair["score"], "score")
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score of {score}")
    return Golden(PairQuery(first, second, str(pair["instruction"])), score, dtype)
