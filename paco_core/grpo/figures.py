"""What an epoch and an evaluation leave for people: figures and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paco_core.data.records.records import PromptRecord
from paco_core.grpo.advantages import Advantages
from paco_core.grpo.evaluation import Evaluation
from paco_core.grpo.intervals import common, mean
from paco_core.grpo.scoring import Reference, Scores
from paco_core.io.atomic import atomic
from paco_core.rewards.aggregation import Aggregate

Row = dict[str, float]


def reward_figures(scores: Scores, combined: Aggregate, given: Advantages) -> Row:
    """Means, variation and taming of each reward, their ratio, and the health of the groups."""
    figures: Row = {f"reward/{name}": mean(values) for name, values in scores.rewards.items()}
    figures |= {f"variation/{name}": value for name, value in combined.variation.items()}
    figures |= {f"tamed/{name}": float(flag) for name, flag in combined.tamed.items()}
    if "consistency" in scores.rewards and "clip_t" in scores.rewards:
        figures["reward_ratio"] = reward_ratio(scores.rewards["consistency"], scores.rewards["clip_t"])
    figures[scores.measure] = mean(scores.diversity)
    figures["groups/zero_std"] = float(given.zero_std_groups)
    figures["groups/failed_samples"] = float(given.failed)
    return figures


def reward_ratio(first: np.ndarray, second: np.ndarray) -> float:
    """Ratio of the means of two rewards (N,) over the images that have both; NaN where the second mean is zero."""
    both = ~np.isnan(first + second)
    below = mean(second[both])
    return mean(first[both]) / below if below else math.nan


def evaluation_row(evaluation: Evaluation, sizes: Sequence[int]) -> Row:
    """``eval/<size>/<metric>``, and ``gap/<metric>``: the last size's minus the first one's."""
    row = {f"eval/{name}": value for name, value in evaluation.metrics.items()}
    return row | {f"gap/{name}": value for name, value in gaps(evaluation, sizes).items()}


def gaps(evaluation: Evaluation, sizes: Sequence[int]) -> Row:
    """The difference between the first evaluation size (usually the size of the training) and the last.

    Where images have scores, the difference is over the prompts that have all of them at both sizes.
    """
    metrics, scores = evaluation.metrics, evaluation.scores
    return {
        name: _gap(scores[first], scores[last]) if first in scores else metrics[last] - metrics[first]
        for name, (first, last) in _pairs(metrics, sizes).items()
    }


def gap_changes(before: Mapping[str, np.ndarray], after: Mapping[str, np.ndarray], sizes: Sequence[int]) -> Row:
    """Change of ``gap/<metric>`` between two evaluations, over the prompts that have all scores in both.

    Args:
        before, after: scores (prompts, seeds) by ``<size>/<metric>``.
    """
    changes: Row = {}
    for name, (first, last) in _pairs(after, sizes).items():
        if first in before and last in before:
            changes[f"gap/{name}"] = _gap_change(before[first], before[last], after[first], after[last])
    return changes


def _pairs(values: Mapping[str, object], sizes: Sequence[int]) -> dict[str, tuple[str, str]]:
    """The keys of each measure that both the first and the last size have; none for one size."""
    if len(sizes) < 2:
        return {}
    names = [name.partition("/")[2] for name in values if name.startswith(f"{sizes[0]}/")]
    pairs = {name: (f"{sizes[0]}/{name}", f"{sizes[-1]}/{name}") for name in names}
    return {name: keys for name, keys in pairs.items() if keys[1] in values}


def _gap(first: np.ndarray, last: np.ndarray) -> float:
    small, large = common(first, last)
    return mean(large) - mean(small)


def _gap_change(first: np.ndarray, last: np.ndarray, first_after: np.ndarray, last_after: np.ndarray) -> float:
    a, b, c, d = map(mean, common(first, last, first_after, last_after))
    return (d - c) - (b - a)


def evaluated(row: Mapping[str, float]) -> Row:
    """The metrics of :func:`evaluation_row`, without the gaps."""
    return {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}


def note(row: Mapping[str, float]) -> str:
    """The rewards of an epoch in one line."""
    return ", ".join(f"{name.removeprefix('reward/')} {row[name]:.3f}" for name in row if name.startswith("reward/"))


def picture_names(records: Sequence[PromptRecord], seeds: Sequence[int]) -> list[str]:
    """Files of an evaluation's pictures, in its order."""
    return [f"{record.idx}-{seed}.png" for record in records for seed in seeds]


def save_pictures(folder: Path, evaluation: Evaluation, records: Sequence[PromptRecord], seeds: Sequence[int]) -> None:
    """PNG files ``<size>/<prompt id>-<seed>.png``, replacing what the folder held."""
    names = picture_names(records, seeds)
    with atomic(folder, replace=True) as part:
        for side, pictures in evaluation.pictures.items():
            (part / str(side)).mkdir(parents=True)
            for name, picture in zip(names, pictures, strict=True):
                picture.save(part / str(side) / name)


def save_references(folder: Path, records: Sequence[PromptRecord], reference: Reference) -> None:
    """PNG files of what the pictures are edits of (:func:`reference_files`), replacing what the folder held."""
    with atomic(folder, replace=True) as part:
        part.mkdir(parents=True)
        for record in records:
            pictures = reference(record)
            for name, picture in zip(reference_files(record.idx, len(pictures)), pictures, strict=True):
                picture.save(part / name)


def reference_files(idx: str, count: int) -> list[str]:
    """``<prompt id>.png``, and ``<prompt id>.2.png`` and so on of further ones."""
    return [f"{idx}.png", *(f"{idx}.{number}.png" for number in range(2, count + 1))]
