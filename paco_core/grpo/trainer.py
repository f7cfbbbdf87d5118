"""Trainer of PaCo-GRPO: sample, score, give advantages, optimize, evaluate; epoch after epoch, resumable.

If images were ranked before, an epoch has pairs of these instead of samples (:class:`.epochs.OfflineEpochs`).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.grpo.advantages import advantages
from paco_core.grpo.card_sample import SAMPLE, card_sample
from paco_core.grpo.epochs import Epochs
from paco_core.grpo.evaluation import (
    Evaluation,
    Evaluator,
    Gold,
    load_evaluation,
    load_scores,
    plain_scores,
    save_pictures,
    save_references,
    write_scores,
)
from paco_core.grpo.hacking import AGREEMENT, disagreement, hack_metrics, score_agreement, stop_reason
from paco_core.grpo.image_alarm import NEAR_COPY, image_content
from paco_core.grpo.learner import Learner
from paco_core.grpo.metrics import (
    Row,
    evaluated,
    evaluation_row,
    gap_changes,
    note,
    paired_changes,
    reward_metrics,
)
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.panel_references import character_references
from paco_core.grpo.sampling import Experience
from paco_core.grpo.scoring import Scores, Scoring
from paco_core.io.answer import to_jsonable
from paco_core.io.atomic import atomic
from paco_core.io.contact_sheet import tile_images
from paco_core.io.pictures import join_in_row
from paco_core.rewards.aggregation import aggregate
from paco_core.rewards.base import RewardFunction, validate_failed_share
from paco_core.runtime.checkpoints import exclusive_training
from paco_core.training.checkpoint import Checkpoint, load_latest_checkpoint, save_checkpoint
from paco_core.training.log import LOG, write_log
from paco_core.training.optimizers import NotFinite
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.prompt_split import PromptSplit

SHEET_PICTURES = 16
SHEET_COLUMNS = 8
BEFORE = "samples-before"  # next to the checkpoints: a run that resumes does not sample them again
BEFORE_SCORES = "scores-before.json"


@dataclass(frozen=True)
class Reports:
    """Callbacks for progress and metrics; no-ops by default."""

    log: Callable[[str], None] = lambda _line: None
    metrics: Callable[[Mapping[str, float], int], None] = lambda _values, _epoch: None
    picture: Callable[[Image, str, int], None] = lambda _image, _key, _epoch: None
    epoch: Callable[[int, str], None] = lambda _epoch, _note: None


@dataclass(frozen=True)
class RunContext:
    """The surroundings of a training, apart from its recipe, policy and prompts.

    Attributes:
        rewards: the recipe's ``rewards`` by name.
        test_rewards: its ``test_rewards``, which score evaluations; None = the rewards of the training do.
        gold: ground-truth metrics, which no policy is trained on; None if there are none.
        max_failed_share: share of samples without a score that ends a training.
        identity: models, data and code by content, for checkpoints.
        code: digest of the code that trains; a checkpoint of other code is not used.
        root: the project.
        out: folder of the results while the training runs.
        final: where ``out`` will be at the end, relative to the root, for the paths on the model card.
        checkpoints: folder of the checkpoints of this training and of similar ones, one folder per key.
        read: returns the path of an input, after a check that it exists.
        processes: those that train together; None = they meet when the training is assembled, for a process can meet
            the others once only.
        world: ``storybook`` for the embedded world, else ``real``; the model card depends on it.
        benchmark: stage that measures the trained policy, for the model card; empty = that of the recipe's task.
    """

    rewards: Mapping[str, RewardFunction] = field(default_factory=dict)
    test_rewards: Mapping[str, RewardFunction] | None = None
    gold: Gold | None = None
    max_failed_share: float = 0.05
    identity: Mapping[str, str] = field(default_factory=dict)
    code: str = ""
    root: Path = Path()
    out: Path = Path()
    final: Path = Path()
    checkpoints: Path = Path()
    read: Callable[[Path], Path] = lambda path: path
    reports: Reports = field(default_factory=Reports)
    processes: Processes | None = None
    world: str = "real"
    benchmark: str = ""


@dataclass(frozen=True)
class Trainer:
    """Trains a policy, epoch after epoch; :func:`paco_core.grpo.recipe.assemble` puts its parts together.

    Attributes:
        scoring: the rewards of the training.
        key: identifies the training by content; a checkpoint of another key is not used.
        card: returns the model card for a number of trained epochs.
        truncated: number of prompts that are longer than the text window, as a metric.
    """

    recipe: PolicyRecipe
    split: PromptSplit
    learner: Learner
    epochs: Epochs
    scoring: Scoring
    evaluator: Evaluator
    context: RunContext
    key: str
    card: Callable[[int], str]
    truncated: Mapping[str, int]

    @property
    def processes(self) -> Processes:
        return self.learner.processes

    @property
    def reports(self) -> Reports:
        return self.context.reports

    def run(self, out: Path, checkpoints: Path) -> Outcome:
        """Train into ``out`` (adapter/, training_log.csv, samples/); resume where a run of this key stopped.

        Args:
            checkpoints: folder of the checkpoints of this training and of similar ones, one folder per key.

        Raises:
            DataError: when too many samples could not be scored.
            RuntimeError: when a gradient is not finite, or the training pass does not match the sampling pass.
        """
        store = checkpoints / self.key
        with self.scoring, self.evaluator.scoring, exclusive_training(store) if self.processes.main else nullcontext():
            self.processes.barrier()  # the first process repairs the checkpoints before any process reads them
            return self._epochs(out, store)

    def _epochs(self, out: Path, store: Path) -> Outcome:
        checkpoint = load_latest_checkpoint(store, self.key, self.recipe.epochs, ("stopped", "rows", "optimizer_steps"))
        rows: list[Row] = []
        seconds: Row = {}
        start, stopped = 0, None
        if checkpoint is None or not (store / BEFORE).is_dir():
            before = self._evaluate(0, None)
            rows.append({"epoch": 0.0, **self._report(before, 0)})
            if self.processes.main:
                write_scores(store / BEFORE_SCORES, before.scores)
                save_pictures(store / BEFORE, before, self.split.unseen, self.recipe.eval_seeds)
        if checkpoint is not None:
            start, stopped = checkpoint.progress, checkpoint.notes["stopped"]
            rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in checkpoint.notes["rows"]]
            seconds = dict(checkpoint.notes["seconds"])
            self.learner.restore(checkpoint.tensors, checkpoint.notes["optimizer_steps"])
            self.reports.log(f"resumes after epoch {start} of {self.recipe.epochs}")
            if (
                start
                and start < self.recipe.epochs
                and evaluated(rows[-1]) == {}
                and start % self.recipe.eval_every == 0
            ):
                self._evaluate_midway(start, rows[-1], store)  # it was the last epoch of a shorter training
        for epoch in range(start, self.recipe.epochs):
            if stopped:
                break
            stopped = self._one_epoch(epoch, rows, seconds, store)
            finished = epoch + 1
            if finished % self.recipe.checkpoint_every == 0 or finished == self.recipe.epochs or stopped:
                self._save(store, finished, {"rows": to_jsonable(rows), "seconds": seconds, "stopped": stopped})
        if stopped:
            self.reports.log(f"stopped after epoch {int(rows[-1]['epoch'])} of {self.recipe.epochs}: {stopped}")
        return self._finish(out, store, rows, seconds, start, stopped)

    def _one_epoch(self, epoch: int, rows: list[Row], totals: Row, store: Path) -> str | None:
        """Train, evaluate where it is due, log; why to stop, or None."""
        rule, finished = self.recipe.early_stop, epoch + 1
        try:
            row, seconds = self._epoch(epoch)
        except NotFinite as error:
            if rule is None or rule.nan == "error":
                raise
            rows.append({"epoch": float(finished)})
            return str(error)
        for name, value in seconds.items():
            totals[name] = totals.get(name, 0.0) + value
        changes: Row = {}
        if finished % self.recipe.eval_every == 0 and finished < self.recipe.epochs:
            changes = self._evaluate_midway(finished, row, store)
        rows.append(row)
        if self.processes.main:
            self.reports.metrics({k: v for k, v in {**row, **changes, **seconds}.items() if k != "epoch"}, finished)
            self.reports.epoch(finished, note(row))
        weights = {name: term.weight for name, term in self.recipe.rewards.terms.items()}
        return None if rule is None else stop_reason(rows, weights, rule, self.recipe.hack_meter)

    def _evaluate_midway(self, epoch: int, row: Row, store: Path) -> Row:
        """Evaluate, add the figures to the row of the epoch, and return the changes since the start."""
        with self.learner.ema.applied(self.learner.parameters):
            evaluation = self._evaluate(epoch, store)
        row |= evaluation_row(evaluation.metrics, evaluation.scores, self.recipe.eval_sizes)
        return _changes(evaluation)

    def _save(self, store: Path, finished: int, notes: dict[str, object]) -> None:
        tensors = self.learner.tensors()
        if self.processes.main:
            checkpoint = Checkpoint(self.key, finished, tensors, {**notes, "optimizer_steps": self.learner.ema.steps})
            save_checkpoint(store, checkpoint, keep=self.recipe.keep_checkpoints)

    def _finish(
        self, out: Path, store: Path, rows: list[Row], seconds: Row, start: int, stopped: str | None
    ) -> Outcome:
        with self.learner.ema.applied(self.learner.parameters):
            last = int(rows[-1]["epoch"])
            after = self._evaluate(last, store)
            rows[-1] |= self._report(after, last)
            start_scores = load_scores(store / BEFORE_SCORES) if self.processes.main else {}
            outcome = Outcome(
                evaluated(rows[0]), dict(after.metrics), rows, start, stopped, self.truncated, seconds, after.changes,
                gap_changes(start_scores, after.scores, self.recipe.eval_sizes), self._scores(start_scores, after),
            )  # fmt: skip
            if self.processes.main:
                with atomic(out / "adapter", replace=True) as part:
                    self.learner.policy.save_adapter(part)
                    card_sample(
                        store / BEFORE, after, self.split.unseen, self.recipe.eval_seeds, self.split.reference
                    ).save(part / SAMPLE)
                    card = self.card(last)
                    (part / "README.md").write_text(card, encoding="utf-8")
        if self.processes.main:
            samples = out / "samples"
            save_pictures(samples / "after", after, self.split.unseen, self.recipe.eval_seeds)
            with atomic(samples / "before", replace=True) as part:
                shutil.copytree(store / BEFORE, part)
            if self.split.reference is not None:
                save_references(samples / "reference", self.split.unseen, self.split.reference)
            elif stories := [record for record in self.split.unseen if record.characters]:
                save_references(samples / "reference", stories, character_references)
            write_log(out / LOG, rows)
        self.processes.barrier()
        return outcome

    def _evaluate(self, epoch: int, store: Path | None) -> Evaluation:
        """Evaluate, with the hack meter if it is set. ``store``: folder of the first evaluation, None = this one."""
        evaluation = self.evaluator.evaluate()
        owners = [record for record in self.split.unseen for _ in self.recipe.eval_seeds]
        evaluation = replace(evaluation, metrics=evaluation.metrics | self._image_content(evaluation, owners))
        if (meter := self.recipe.hack_meter) is not None:
            prompts = self.split.unseen, self.recipe.eval_seeds, self.recipe.eval_sizes
            baseline = evaluation
            if store is not None:
                baseline = load_evaluation(store / BEFORE, store / BEFORE_SCORES, *prompts)
            evaluation = replace(evaluation, metrics=evaluation.metrics | hack_metrics(meter, evaluation, baseline))
        if self.processes.main:
            start_scores = evaluation.scores if store is None else load_scores(store / BEFORE_SCORES)
            evaluation = replace(evaluation, changes=paired_changes(start_scores, evaluation.scores))
            for side, pictures in evaluation.pictures.items():
                cells = pictures[:SHEET_PICTURES]
                if (reference := self.split.reference) is not None:  # references of an edit at its height, to its left
                    pairs = zip(owners, cells, strict=False)
                    cells = [join_in_row([*reference(record), image], image.height) for record, image in pairs]
                self.reports.picture(tile_images(cells, SHEET_COLUMNS), f"unseen_{side}px", epoch)
        return evaluation

    def _image_content(self, evaluation: Evaluation, records: Sequence[PromptRecord]) -> Row:
        """The measures of the image alarm at every size, named ``<size>/<measure>``.

        Args:
            records: the prompt of each image of a size.
        """
        bound = NEAR_COPY if (meter := self.recipe.hack_meter) is None else meter.near_copy
        return {
            f"{side}/{name}": value
            for side, pictures in evaluation.pictures.items()
            for name, value in image_content(pictures, records, bound, self.split.reference).items()
        }

    def _scores(self, before: Mapping[str, np.ndarray], after: Evaluation) -> dict[str, object]:
        """The scores of each image before and after training, as JSON, with what the rows and columns are."""
        rows, columns = [record.idx for record in self.split.unseen], list(self.recipe.eval_seeds)
        scores = {"before": plain_scores(before), "after": plain_scores(after.scores)}
        return {"prompts": rows, "seeds": columns, **scores}

    def _report(self, evaluation: Evaluation, epoch: int) -> Row:
        row = evaluation_row(evaluation.metrics, evaluation.scores, self.recipe.eval_sizes)
        if self.processes.main:
            self.reports.metrics({**row, **_changes(evaluation)}, epoch)
        return row

    def _epoch(self, epoch: int) -> tuple[Row, Row]:
        """Sample, score, give advantages, optimize; the metrics of one epoch, and apart from them its seconds.

        Seconds are logged, and summed up in checkpoints, but are in no output: equal inputs make an equal output.
        """
        processor, started = time.process_time(), time.monotonic()
        number = self.recipe.epochs_before + epoch
        experience, wait_for_scores = self.epochs.gather(number)
        sampled = time.monotonic()
        metrics: Row = {}
        seconds = {"seconds/encode" if wait_for_scores is None else "seconds/sample": sampled - started}
        if wait_for_scores is not None:
            scores = wait_for_scores()
            seconds["seconds/wait_for_scores"] = time.monotonic() - sampled
            experience, metrics = self._with_advantages(experience, scores, number)
        clock = time.monotonic()
        updates = self.learner.learn(experience)
        self.learner.objective.after_epoch(epoch + 1)
        seconds["seconds/optimise"] = time.monotonic() - clock
        seconds["seconds/processor"] = time.process_time() - processor
        return {"epoch": epoch + 1.0, **metrics, **{f"update/{name}": v for name, v in updates.items()}}, seconds

    def _with_advantages(self, experience: Experience, scores: Scores, epoch: int) -> tuple[Experience, Row]:
        """Turn the scores of the images into advantages, NaN for an image without a score; metrics of the rewards.

        Raises:
            DataError: when too many samples could not be scored.
        """
        recipe, rewards = self.recipe, self.recipe.rewards
        groups = {name: values.reshape(-1, recipe.group_size) for name, values in scores.rewards.items()}
        weights = {name: term.weight for name, term in rewards.terms.items()}
        combined = aggregate(groups, weights, rewards.aggregator, rewards.tame_delta)
        result = advantages(combined, rewards.advantage_std)
        validate_failed_share(
            result.failed,
            combined.values.size,
            self.context.max_failed_share,
            f"epoch {epoch + 1}",
            self.scoring.failures(),
        )
        metrics = reward_metrics(scores, combined, result)
        if recipe.num_noise_steps is not None:
            metrics["first_noise_step"] = float(experience.buckets[0].sampling.noise_steps[0])
        kl_mask = None
        if (meter := recipe.hack_meter) is not None:
            judges = [groups[name] for name in (meter.trained, meter.held_out)]
            metrics[AGREEMENT] = score_agreement(*judges)
            if recipe.kl.where == "disagreement":
                kl_mask = disagreement(*judges).reshape(-1)
                metrics["disagreement"] = float(kl_mask.mean())
        values = np.where(np.isnan(combined.values), np.nan, result.values).reshape(-1)
        return experience.with_advantages(values, kl_mask), metrics


def _changes(evaluation: Evaluation) -> Row:
    """The changes since the start with their intervals, as they are logged: ``change/<size>/<metric>``."""
    rows = {name: change.row() for name, change in evaluation.changes.items()}
    return {f"change/{name}{end}": value for name, row in rows.items() for end, value in row.items()}
