"""PaCo-GRPO: sample, score, give advantages, optimise, evaluate; epoch after epoch, resumable."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from paco_core.config.params import PoliciesParams, PolicyRecipe
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.advantages import Advantages, advantages
from paco_core.grpo.early_stop import collapsed
from paco_core.grpo.epoch_prompts import noise_steps_of_epoch, prompts_of_epoch
from paco_core.grpo.evaluation import Combined, Evaluation, Evaluator, Gold, beside, sheet
from paco_core.grpo.experience import Experience
from paco_core.grpo.figures import (
    Row,
    evaluated,
    evaluation_row,
    gaps,
    note,
    reward_figures,
    save_pictures,
    save_references,
)
from paco_core.grpo.learner import Learner
from paco_core.grpo.model_card import model_card
from paco_core.grpo.sampler import Sampler
from paco_core.grpo.scoring import PANEL_DIVERSITY, REFERENCE_DISTANCE, Reference, Scoring
from paco_core.grpo.sizes import picture_size
from paco_core.grpo.training_key import training_key
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digests
from paco_core.policies.base import NoiseKey, Policy, Size
from paco_core.policies.cuts import summary
from paco_core.policies.encoded import Encoded
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import RewardFunction
from paco_core.runtime.checkpoints import alone
from paco_core.training import fsdp2
from paco_core.training.checkpoint import Checkpoint, latest, save
from paco_core.training.log import LOG, write_log
from paco_core.training.optimizers import NotFinite, check_optimizer
from paco_core.training.precision import allow_tf32
from paco_core.training.processes import Processes
from paco_core.training.saving import try_to_save

if TYPE_CHECKING:
    from PIL.Image import Image

SHEET_PICTURES = 16
LAST_UPDATE = ("update/ratio_gap", "update/first_clip_fraction")
BEFORE = "samples-before"  # beside the checkpoints: a run that goes on does not paint them again


@dataclass(frozen=True)
class Reports:
    """Callbacks for progress and metrics; no-ops by default."""

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
    sizes: tuple[int, ...]
    stopped: str | None = None  # why training ended before its last epoch

    def metrics(self) -> Row:
        """Flat figures: each evaluation and gap before and after, its change, and the last epoch's health.

        ``eval.64.x`` is ``x`` on the few prompts of an evaluation, without an interval; benchmarks measure it on more.
        """
        figures: Row = {"epochs": self.rows[-1]["epoch"], "stopped_early": float(self.stopped is not None)}
        after = self.after | {f"gap/{name}": value for name, value in gaps(self.after, self.sizes).items()}
        begun = self.before | {f"gap/{name}": value for name, value in gaps(self.before, self.sizes).items()}
        for name, value in after.items():
            key = f"{'' if name.startswith('gap/') else 'eval.'}{name.replace('/', '.')}"
            before = begun.get(name, math.nan)
            figures |= {f"{key}.before": before, f"{key}.after": value, f"{key}.change": value - before}
        for name in ("reward_ratio", PANEL_DIVERSITY, REFERENCE_DISTANCE, *LAST_UPDATE):
            if name in self.rows[-1]:
                figures[name.replace("/", ".")] = self.rows[-1][name]
        return figures


@dataclass
class Trainer:
    """Trains one policy by one recipe. ``identity`` names models, data and code by content, for checkpoints.

    ``test_rewards`` answer the recipe's ``test_rewards`` at evaluations; without them the training's do.
    ``reference`` gives the picture that a record is about, where the policy edits.
    """

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
    test_rewards: Mapping[str, RewardFunction] | None = None
    processes: Processes = field(default_factory=Processes)
    reference: Reference | None = None
    place: Path = Path()  # of the results once they are finished, for the paths on the card
    licence: Mapping[str, str] = field(default_factory=dict)  # of the base model, for the head of the card

    def __post_init__(self) -> None:
        self.params = self.params.of(self.recipe)

    def run(self, out: Path, checkpoints: Path) -> Outcome:
        """Train into ``out`` (adapter/, training_log.csv, samples/), going on where a run of this identity left off.

        Args:
            checkpoints: where those of this training and of others like it lie, a folder an identity.

        Raises:
            DataError: when prompts are too few, shared by training and evaluation, or sizes do not fit; when too
                many samples could not be scored.
            RuntimeError: when a gradient is not finite, or the training pass does not match the sampling pass.
        """
        self._check()
        params, recipe = self.params, self.recipe
        allow_tf32(params.device, params.dtype)
        torch.manual_seed(params.seed)  # noise has generators of its own; this is for layers that draw, dropout say
        (trained, seen), (unseen, watched) = (
            self._encoded(self.train, [recipe.train_size]),
            self._encoded(self.unseen, recipe.eval_sizes),
        )
        self.key = training_key(params, recipe, self.train, self.unseen, [seen, watched], self.identity)
        if self.policy.cut:
            self.reports.say(summary(self.policy.cut))
        self.policy.drop_encoders()
        if recipe.start is None:
            self.policy.add_adapter(params.lora, params.seed)
        else:
            self.policy.start_from(recipe.start)
        if params.gradient_checkpointing:
            self.policy.enable_gradient_checkpointing()
        if self.processes.sharded:
            fsdp2.share_out(getattr(self.policy, "transformer", None), self.policy.device)
        self.learner = Learner(self.policy, params, self.processes, self.reports.say)
        if self.processes.main:
            try_to_save(self.policy.save_adapter)
        if self.processes.world > 1:
            self.reports.say(f"{self.processes.world} processes share the work of each epoch")
        with (
            Scoring(self.rewards, self.reference) as self.scoring,
            Scoring(self.test_rewards or {}, self.reference) as asked,
        ):
            self.sampler = Sampler(
                self.policy,
                params,
                recipe,
                self.train,
                trained,
                self.learner.objective,
                self.scoring,
                self.processes,
            )
            test = recipe.test_rewards
            self.evaluator = Evaluator(
                self.policy,
                self.unseen,
                unseen,
                recipe.eval_sizes,
                params.eval_steps,
                params.eval_seeds,
                recipe.guidance,
                params.eval_batch or params.rollout_batch,
                self.scoring if test is None else asked,
                self.gold,
                recipe.record_size,
                None
                if test is None
                else Combined({n: t.weight for n, t in test.terms.items()}, test.aggregator, test.tame_delta),
                self.processes,
            )
            store = checkpoints / self.key
            with alone(store) if self.processes.main else nullcontext():
                self.processes.wait()  # until the first one is at it, no other reads where to go on from
                return self._epochs(out, store)

    def _encoded(self, records: Sequence[PromptRecord], sides: Sequence[int]) -> tuple[Encoded, list[str]]:
        """Prompts, and the reference picture of each edit at the sizes of its own pictures; one row a record.

        Also the digests of these pictures.
        """
        length, guidance = self.recipe.max_sequence_length, self.recipe.guidance
        prompts = [record.prompt for record in records]
        references = None if self.reference is None else [self.reference(record) for record in records]
        sizes = [self._sizes([record], sides) for record in records] if self.policy.edits else []
        encoded = self.policy.encode(prompts, length, references, sizes, guidance=guidance)
        return encoded, picture_digests(references or ())

    def _sizes(self, records: Sequence[PromptRecord], sides: Sequence[int]) -> list[Size]:
        rule, multiple = self.recipe.record_size, self.policy.multiple
        return sorted({picture_size(record, side, rule, multiple) for side in sides for record in records})

    def _check(self) -> None:
        both = {record.idx for record in self.train} & {record.idx for record in self.unseen}
        if both:
            raise DataError(f"prompts {sorted(both)[:3]} are in training and in evaluation")
        if not self.unseen:
            raise DataError("no unseen prompt to evaluate on")
        if (self.recipe.test_rewards is None) != (self.test_rewards is None):
            raise ValueError("test_rewards of the recipe and of the trainer belong together")
        if self.policy.edits != (self.reference is not None):
            raise ValueError("an editing policy needs references of its records, and no other policy takes them")
        check_optimizer(self.params.optimizer)
        prompts_of_epoch(len(self.train), self.params.prompts_per_epoch, 0, self.params.seed)
        for records, sides in ((self.train, [self.recipe.train_size]), (self.unseen, self.recipe.eval_sizes)):
            for size in self._sizes(records, sides):
                self.policy.check_size(size)

    def _epochs(self, out: Path, store: Path) -> Outcome:
        found = latest(store, self.key, self.params.epochs, ("stopped", "rows", "optimizer_steps"))
        rows: list[Row] = []
        start, stopped = 0, None
        if found is None or not (store / BEFORE).is_dir():
            before = self._evaluate(0)
            rows.append({"epoch": 0.0, **self._told(before, 0)})
            if self.processes.main:
                save_pictures(store / BEFORE, before, self.unseen, self.params.eval_seeds)
        if found is not None:
            start, stopped = found.done, found.notes["stopped"]
            rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in found.notes["rows"]]
            self.learner.restore(found.tensors, found.notes["optimizer_steps"])
            self.reports.say(f"resumes after epoch {start} of {self.params.epochs}")
            if (
                start
                and start < self.params.epochs
                and evaluated(rows[-1]) == {}
                and start % self.params.eval_every == 0
            ):
                self._evaluate_midway(start, rows[-1])  # it was the last epoch of a shorter training
        for epoch in range(start, self.params.epochs):
            if stopped:
                break
            stopped = self._one_epoch(epoch, rows)
            done = epoch + 1
            if done % self.params.checkpoint_every == 0 or done == self.params.epochs or stopped:
                self._save(store, done, rows, stopped)
        if stopped:
            self.reports.say(f"stopped after epoch {int(rows[-1]['epoch'])} of {self.params.epochs}: {stopped}")
        return self._finish(out, store, rows, start, stopped)

    def _one_epoch(self, epoch: int, rows: list[Row]) -> str | None:
        """Train, evaluate where it is due, log; why to stop, or None."""
        rule, done = self.params.early_stop, epoch + 1
        try:
            row, seconds = self._epoch(epoch)
        except NotFinite as error:
            if rule is None or rule.nan == "error":
                raise
            rows.append({"epoch": float(done)})
            return str(error)
        if done % self.params.eval_every == 0 and done < self.params.epochs:
            self._evaluate_midway(done, row)
        rows.append(row)
        if self.processes.main:
            self.reports.metrics({k: v for k, v in {**row, **seconds}.items() if k != "epoch"}, done)
            self.reports.epoch(done, note(row))
        weights = {name: term.weight for name, term in self.recipe.rewards.terms.items()}
        return None if rule is None else collapsed(rows, weights, rule)

    def _evaluate_midway(self, epoch: int, row: Row) -> None:
        with self.learner.ema.applied(self.learner.parameters):
            row |= evaluation_row(self._evaluate(epoch).metrics, self.recipe.eval_sizes)

    def _save(self, store: Path, done: int, rows: list[Row], stopped: str | None) -> None:
        plain = [{k: None if math.isnan(v) else v for k, v in row.items()} for row in rows]
        notes = {"rows": plain, "optimizer_steps": self.learner.ema.steps, "stopped": stopped}
        tensors = self.learner.tensors()
        if self.processes.main:
            kept = Checkpoint(self.key, done, tensors, notes)
            save(store, kept, keep=self.params.keep_checkpoints)

    def _finish(self, out: Path, store: Path, rows: list[Row], start: int, stopped: str | None) -> Outcome:
        with self.learner.ema.applied(self.learner.parameters):
            last = int(rows[-1]["epoch"])
            after = self._evaluate(last)
            rows[-1] |= self._told(after, last)
            outcome = Outcome(
                evaluated(rows[0]), dict(after.metrics), rows, start, tuple(self.recipe.eval_sizes), stopped
            )
            if self.processes.main:
                with atomic(out / "adapter", replace=True) as part:
                    self.policy.save_adapter(part)
                    card = model_card(
                        self.params,
                        self.recipe,
                        self.policy,
                        self.unseen[0],
                        self.place.as_posix(),
                        outcome.before,
                        outcome.after,
                        last,
                        self.licence,
                    )
                    (part / "README.md").write_text(card, encoding="utf-8")
        if self.processes.main:
            samples = out / "samples"
            save_pictures(samples / "after", after, self.unseen, self.params.eval_seeds)
            with atomic(samples / "before", replace=True) as part:
                shutil.copytree(store / BEFORE, part)
            if self.reference is not None:
                save_references(samples / "reference", self.unseen, self.reference)
            write_log(out / LOG, rows)
        self.processes.wait()
        return outcome

    def _evaluate(self, epoch: int) -> Evaluation:
        evaluation = self.evaluator.evaluate()
        if self.processes.main:
            owners = [record for record in self.unseen for _ in self.params.eval_seeds]
            for side, pictures in evaluation.pictures.items():
                shown = list(zip(owners, pictures, strict=True))[:SHEET_PICTURES]
                cells = [p if self.reference is None else beside(self.reference(r), p) for r, p in shown]
                self.reports.picture(sheet(cells), f"unseen_{side}px", epoch)
        return evaluation

    def _told(self, evaluation: Evaluation, epoch: int) -> Row:
        row = evaluation_row(evaluation.metrics, self.recipe.eval_sizes)
        if self.processes.main:
            self.reports.metrics(row, epoch)
        return row

    def _epoch(self, epoch: int) -> tuple[Row, Row]:
        """Sample, score, give advantages, optimise; the figures of one epoch, and apart from them its seconds.

        Seconds are logged and not kept: equal inputs make an equal out.
        """
        clock, processor = time.monotonic(), time.process_time()
        params, rewards = self.params, self.recipe.rewards
        prompts = prompts_of_epoch(len(self.train), params.prompts_per_epoch, epoch, params.seed)
        noisy = noise_steps_of_epoch(self.recipe.noise_steps, self.recipe.num_noise_steps, epoch, params.seed)
        rows = [row for row in prompts for _ in range(params.group_size)]
        seed = (params.seed << 32) + epoch + 1
        keys = [NoiseKey(self.train[row].idx, i % params.group_size, seed) for i, row in enumerate(rows)]
        with self.learner.objective.behaviour():
            buckets, pending = self.sampler.sample(rows, keys, noisy)
        sampled = time.monotonic()
        scores = pending()
        scored = time.monotonic()
        shape = (len(prompts), params.group_size)
        combined = aggregate(
            {name: values.reshape(shape) for name, values in scores.rewards.items()},
            {name: term.weight for name, term in rewards.terms.items()},
            rewards.aggregator,
            rewards.tame_delta,
        )
        given = advantages(combined, rewards.advantage_std)
        self._refuse_failures(given, len(rows))
        flat = np.where(np.isnan(combined.values), np.nan, given.values).reshape(-1)
        health = self.learner.learn(Experience(self.sampler.encoded, rows, keys, flat, buckets))
        self.learner.objective.after_epoch(epoch + 1)
        figures = {
            "epoch": epoch + 1.0,
            **reward_figures(scores, combined, given),
            **{f"update/{name}": value for name, value in health.figures().items()},
        }
        seconds = {
            "seconds/sample": sampled - clock,
            "seconds/wait_for_scores": scored - sampled,
            "seconds/optimise": time.monotonic() - scored,
            "seconds/processor": time.process_time() - processor,
        }
        if self.recipe.num_noise_steps is not None:
            figures["first_noise_step"] = float(noisy[0])
        return figures, seconds

    def _refuse_failures(self, given: Advantages, samples: int) -> None:
        if given.failed > self.max_failed_share * samples:
            causes = ", ".join(f"{k} x {cause}" for cause, k in self.scoring.failures().items()) or "no cause given"
            raise DataError(
                f"{given.failed} of {samples} samples could not be scored, more than "
                f"max_failed_share={self.max_failed_share}: {causes}"
            )
