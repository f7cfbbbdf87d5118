"""The policy on unseen prompts with fixed seeds, at every evaluation size, without noise steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image as pil

from paco_core.config.measures import FAILED_SAMPLES, SCORE
from paco_core.data.records.records import PromptRecord
from paco_core.data.records.subfigures import cut
from paco_core.grpo.intervals import EvaluationChange, mean
from paco_core.grpo.pages import EncodedPrompts, paint_page
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.grpo.sizes import Canvas, buckets
from paco_core.io.pictures import in_a_row
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import validate_failed_share
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe, RewardSet

#: Panels of each of N pictures and its prompt -> measures (N,) that no reward may see (the embedded world's truth).
Gold = Callable[[list[list["Image"]], list[PromptRecord]], dict[str, np.ndarray]]


@dataclass(frozen=True)
class Evaluation:
    """Metrics named ``<size>/<metric>``, and the pictures of each size in the order of prompts, then seeds.

    Where prompts have several layouts, ``<size>/<metric>/<layout>`` is over those of one. ``scores``: what the means
    are of, by the same names, (prompts, seeds), NaN where a picture has none. ``changes``: since the evaluation before
    training, by the same names.
    """

    metrics: dict[str, float]
    pictures: dict[int, list[Image]]
    scores: dict[str, np.ndarray]
    changes: Mapping[str, EvaluationChange] = field(default_factory=dict)


@dataclass(frozen=True)
class Evaluator:
    """A fixed set of prompts and seeds to come back to."""

    policy: Policy
    recipe: PolicyRecipe
    records: Sequence[PromptRecord]
    prompts: EncodedPrompts
    scoring: Scoring
    gold: Gold | None = None
    processes: Processes = field(default_factory=Processes)
    max_failed_share: float = 0.05

    def evaluate(self) -> Evaluation:
        """Sample, score and measure with the weights that the policy holds now; every process gets the same.

        Raises:
            DataError: when more than ``max_failed_share`` of the images of a size could not be scored.
        """
        metrics: dict[str, float] = {}
        pictures: dict[int, list[Image]] = {}
        each: dict[str, np.ndarray] = {}
        rows = [row for row in range(len(self.records)) for _ in self.recipe.eval_seeds]
        owners = [self.records[row] for row in rows]
        for side in self.recipe.eval_sizes:
            images, scores = self._paint(side, rows, owners)
            if failed := self._failed(scores, side):
                metrics[f"{side}/{FAILED_SAMPLES}"] = float(failed)
            measured = {**scores.rewards}
            if self.recipe.test_rewards is not None:
                measured[SCORE] = _combined(scores, self.recipe.test_rewards, len(self.records))
            measured[scores.measure] = scores.diversity
            metrics |= {f"{side}/{name}": mean(values) for name, values in measured.items()}
            if self.gold is not None:
                panels = [cut(image, record.layout) for image, record in zip(images, owners, strict=True)]
                truth = self.gold(panels, owners)
                metrics |= {f"{side}/{name}": mean(values) for name, values in truth.items()}
                measured |= truth
            shaped = {f"{side}/{name}": values.reshape(len(self.records), -1) for name, values in measured.items()}
            parts = by_layout(shaped, [record.layout for record in self.records])
            metrics |= {name: mean(values) for name, values in parts.items()}
            each |= shaped | parts
            pictures[side] = images
        return Evaluation(metrics, pictures, each)

    def _failed(self, scores: Scores, side: int) -> int:
        """How many images have no score of a reward that counts."""
        terms = (self.recipe.test_rewards or self.recipe.rewards).terms
        missing = [np.isnan(values) for name, values in scores.rewards.items() if terms[name].weight != 0]
        failed, subject = int(np.any(missing, axis=0).sum()), f"evaluation at {side} px"
        causes = self.scoring.failures()
        validate_failed_share(failed, len(scores.diversity), self.max_failed_share, subject, causes)
        return failed

    def _paint(self, side: int, rows: list[int], owners: list[PromptRecord]) -> tuple[list[Image], Scores]:
        """Pictures and scores in the order of ``rows``; batches hold one size and are shared out to the processes."""
        keys = [NoiseKey(record.idx, 0, seed) for record in self.records for seed in self.recipe.eval_seeds]
        rule, multiple, before = self.recipe.record_size, self.policy.multiple, self.prompts.predecessors
        pages = [Canvas.from_record(record, side, rule, multiple, before) for record in owners]
        most = self.recipe.eval_batch or self.recipe.rollout_batch
        together = len(self.recipe.eval_seeds) if self.scoring.groupwise else 1
        # On processors batches, and with them the last bits, do not depend on the number of processes.
        shares = 1 if self.policy.device == "cpu" else self.processes.world
        painted: dict[int, Image] = {}
        scoring, number, rollouts = self.scoring.round(), 0, list[int]()
        for page, places in buckets(pages).items():
            sampling = Sampling.for_policy(self.policy, page.part_size, self.recipe.eval_steps, self.recipe.guidance)
            for part in shared_out(places, most, shares, together):
                rollouts += [number] * page.parts
                number += 1
                if not self.processes.mine(number - 1):
                    continue
                took, named = [rows[n] for n in part], [keys[n] for n in part]
                batch, _ = paint_page(self.policy, self.prompts, took, named, sampling, page)
                scoring.add([owners[n] for n in part], batch)
                painted |= zip(part, batch, strict=True)
        for _ in range(self.processes.idle(rollouts)):
            encoded, own = self.prompts.conditions(self.policy, rows[:1], 0, [[]], page.part_size)
            rollout(self.policy, encoded, own, keys[:1], sampling)
        scores = scoring.pending().result().spread(list(painted), len(rows), self.processes)
        return [self._shared(painted.get(n), pages[n].size) for n in range(len(rows))], scores

    def _shared(self, image: Image | None, size: Size) -> Image:
        """The picture, from the process that painted it."""
        if self.processes.world == 1 and image is not None:
            return image

        own = np.zeros((*size, 3), np.uint8) if image is None else np.asarray(image)
        return pil.fromarray(self.processes.sum_array(own))


def shared_out(places: Sequence[int], most: int, shares: int, together: int = 1) -> list[list[int]]:
    """Places of pictures in batches of at most ``most``, whose number divides among processes.

    So none waits for another one's last batch: 16 pictures in batches of at most 2 are 14 for seven processes, two of
    which hold 2. Where there are fewer pictures than processes, each is a batch.

    Args:
        shares: processes that paint; one has full batches.
        together: pictures of a prompt, which stay in one batch: a groupwise reward compares them.
    """
    if shares == 1:
        return [list(places[start : start + most]) for start in range(0, len(places), most)]
    groups = np.array(places).reshape(-1, together)
    batches = -(-len(groups) // max(1, most // together))
    batches = min(len(groups), -(-batches // shares) * shares)
    return [part.ravel().tolist() for part in np.array_split(groups, batches)]


def by_layout(scores: Mapping[str, np.ndarray], layouts: Sequence[str]) -> dict[str, np.ndarray]:
    """Rows of each layout, named ``<name>/<layout>``; nothing where all are of one.

    Args:
        scores: (prompts, seeds) each.
        layouts: of the prompts.
    """
    if len(set(layouts)) < 2:
        return {}
    given = np.array(layouts)
    return {
        f"{name}/{layout}": values[given == layout]
        for name, values in scores.items()
        for layout in dict.fromkeys(layouts)
    }


def _combined(scores: Scores, rewards: RewardSet, prompts: int) -> np.ndarray:
    """The aggregated test rewards of the images, (N,)."""
    shaped = {name: values.reshape(prompts, -1) for name, values in scores.rewards.items()}
    weights = {name: term.weight for name, term in rewards.terms.items()}
    return aggregate(shaped, weights, rewards.aggregator, rewards.tame_delta).values.reshape(-1)


def beside(references: Sequence[Image], picture: Image) -> Image:
    """Reference pictures, brought to the height of their edit, and the edit to their right."""
    return in_a_row([*references, picture], picture.height)
