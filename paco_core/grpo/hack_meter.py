"""What shows that a policy exploits its judge: a judge that does not train it, and measures that no judge sees."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import DRIFT_PROMPTS, GAINS, IMAGE_MEASURES
from paco_core.config.params import HackMeter
from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import cut
from paco_core.grpo.evaluation import Evaluation
from paco_core.grpo.intervals import deviation, mean_with_interval
from paco_core.grpo.scoring import Reference
from paco_core.io.atomic import atomic
from paco_core.io.files import read_json
from paco_core.io.picture_measures import grid_score, pixel_distances, reference_distance
from paco_core.io.pictures import read_image

if TYPE_CHECKING:
    from PIL.Image import Image


@dataclass(frozen=True)
class Start:
    """An evaluation of the policy before training: pictures by size, scores (prompts, seeds) by ``<size>/<reward>``."""

    pictures: Mapping[int, Sequence[Image]]
    scores: Mapping[str, np.ndarray]

    @classmethod
    def from_evaluation(cls, evaluation: Evaluation) -> Start:
        return cls(evaluation.pictures, evaluation.scores)

    @classmethod
    def read(cls, scores: Path, pictures: Path, names: Sequence[str], sizes: Sequence[int]) -> Start:
        """What :func:`write_scores` and ``save_pictures`` left, pictures in the order of ``names``.

        Raises:
            DataError: when the scores are missing or are no JSON.
        """
        shown = {side: [read_image(pictures / str(side) / name) for name in names] for side in sizes}
        return cls(shown, read_scores(scores))


def read_scores(path: Path) -> dict[str, np.ndarray]:
    """What :func:`write_scores` left: (prompts, seeds) by name, NaN where there is none.

    Raises:
        DataError: when the file is missing or no JSON.
    """
    kept: dict[str, list[list[float | None]]] = read_json(path)
    return {name: np.array(rows, dtype=np.float64) for name, rows in kept.items()}


def write_scores(path: Path, scores: Mapping[str, np.ndarray]) -> None:
    """Scores, (prompts, seeds) by name, as JSON; null where there is none."""
    with atomic(path) as part:
        part.write_text(json.dumps(plain_scores(scores)), encoding="utf-8")


def plain_scores(scores: Mapping[str, np.ndarray]) -> dict[str, list[list[float | None]]]:
    """Scores, (prompts, seeds) by name, as JSON stores them: None for NaN."""
    return {
        name: [[None if math.isnan(one) else one for one in row] for row in found.tolist()]
        for name, found in scores.items()
    }


def drift(
    trained: np.ndarray, trained_start: np.ndarray, held_out: np.ndarray, held_out_start: np.ndarray
) -> dict[str, float]:
    """Gains by two judges since the start, and drift, the first less the second, in standard deviations.

    The unit is the standard deviation of the judge's own scores before training (Glass's delta), for two judges need
    not use the same part of the scale; NaN where a judge scored all pictures alike. Each a mean over prompts with its
    95% interval, ``_low`` and ``_high``; ``drift_prompts`` says over how many. A prompt with a score missing from
    either judge, before or now, is left out of all three. Over-optimisation of a proxy reward: Gao et al., arXiv
    2210.10760.

    Args:
        trained, held_out: scores (prompts, seeds) now; ``_start`` before training.
    """
    pairs = ((trained, trained_start), (held_out, held_out_start))
    gains = [np.mean(now - before, axis=1) / deviation(before) for now, before in pairs]
    both = np.where(np.isnan(gains).any(axis=0), np.nan, gains)
    figures: dict[str, float] = {}
    for name, changes in zip(GAINS, (both[0], both[1], both[0] - both[1]), strict=True):
        figures |= zip((name, f"{name}_low", f"{name}_high"), mean_with_interval(changes), strict=True)
    return {**figures, DRIFT_PROMPTS: float((~np.isnan(both[0])).sum())}


def near_copies(
    pictures: Sequence[Image], records: Sequence[PromptRecord], bound: float, reference: Reference | None = None
) -> float:
    """Share of the panel pairs, or of the edits against their reference, that differ by less than ``bound``: 0 to 1.

    A difference is a root mean square one of pixels on the scale 0 to 1. Copies are the cheapest way to be consistent,
    and an edit that changes nothing the cheapest way to keep the rest. NaN where no picture has a pair.
    """
    found: list[float] = []
    for picture, record in zip(pictures, records, strict=True):
        if reference is not None:
            found.append(reference_distance(picture, reference(record)[0]))
        elif len(panels := cut(picture, record.layout)) > 1:
            found.extend(pixel_distances(panels))
    return float(np.mean(np.array(found) < bound)) if found else float("nan")


def measure(
    meter: HackMeter, now: Evaluation, start: Start, records: Sequence[PromptRecord], reference: Reference | None
) -> dict[str, float]:
    """The hack meter at every size, named ``<size>/<measure>``.

    ``grid_score`` (nats, pictures of one size together, the largest where prompts have several), ``near_copies`` and
    ``start_distance`` (root mean square pixel difference from the same prompt and seed before training, 0 to 1), and
    the figures of :func:`drift`.

    Args:
        records: the prompt of each picture, in the order of the evaluation.
    """
    figures: dict[str, float] = {}
    for side, pictures in now.pictures.items():
        before = start.pictures[side]
        trained, held_out = f"{side}/{meter.trained}", f"{side}/{meter.held_out}"
        measures = (
            _largest_grid_score(pictures, before),
            near_copies(pictures, records, meter.near_copy, reference),
            float(np.mean([reference_distance(*two) for two in zip(pictures, before, strict=True)])),
        )
        found = {
            **dict(zip(IMAGE_MEASURES, measures, strict=True)),
            **drift(now.scores[trained], start.scores[trained], now.scores[held_out], start.scores[held_out]),
        }
        figures |= {f"{side}/{name}": value for name, value in found.items()}
    return figures


def _largest_grid_score(pictures: Sequence[Image], before: Sequence[Image]) -> float:
    scores = []
    for size in sorted({picture.size for picture in pictures}):
        now, start = ([p for p in some if p.size == size] for some in (pictures, before))
        scores.append(grid_score(now, start))
    return max(scores)
