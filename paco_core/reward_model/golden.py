"""Golden pairs: a few queries with expected scores in the folder of a merged reward model.

A new server must return these scores. Otherwise it serves a different model. Two runs of one model may differ in the
log-odds of Yes, within bounds by number format.

Half precision needs wide bounds. In bfloat16, a logit between 16 and 32 has steps of 0.125, a merge rounds each weight,
and engines sum in different orders. In a random Qwen2 tower of 24 layers (logits to 32, a LoRA of rank 32 at
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

#: Scores are clipped to this distance from 0 and 1, because servers list the most likely tokens only.
CERTAIN = 1e-4


@dataclass(frozen=True)
class Bounds:
    """Maximum difference of two runs in the margin of one pair, and on average over pairs."""

    worst: float
    mean: float


#: Bounds of the merged folder against base + adapter, with one engine and number format.
MERGED = {"float32": Bounds(2e-4, 1e-4), "bfloat16": Bounds(1.5, 0.5)}
#: Bounds of a server, possibly with another engine, against the golden scores of the folder.
SERVED = {"float32": Bounds(0.1, 0.05), "bfloat16": Bounds(1.5, 0.5)}


def served_bounds(*dtypes: str) -> Bounds:
    """The bounds of a server. ``dtypes``: number formats of the golden scores and of the server (``auto``: any)."""
    return SERVED["float32" if set(dtypes) == {"float32"} else "bfloat16"]


def margin(score: float) -> float:
    """Log-odds of Yes of a score in [0, 1]; NaN stays NaN."""
    clipped = float(np.clip(score, CERTAIN, 1 - CERTAIN))
    return math.log(clipped) - math.log1p(-clipped)


@dataclass(frozen=True)
class MarginAgreement:
    """Differences of two runs in the margins of the same pairs."""

    differences: tuple[float, ...]
    bounds: Bounds

    @property
    def worst(self) -> float:
        return float(np.max(self.differences))  # NaN if a pair has no score

    @property
    def mean(self) -> float:
        return float(np.mean(self.differences))

    @property
    def holds(self) -> bool:
        """Whether both bounds hold. False if a pair has no score."""
        return self.worst <= self.bounds.worst and self.mean <= self.bounds.mean

    def __str__(self) -> str:
        return (
            f"log-odds of Yes {self.worst:.2g} apart at most (allowed {self.bounds.worst:g}), "
            f"{self.mean:.2g} on average (allowed {self.bounds.mean:g})"
        )


def compare_margins(expected: Sequence[float], scores: Sequence[float], bounds: Bounds) -> MarginAgreement:
    """Compare the scores of two runs for the same pairs, in order."""
    pairs = zip(expected, scores, strict=True)
    return MarginAgreement(tuple(abs(margin(after) - margin(before)) for before, after in pairs), bounds)


FILE, FOLDER = "golden.json", "golden"
CLEAR = 0.95  # score of a clear match


@dataclass(frozen=True)
class Golden:
    """A query and the score of the model."""

    query: PairQuery
    score: float
    dtype: str  # number format of the score


def choose_golden(
    queries: Sequence[PairQuery], scores: Sequence[Score], consistent: Sequence[bool | None], count: int
) -> list[int]:
    """Choose golden pairs: indices of clear matches and clear mismatches, alternating.

    A clear pair has a score near :data:`CLEAR`. More extreme scores are avoided, because half precision rounds large
    log-odds coarsely and servers with half precision are checked too.

    Args:
        consistent: label of each pair. If it is None, the score decides.
        count: maximum number of pairs.
    """
    read = [number for number, score in enumerate(scores) if not score.failed]
    sides: list[list[int]] = []
    for yes, target in ((True, CLEAR), (False, 1 - CLEAR)):
        candidates = [n for n in read if (scores[n].value >= 0.5 if consistent[n] is None else consistent[n]) == yes]
        sides.append(sorted(candidates, key=lambda n, target=target: abs(scores[n].value - target)))  # type: ignore[misc]
    turns = [number for pair in zip_longest(*sides) for number in pair if number is not None]
    return turns[: min(count, len(queries))]


def write_golden(folder: Path, queries: Sequence[PairQuery], scores: Sequence[Score], dtype: str) -> None:
    """Write ``golden.json`` and its images (PNG) into a model folder. ``dtype``: number format of the scores."""
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
        DataError: if the file or an image is missing or damaged.
    """
    path = folder / FILE
    content = read_json(path)
    try:
        dtype = str(content["dtype"])
        return [_golden(folder, number, pair, dtype) for number, pair in enumerate(content["pairs"])]
    except DataError:
        raise
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not in the format of `dvc repro reward_merged` ({error!r}); run this command"
        ) from None


def golden_agreement(golden: Sequence[Golden], scores: Sequence[Score], dtype: str) -> tuple[MarginAgreement, str]:
    """Compare current scores in ``dtype`` with the golden scores. Also returns a description of each pair."""
    bounds = served_bounds(dtype, *{pair.dtype for pair in golden})
    margins = compare_margins([pair.score for pair in golden], [score.value for score in scores], bounds)
    pairs = "; ".join(
        f"pair {number} {score.cause or f'{score.value:.4f}'}, expected {pair.score:.4f}"
        for number, (pair, score) in enumerate(zip(golden, scores, strict=True))
    )
    return margins, pairs


def validate_golden(folder: Path, scorer: PairScorer, dtype: str) -> None:
    """Validate the scores of a model for the golden pairs of its ``folder``, if it has any.

    Raises:
        DataError: if the scores differ by more than the bounds of the number format.
    """
    if not (folder / FILE).is_file():
        return
    golden = read_golden(folder)
    margins, pairs = golden_agreement(golden, scorer.score([pair.query for pair in golden]), dtype)
    if not margins.holds:
        raise DataError(
            f"{folder}: the model does not return its golden scores: {pairs}; {margins}; "
            "compare its weights, config.json, tokenizer.json, chat_template.jinja and processor_config.json with "
            "those of the complete model, because one of them is damaged or different; run `dvc repro reward_merged`, "
            "or copy it again"
        )


def _golden(folder: Path, number: int, pair: Mapping[str, Any], dtype: str) -> Golden:
    names = [pair[side] for side in ("first", "second")]
    if missing := [name for name in names if not (folder / name).is_file()]:
        raise DataError(
            f"{folder / FILE}: pair {number} names {missing[0]}, which is missing; run `dvc repro reward_merged`"
        )
    first, second = (read_image(folder / name) for name in names)
    score = tables.parse_number(pair["score"], "score")
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"a score of {score}")
    return Golden(PairQuery(first, second, str(pair["instruction"])), score, dtype)
