"""PaCo-GRPO: sample, score, give advantages, optimise, evaluate; epoch after epoch, resumable."""

from __future__ import annotations

import csv
import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.dataset.records import PromptRecord
from paco_core.files import DataError, atomic, digest
from paco_core.grpo import checkpoint as checkpoints
from paco_core.grpo.advantages import Advantages, advantages
from paco_core.grpo.checkpoint import Checkpoint
from paco_core.grpo.evaluation import Evaluation, Evaluator, Gold, sheet
from paco_core.grpo.learner import Experience, Learner
from paco_core.grpo.losses import LOSSES
from paco_core.grpo.rollout import Kept, Sampling, rollout
from paco_core.grpo.sampler import prompts_of_epoch
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.params import PoliciesParams, PolicyRecipe
from paco_core.policies.base import NoiseKey, Policy
from paco_core.rewards.aggregation import Aggregate, aggregate
from paco_core.rewards.base import RewardFunction

if TYPE_CHECKING:
    from PIL.Image import Image

Row = dict[str, float]
#: Settings that do not change what an epoch computes: a run may go on when they were changed.
NOT_THE_RECIPE = {"recipes", "epochs", "checkpoint_every"}


@dataclass(frozen=True)
class Reports:
    """Where a training tells what happens; the defaults keep quiet."""

    say: Callable[[str], None] = lambda _line: None
    metrics: Callable[[Mapping[str, float], int], None] = lambda _values, _epoch: None
    picture: Callable[[Image, str, int], None] = lambda _image, _key, _epoch: None
    epoch: Callable[[int, str], None] = lambda _done, _note: None


@dataclass(frozen=True)
class Outcome:
    """Evaluations with the weights before and after training, and one row of figures an epoch."""

    before: Row
    after: Row
    rows: list[Row]
    resumed_at: int

    def metrics(self) -> Row:
        """Flat figures: each evaluation before and after, its change, and the last epoch's reward ratio."""
        figures: Row = {"epochs": self.rows[-1]["epoch"]}
        for name, value in self.after.items():
            key = name.replace("/", ".")
            before = self.before.get(name, math.nan)
            figures |= {f"{key}.before": before, f"{key}.after": value, f"{key}.change": value - before}
        for name in ("reward_ratio", "panel_diversity", "update/ratio_gap"):
            if name in self.rows[-1]:
                figures[name.replace("/", ".")] = self.rows[-1][name]
        return figures


@dataclass
class Trainer:
    """Trains one policy by one recipe. ``identity`` names models and data by content, for checkpoints."""

    policy: Policy
    params: PoliciesParams
    recipe: PolicyRecipe
    rewards: Mapping[str, RewardFunction]
    train: Sequence[PromptRecord]
    unseen: Sequence[PromptRecord]
    identity: Mapping[str, str]
    gold: Gold | None = None
    max_failed_share: float = 0.05
    reports: Reports = field(default_factory=Reports)

    def digest(self) -> str:
        """Digest of everything that an epoch's result depends on."""
        return digest(
            {
                "params": self.params.model_dump(exclude=NOT_THE_RECIPE),
                "recipe": self.recipe.model_dump(),
                "train": [record.model_dump() for record in self.train],
                "unseen": [record.idx for record in self.unseen],
                "identity": dict(self.identity),
            }
        )

    def run(self, out: Path) -> Outcome:
        """Train into ``out`` (adapter/, training_log.csv, samples/, checkpoint/), going on where it left off.

        Raises:
            DataError: when prompts are too few, shared by training and evaluation, or sizes do not fit; when too
                many samples could not be scored.
            RuntimeError: when a gradient is not finite.
        """
        import torch

        self._check()
        params, recipe = self.params, self.recipe
        torch.manual_seed(params.seed)  # noise has generators of its own; this is for layers that draw, dropout say
        conditions = self.policy.encode(
            [record.prompt for record in (*self.train, *self.unseen)], recipe.max_sequence_length
        )
        if self.policy.truncated:
            self.reports.say(
                f"{self.policy.truncated} prompts are longer than max_sequence_length="
                f"{recipe.max_sequence_length} tokens and were cut"
            )
        self.policy.drop_encoders()
        self._train_rows = conditions.take(range(len(self.train)))
        self.policy.add_adapter(params.lora, params.seed)
        if params.gradient_checkpointing:
            self.policy.enable_gradient_checkpointing()
        self.learner = Learner(self.policy, params)
        self.sampling = Sampling.of(
            self.policy,
            (recipe.train_size, recipe.train_size),
            recipe.sampling_steps,
            recipe.guidance,
            noise_steps=recipe.noise_steps,
            noise_level=recipe.noise_level,
            dynamics=recipe.dynamics,
            shared_noise=recipe.shared_noise,
            keep_mean=LOSSES[params.loss].keeps_mean,
        )
        with Scoring(self.rewards) as self.scoring:
            self.evaluator = Evaluator(
                self.policy,
                self.unseen,
                conditions.take(range(len(self.train), len(conditions))),
                recipe.eval_sizes,
                params.eval_steps,
                params.eval_seeds,
                recipe.guidance,
                params.rollout_batch,
                self.scoring,
                self.gold,
            )
            return self._epochs(out)

    def _check(self) -> None:
        both = {record.idx for record in self.train} & {record.idx for record in self.unseen}
        if both:
            raise DataError(f"prompts {sorted(both)[:3]} are in training and in evaluation")
        if not self.unseen:
            raise DataError("no unseen prompt to evaluate on")
        prompts_of_epoch(len(self.train), self.params.prompts_per_epoch, 0, self.params.seed)
        for side in (self.recipe.train_size, *self.recipe.eval_sizes):
            self.policy.check_size((side, side))

    def _epochs(self, out: Path) -> Outcome:
        store = out / "checkpoint" / self.digest()
        for other in (p for p in store.parent.glob("*") if p != store):
            self.reports.say(f"checkpoint {other.name} is of another configuration: training starts afresh")
            shutil.rmtree(other)
        found = checkpoints.latest(store, self.digest())
        rows: list[Row] = []
        start = 0
        if found is not None:
            start = found.epoch
            rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in found.notes["rows"]]
            self.learner.restore(found.tensors, found.notes["optimizer_steps"])
            self.reports.say(f"goes on after epoch {start} of {self.params.epochs}")
        else:
            before = self._evaluate(0)
            save_pictures(out / "samples" / "before", before, self.unseen, self.params.eval_seeds)
            rows.append({"epoch": 0.0, **_prefixed(before.metrics)})
            self.reports.metrics(_prefixed(before.metrics), 0)
        for epoch in range(start, self.params.epochs):
            row = self._epoch(epoch)
            done = epoch + 1
            if done % self.params.eval_every == 0 and done < self.params.epochs:
                with self.learner.ema.applied(self.learner.parameters):
                    row |= _prefixed(self._evaluate(done).metrics)
            rows.append(row)
            self.reports.metrics({k: v for k, v in row.items() if k != "epoch"}, done)
            self.reports.epoch(done, _note(row))
            if done % self.params.checkpoint_every == 0 or done == self.params.epochs:
                checkpoints.save(store, Checkpoint(self.digest(), done, self.learner.tensors(), self._notes(rows)))
            write_log(out / "training_log.csv", rows)
        with self.learner.ema.applied(self.learner.parameters):
            after = self._evaluate(self.params.epochs)
            with atomic(out / "adapter") as part:
                self.policy.save_adapter(part)
        save_pictures(out / "samples" / "after", after, self.unseen, self.params.eval_seeds)
        rows[-1] |= _prefixed(after.metrics)
        self.reports.metrics(_prefixed(after.metrics), self.params.epochs)
        write_log(out / "training_log.csv", rows)
        return Outcome(_evaluated(rows[0]), dict(after.metrics), rows, start)

    def _notes(self, rows: list[Row]) -> dict[str, object]:
        plain = [{k: None if math.isnan(v) else v for k, v in row.items()} for row in rows]
        return {"rows": plain, "optimizer_steps": self.learner.ema.steps}

    def _evaluate(self, epoch: int) -> Evaluation:
        evaluation = self.evaluator.evaluate()
        for side, pictures in evaluation.pictures.items():
            self.reports.picture(sheet(pictures[:16]), f"unseen_{side}px", epoch)
        return evaluation

    def _epoch(self, epoch: int) -> Row:
        """Sample, score, give advantages, optimise; the figures of one epoch."""
        clock = time.monotonic()
        params, terms = self.params, self.recipe.rewards.terms
        prompts = prompts_of_epoch(len(self.train), params.prompts_per_epoch, epoch, params.seed)
        rows = [row for row in prompts for _ in range(params.group_size)]
        kept, pending = self._sample(rows, epoch)
        sampled = time.monotonic()
        scores = pending()
        scored = time.monotonic()
        shape = (len(prompts), params.group_size)
        combined = aggregate(
            {name: values.reshape(shape) for name, values in scores.rewards.items()},
            {name: term.weight for name, term in terms.items()},
            self.recipe.rewards.aggregator,
            self.recipe.rewards.tame_delta,
        )
        given = advantages(combined, self.recipe.rewards.advantage_std)
        self._refuse_failures(given, len(rows))
        flat = given.values.reshape(-1)
        health = self.learner.learn(Experience(self._train_rows, rows, kept, flat, self.sampling))
        return {
            "epoch": epoch + 1.0,
            **reward_figures(scores, combined, given),
            **{f"update/{name}": float(value) for name, value in asdict(health).items()},
            "seconds/sample": sampled - clock,
            "seconds/wait_for_scores": scored - sampled,
            "seconds/optimise": time.monotonic() - scored,
        }

    def _sample(self, rows: list[int], epoch: int) -> tuple[list[Kept], Callable[[], Scores]]:
        """Roll out all groups; each batch is handed to the scorers before the next is begun."""
        params = self.params
        seed = (params.seed << 32) + epoch + 1
        keys = [NoiseKey(self.train[row].idx, i % params.group_size, seed) for i, row in enumerate(rows)]
        parts, waiting = [], []
        for start in range(0, len(rows), params.rollout_batch):
            part = slice(start, start + params.rollout_batch)
            done = rollout(self.policy, self._train_rows, rows[part], keys[part], self.sampling)
            images = self.policy.decode(done.latents, self.sampling.size)
            waiting.append(self.scoring.submit([self.train[row] for row in rows[part]], images))
            parts.append(done.kept)
        kept = [Kept.join(steps) for steps in zip(*parts, strict=True)]
        return kept, lambda: Scores.join([pending.result() for pending in waiting])

    def _refuse_failures(self, given: Advantages, samples: int) -> None:
        if given.failed > self.max_failed_share * samples:
            causes = ", ".join(f"{k} x {cause}" for cause, k in self.scoring.failures().items()) or "no cause told"
            raise DataError(
                f"{given.failed} of {samples} samples could not be scored, more than "
                f"max_failed_share={self.max_failed_share}: {causes}"
            )


def reward_figures(scores: Scores, combined: Aggregate, given: Advantages) -> Row:
    """Means, variation and taming of each reward, their ratio, and the health of the groups."""
    figures: Row = {f"reward/{name}": float(np.nanmean(values)) for name, values in scores.rewards.items()}
    figures |= {f"variation/{name}": value for name, value in combined.variation.items()}
    figures |= {f"tamed/{name}": float(flag) for name, flag in combined.tamed.items()}
    if "consistency" in scores.rewards and "clip_t" in scores.rewards:
        figures["reward_ratio"] = figures["reward/consistency"] / figures["reward/clip_t"]
    figures["panel_diversity"] = float(scores.diversity.mean())
    figures["groups/zero_std"] = float(given.zero_std_groups)
    figures["groups/failed_samples"] = float(given.failed)
    return figures


def _prefixed(metrics: Mapping[str, float]) -> Row:
    return {f"eval/{name}": value for name, value in metrics.items()}


def _evaluated(row: Row) -> Row:
    return {name.removeprefix("eval/"): value for name, value in row.items() if name.startswith("eval/")}


def _note(row: Row) -> str:
    return ", ".join(f"{name.removeprefix('reward/')} {row[name]:.3f}" for name in row if name.startswith("reward/"))


def save_pictures(folder: Path, evaluation: Evaluation, records: Sequence[PromptRecord], seeds: Sequence[int]) -> None:
    """PNG files ``<size>/<prompt id>-<seed>.png``, replacing what the folder held."""
    names = [f"{record.idx}-{seed}.png" for record in records for seed in seeds]
    with atomic(folder) as part:
        for side, pictures in evaluation.pictures.items():
            (part / str(side)).mkdir(parents=True)
            for name, picture in zip(names, pictures, strict=True):
                picture.save(part / str(side) / name)


def write_log(path: Path, rows: Sequence[Row]) -> None:
    """One line an epoch; a figure that an epoch did not measure is left empty."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    with atomic(path) as part, part.open("w", newline="") as stream:
        writer = csv.DictWriter(stream, columns)
        writer.writeheader()
        writer.writerows(rows)
