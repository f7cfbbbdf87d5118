"""Golden pairs: a few images, questions and expected scores that travel with a merged reward model.

A server of the model is asked about them first: if it answers otherwise, it serves something else. Two runs of one
model may differ in the log-odds of Yes, within bounds by number format.

Half precision needs them wide. In bfloat16 a logit between 16 and 32 moves in steps of 0.125, a merge rounds each
weight, and engines add up in their own order. In a random Qwen2 tower of 24 layers (logits to 32, a LoRA of rank 32 at
2% of each weight's norm, 48 questions) merging the adapter moved the log-odds by 0.86 at most and 0.22 on average, in
one of 14 wider layers by 0.99 and 0.32; leaving it out by 3.3 to 3.6 at most and 0.85 to 1.4 on average. vLLM and
transformers differ by up to 0.32 in a log-probability (vllm-project/vllm#18352), so by up to 0.64 in log-odds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from paco_core.data import tables
from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.pictures import read_image
from paco_core.io.shards import encode_png
from paco_core.reward_model.yes_probability import PairQuery, PairScorer, Score

#: Scores nearer to 0 or 1 count as this: servers list the likeliest tokens alone, and no decision hangs on the rest.
CERTAIN = 1e-4


@dataclass(frozen=True)
class Bounds:
    """What two runs may differ by in the margin of one pair, and on average over pairs."""

    worst: float
    mean: float


#: Of the written folder against base + adapter, by one engine in one format.
MERGED = {"float32": Bounds(2e-4, 1e-4), "bfloat16": Bounds(1.5, 0.5)}
#: Of a server, which may be another engine, against the scores that the folder was written with.
SERVED = {"float32": Bounds(0.1, 0.05), "bfloat16": Bounds(1.5, 0.5)}


def served(*dtypes: str) -> Bounds:
    """The bounds of a server, where the folder was written and is served in these formats (``auto``: any)."""
    return SERVED["float32" if set(dtypes) == {"float32"} else "bfloat16"]


def margin(score: float) -> float:
    """Log-odds of Yes of a score in [0, 1]; NaN stays NaN."""
    clipped = float(np.clip(score, CERTAIN, 1 - CERTAIN))
    return math.log(clipped) - math.log1p(-clipped)


@dataclass(frozen=True)
class MarginAgreement:
    """How far two runs' margins of the same pairs lie apart."""

    differences: tuple[float, ...]
    bounds: Bounds

    @property
    def worst(self) -> float:
        return float(np.max(self.differences))  # NaN where a pair has no score

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences))

    @property
    def holds(self) -> bool:
        """Within both bounds; False where a pair has no score."""
        return self.worst <= self.bounds.worst and self.mean <= self.bounds.mean

    def __str__(self) -> str:
        return (
            f"log-odds of Yes {self.worst:.2g} apart at most (allowed {self.bounds.worst:g}), "
            f"{self.mean:.2g} on average (allowed {self.bounds.mean:g})"
        )


def compare(expected: Sequence[float], scores: Sequence[float], bounds: Bounds) -> MarginAgreement:
    """Compare two runs' scores of the same pairs, in order."""
    pairs = zip(expected, scores, strict=True)
    return MarginAgreement(tuple(abs(margin(after) - margin(before)) for before, after in pairs), bounds)


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
    margins = compare([pair.score for pair in golden], [score.value for score in scores], bounds)
    pairs = "; ".join(
        f"pair {number} {score.cause or f'{score.value:.4f}'}, expected {pair.score:.4f}"
        for number, (pair, score) in enumerate(zip(golden, scores, strict=True))
    )
    return margins, pairs


def ask_golden(folder: Path, scorer: PairScorer, dtype: str) -> None:
    """Ask a model that was loaded from ``folder`` about its golden pairs, where it has any.

    Raises:
        DataError: when it answers otherwise than its number format explains: its files are not those it was written
            with.
    """
    if not (folder / FILE).is_file():
        return
    golden = read_golden(folder)
    margins, pairs = agreement(golden, scorer.score([pair.query for pair in golden]), dtype)
    if not margins.holds:
        raise DataError(
            f"{folder}: the model does not give the golden scores that it was written with: {pairs}; {margins}; "
            "compare its weights, config.json, tokenizer.json, chat_template.jinja and processor_config.json with "
            "those of the complete model: one of them is damaged or another one; run `dvc repro reward_merged`, or "
            "copy it again"
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
