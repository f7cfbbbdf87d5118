"""Golden pairs: a few pictures, questions and expected scores that travel with a merged reward model.

Whoever serves the folder asks them first: a server that answers otherwise serves something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.pictures import read_image
from paco_core.io.shards import encode_png
from paco_core.reward_model.yes_probability import PairQuery, Score

FILE, FOLDER = "golden.json", "golden"


@dataclass(frozen=True)
class Golden:
    """A question, its pictures, and the score that the model gives."""

    query: PairQuery
    score: float
    dtype: str  # in which the score was computed


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


def _golden(folder: Path, number: int, pair: Mapping[str, Any], dtype: str) -> Golden:
    names = [pair[side] for side in ("first", "second")]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"{folder / FILE}: pair {number} names {missing[0]}, which is missing; run `dvc repro reward_merged`"
        )
    first, second = (read_image(folder / name) for name in names)
    score = float(pair["score"])
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score of {score}")
    return Golden(PairQuery(first, second, str(pair["instruction"])), score, dtype)
