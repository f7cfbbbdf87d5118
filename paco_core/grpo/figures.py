"""What an epoch and an evaluation leave for people: figures and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paco_core.data.records.records import PromptRecord
from paco_core.grpo.advantages import Advantages
from paco_core.grpo.evaluation import Evaluation
from paco_core.grpo.scoring import Reference, Scores
from paco_core.io.atomic import atomic
from paco_core.rewards.aggregation import Aggregate

Row = dict[str, float]


def reward_figures(scores: Scores, combined: Aggregate, given: Advantages) -> Row:
    """Means, variation and taming of each reward, their ratio, and the health of the groups."""
    figures: Row = {f"reward/{name}": _mean(values) for name, values in scores.rewards.items()}
    figures |= {f"variation/{name}": value for name, value in combined.variation.items()}
    figures |= {f"tamed/{name}": float(flag) for name, flag in combined.tamed.items()}
    if "consistency" in scores.rewards and "clip_t" in scores.rewards:
        figures["reward_ratio"] = figures["reward/consistency"] / figures["reward/clip_t"]
    figures[scores.measure] = _mean(scores.diversity)
    figures["groups/zero_std"] = float(given.zero_std_groups)
    figures["groups/failed_samples"] = float(given.failed)
    return figures


def _mean(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if not np.isnan(values).all() else math.nan


def evaluation_row(metrics: Mapping[str, float], sizes: Sequence[int]) -> Row:
    """``eval/<size>/<metric>``, and ``gap/<metric>``: the last size's less the first one's."""
    row = {f"eval/{name}": value for name, value in metrics.items()}
    return row | {f"gap/{name}": value for name, value in gaps(metrics, sizes).items()}


def gaps(metrics: Mapping[str, float], sizes: Sequence[int]) -> Row:
    """What is gained or lost from the first evaluation size (the training's, by custom) to the last."""
    if len(sizes) < 2:
        return {}
    first, last = f"{sizes[0]}/", f"{sizes[-1]}/"
    names = [name.removeprefix(first) for name in metrics if name.startswith(first)]
    return {name: metrics[last + name] - metrics[first + name] for name in names}


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
