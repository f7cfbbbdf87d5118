"""Evaluation: the policy on unseen prompts with fixed seeds, at every evaluation size, without noise steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import FAILED_SAMPLES, SCORE
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.encoded_prompts import EncodedPrompts
from paco_core.grpo.metrics import EvaluationChange, mean
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import gather_image, sample_batches, split_batches
from paco_core.grpo.scoring import Reference, Scores, Scoring
from paco_core.grpo.sizes import ImageGrid, buckets
from paco_core.io.answer import to_jsonable
from paco_core.io.atomic import atomic
from paco_core.io.files import read_json
from paco_core.io.pictures import read_image
from paco_core.policies.base import NoiseKey, Policy
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import validate_failed_share
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe, RewardSet

#: Function of the panels of N images and their prompts that returns ground-truth metrics (N,), which are no rewards.
Gold = Callable[[list[list["Image"]], list[PromptRecord]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation.

    Attributes:
        metrics: means by ``<size>/<metric>``. If prompts have several layouts, also ``<size>/<metric>/<layout>``.
        pictures: the images of each size, ordered by prompt, then seed.
        scores: the scores behind the means, by the same names, (prompts, seeds). NaN if an image has no score.
        changes: changes since the evaluation before training, by the same names.
    """

    metrics: dict[str, float]
    pictures: dict[int, list[Image]]
    scores: dict[str, np.ndarray]
    changes: Mapping[str, EvaluationChange] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluator:
    """Evaluates a policy on a fixed set of prompts and seeds."""

    policy: Policy
    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    prompts: EncodedPrompts
    scoring: Scoring
    gold: Gold | None = None
    processes: Processes = field(default_factory=Processes)
    max_failed_share: float = 0.05

    def evaluate(self) -> Evaluation:
        """Generate and score images with the current weights. Every process gets the same result.

        Raises:
            DataError: if more than ``max_failed_share`` of the images of a size could not be scored.
        """
        metrics: dict[str, float] = {}
        pictures: dict[int, list[Image]] = {}
        scores_by_name: dict[str, np.ndarray] = {}
        rows = [row for row in range(len(self.records)) for _ in self.recipe.eval_seeds]
        owners = [self.records[row] for row in rows]
        for side in self.recipe.eval_sizes:
            images, scores = self._sample(side, rows, owners)
            if failed := self._failed(scores, side):
                metrics[f"{side}/{FAILED_SAMPLES}"] = float(failed)
            measured = {**scores.rewards}
            if self.recipe.test_rewards is not None:
                measured[SCORE] = _combined(scores, self.recipe.test_rewards, len(self.records))
            measured[scores.measure] = scores.diversity
            metrics |= {f"{side}/{name}": mean(values) for name, values in measured.items()}
            if self.gold is not None:
                panels = [split_grid(image, record.layout) for image, record in zip(images, owners, strict=True)]
                truth = self.gold(panels, owners)
                metrics |= {f"{side}/{name}": mean(values) for name, values in truth.items()}
                measured |= truth
            shaped = {f"{side}/{name}": values.reshape(len(self.records), -1) for name, values in measured.items()}
            parts = by_layout(shaped, [record.layout for record in self.records])
            metrics |= {name: mean(values) for name, values in parts.items()}
            scores_by_name |= shaped | parts
            pictures[side] = images
        return Evaluation(metrics, pictures, scores_by_name)

    def _failed(self, scores: Scores, side: int) -> int:
        """Number of images without a score of a reward that has weight."""
        terms = (self.recipe.test_rewards or self.recipe.rewards).terms
        missing = [np.isnan(values) for name, values in scores.rewards.items() if terms[name].weight != 0]
        failed, subject = int(np.any(missing, axis=0).sum()), f"evaluation at {side} px"
        causes = self.scoring.failures()
        validate_failed_share(failed, len(scores.diversity), self.max_failed_share, subject, causes)
        return failed

    def _sample(self, side: int, rows: list[int], records: list[PromptRecord]) -> tuple[list[Image], Scores]:
        """Images and scores in the order of ``rows``; a batch has one size, and the processes share the batches."""
        keys = [NoiseKey(record.idx, 0, seed) for record in self.records for seed in self.recipe.eval_seeds]
        rule, multiple, before = self.recipe.record_size, self.policy.multiple, self.prompts.predecessors
        grids = [ImageGrid.from_record(record, side, rule, multiple, before) for record in records]
        most = self.recipe.eval_batch or self.recipe.rollout_batch
        group_size = len(self.recipe.eval_seeds) if self.scoring.groupwise else 1
        # On CPUs, batches and therefore rounding do not depend on the number of processes.
        shares = 1 if self.policy.device == "cpu" else self.processes.world_size
        batches = [
            (grid, batch)
            for grid, places in buckets(grids).items()
            for batch in split_batches(places, most, shares, group_size)
        ]
        samplings = {
            grid.part_size: Sampling.for_policy(
                self.policy, grid.part_size, self.recipe.eval_steps, self.recipe.guidance
            )
            for grid, _ in batches
        }
        scoring = self.scoring.round()
        sampled: dict[int, Image] = {}
        for number, images, _ in sample_batches(
            self.policy, self.prompts, batches, rows, keys, samplings, self.processes
        ):
            places = batches[number][1]
            scoring.add([records[place] for place in places], images)
            sampled |= zip(places, images, strict=True)
        scores = scoring.result().scatter(list(sampled), len(rows), self.processes)
        return [gather_image(sampled.get(n), grid.size, self.processes) for n, grid in enumerate(grids)], scores


def by_layout(scores: Mapping[str, np.ndarray], layouts: Sequence[str]) -> dict[str, np.ndarray]:
    """Split scores by layout: ``<name>/<layout>``. Empty if all prompts have the same layout.

    Args:
        scores: (prompts, seeds) each.
        layouts: layout of each prompt.
    """
    if len(set(layouts)) < 2:
        return {}
    of_prompts = np.array(layouts)
    return {
        f"{name}/{layout}": values[of_prompts == layout]
        for name, values in scores.items()
        for layout in dict.fromkeys(layouts)
    }


def _combined(scores: Scores, rewards: RewardSet, prompts: int) -> np.ndarray:
    """The aggregated test rewards of the images, (N,)."""
    shaped = {name: values.reshape(prompts, -1) for name, values in scores.rewards.items()}
    weights = {name: term.weight for name, term in rewards.terms.items()}
    return aggregate(shaped, weights, rewards.aggregator, rewards.tame_delta).values.reshape(-1)


def picture_names(records: Sequence[PromptRecord], seeds: Sequence[int]) -> list[str]:
    """File names of the images of an evaluation, in its order."""
    return [f"{record.idx}-{seed}.png" for record in records for seed in seeds]


def load_evaluation(
    folder: Path, scores: Path, records: Sequence[PromptRecord], seeds: Sequence[int], sizes: Sequence[int]
) -> Evaluation:
    """Load the images of :func:`save_pictures` and the scores of :func:`write_scores`, without metrics.

    Raises:
        DataError: if an image or the scores are missing or damaged.
    """
    names = picture_names(records, seeds)
    pictures = {side: [read_image(folder / str(side) / name) for name in names] for side in sizes}
    return Evaluation({}, pictures, load_scores(scores))


def load_scores(path: Path) -> dict[str, np.ndarray]:
    """Load the scores of :func:`write_scores`: (prompts, seeds) by name, NaN if there is no score.

    Raises:
        DataError: if the file is missing or not JSON.
    """
    stored: dict[str, list[list[float | None]]] = read_json(path)
    return {name: np.array(rows, dtype=np.float64) for name, rows in stored.items()}


def write_scores(path: Path, scores: Mapping[str, np.ndarray]) -> None:
    """Write scores, (prompts, seeds) by name, as JSON. NaN becomes null."""
    with atomic(path) as part:
        part.write_text(json.dumps(plain_scores(scores)), encoding="utf-8")


def plain_scores(scores: Mapping[str, np.ndarray]) -> dict[str, list[list[float | None]]]:
    """Scores, (prompts, seeds) by name, as JSON stores them: None for NaN."""
    tree: dict[str, list[list[float | None]]] = to_jsonable({name: values.tolist() for name, values in scores.items()})
    return tree


def save_pictures(folder: Path, evaluation: Evaluation, records: Sequence[PromptRecord], seeds: Sequence[int]) -> None:
    """Write PNG files ``<size>/<prompt id>-<seed>.png``. Replaces the content of the folder."""
    names = picture_names(records, seeds)
    with atomic(folder, replace=True) as part:
        for side, pictures in evaluation.pictures.items():
            (part / str(side)).mkdir(parents=True)
            for name, picture in zip(names, pictures, strict=True):
                picture.save(part / str(side) / name)


def save_references(folder: Path, records: Sequence[PromptRecord], reference: Reference) -> None:
    """Write reference images of edits or characters as PNG files (:func:`reference_files`).

    Replaces the content of the folder.
    """
    with atomic(folder, replace=True) as part:
        part.mkdir(parents=True)
        for record in records:
            pictures = reference(record)
            for name, picture in zip(reference_files(record.idx, len(pictures)), pictures, strict=True):
                picture.save(part / name)


def reference_files(idx: str, count: int) -> list[str]:
    """File names of reference images: ``<prompt id>.png``, ``<prompt id>.2.png`` and so on."""
    return [f"{idx}.png", *(f"{idx}.{number}.png" for number in range(2, count + 1))]
