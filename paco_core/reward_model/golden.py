"""Golden pairs: a few pictures, questions and expected scores that travel with a merged reward model.

Whoever serves the folder asks them first: a server that answers otherwise serves something else.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paco_core.files import DataError, read_json, write_json
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.shards import decode_image, encode_png

FILE, FOLDER = "golden.json", "golden"
TOLERANCE = 0.02  # bfloat16 and another engine's kernels move a score by less


@dataclass(frozen=True)
class Golden:
    """A question, its pictures, and the score that the model gives."""

    query: PairQuery
    score: float
    tolerance: float = TOLERANCE


def write_golden(folder: Path, queries: Sequence[PairQuery], scores: Sequence[Score]) -> None:
    """Write ``golden.json`` and the pictures it names (PNG) into a model folder."""
    (folder / FOLDER).mkdir(parents=True, exist_ok=True)
    pairs = []
    for number, (query, score) in enumerate(zip(queries, scores, strict=True)):
        names = [f"{FOLDER}/{number}-first.png", f"{FOLDER}/{number}-second.png"]
        for name, image in zip(names, (query.first, query.second), strict=True):
            (folder / name).write_bytes(encode_png(image))
        pairs.append({"first": names[0], "second": names[1], "instruction": query.instruction, "score": score.value})
    write_json(folder / FILE, {"tolerance": TOLERANCE, "pairs": pairs})


def read_golden(folder: Path) -> list[Golden]:
    """The golden pairs of a model folder.

    Raises:
        DataError: when the file is missing or names a picture that is not there.
    """
    path = folder / FILE
    content = read_json(path)
    golden = []
    for number, pair in enumerate(content["pairs"]):
        pictures = []
        for side in ("first", "second"):
            file = folder / pair[side]
            if not file.is_file():
                raise DataError(f"{path}: pair {number} names {pair[side]}, which is missing")
            pictures.append(decode_image(file.read_bytes(), str(file)))
        query = PairQuery(pictures[0], pictures[1], pair["instruction"])
        golden.append(Golden(query, float(pair["score"]), float(content["tolerance"])))
    return golden
