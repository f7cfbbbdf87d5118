"""The policy on unseen prompts with fixed seeds, at every evaluation size, without noise steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from paco_core.dataset.records import PromptRecord
from paco_core.dataset.subfigures import cut
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.policies.base import Condition, NoiseKey, Policy

if TYPE_CHECKING:
    from PIL.Image import Image

#: Panels of each picture and its prompt -> metrics that no reward may see (the embedded world's truth).
Gold = Callable[[list[list["Image"]], list[PromptRecord]], dict[str, float]]
SHEET_COLUMNS = 8


@dataclass(frozen=True)
class Evaluation:
    """Metrics named ``<size>/<metric>``, and the pictures of each size in the order of prompts, then seeds."""

    metrics: dict[str, float]
    pictures: dict[int, list[Image]]


@dataclass(frozen=True)
class Evaluator:
    """A fixed set of prompts and seeds to come back to."""

    policy: Policy
    records: Sequence[PromptRecord]
    condition: Condition
    sizes: Sequence[int]
    steps: int
    seeds: Sequence[int]
    guidance: float
    batch: int
    scoring: Scoring
    gold: Gold | None = None

    def evaluate(self) -> Evaluation:
        """Sample, score and measure with the weights that the policy holds now."""
        metrics: dict[str, float] = {}
        pictures: dict[int, list[Image]] = {}
        rows = [row for row in range(len(self.records)) for _ in self.seeds]
        keys = [NoiseKey(record.idx, 0, seed) for record in self.records for seed in self.seeds]
        owners = [self.records[row] for row in rows]
        for side in self.sizes:
            sampling = Sampling.of(self.policy, (side, side), self.steps, self.guidance)
            images: list[Image] = []
            waiting = []
            for start in range(0, len(rows), self.batch):
                part = slice(start, start + self.batch)
                done = rollout(self.policy, self.condition, rows[part], keys[part], sampling)
                batch = self.policy.decode(done.latents, (side, side))
                waiting.append(self.scoring.submit(owners[part], batch))
                images += batch
            scores = Scores.join([pending.result() for pending in waiting])
            metrics |= {f"{side}/{name}": float(np.nanmean(r)) for name, r in scores.rewards.items()}
            metrics[f"{side}/panel_diversity"] = float(scores.diversity.mean())
            if self.gold is not None:
                panels = [cut(image, record.layout) for image, record in zip(images, owners, strict=True)]
                metrics |= {f"{side}/{name}": value for name, value in self.gold(panels, owners).items()}
            pictures[side] = images
        return Evaluation(metrics, pictures)


def sheet(pictures: Sequence[Image], columns: int = SHEET_COLUMNS) -> Image:
    """Pictures of one size side by side, for people."""
    from PIL import Image as pil

    wide = min(columns, len(pictures))
    width, height = pictures[0].size
    page = pil.new("RGB", (wide * width, -(-len(pictures) // wide) * height), "white")
    for place, picture in enumerate(pictures):
        page.paste(picture, (place % wide * width, place // wide * height))
    return page
