"""PaCo-GRPO: sample, score, give advantages, optimise, evaluate; epoch after epoch, resumable.

Where pictures were ranked before, an epoch has pairs of these instead of samples (:mod:`.offline`).
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.grpo.early_stop import stops
from paco_core.grpo.evaluation import Evaluation, Evaluator, beside
from paco_core.grpo.figures import (
    Row,
    evaluated,
    evaluation_row,
    gap_changes,
    note,
    picture_names,
    save_pictures,
    save_references,
)
from paco_core.grpo.hack_meter import Start, measure, plain_scores, read_scores, write_scores
from paco_core.grpo.intervals import paired_changes
from paco_core.grpo.learner import Learner
from paco_core.grpo.online import Epochs
from paco_core.grpo.outcome import Outcome, Reports
from paco_core.io.atomic import atomic
from paco_core.io.contact_sheet import tiled
from paco_core.runtime.checkpoints import alone
from paco_core.training.checkpoint import Checkpoint, latest, save
from paco_core.training.log import LOG, write_log
from paco_core.training.optimizers import NotFinite

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import PolicyRecipe
    from paco_core.grpo.prompt_split import PromptSplit
    from paco_core.training.processes import Processes

SHEET_PICTURES = 16
SHEET_COLUMNS = 8
BEFORE = "samples-before"  # beside the checkpoints: a run that goes on does not paint them again
BEFORE_SCORES = "scores-before.json"


@dataclass(frozen=True)
class Trainer:
    """Trains a policy, epoch after epoch; :func:`paco_core.grpo.recipe.assemble` puts its parts together.

    Attributes:
        key: names what is trained by content; checkpoints of another key are not gone on with.
        card: the model card of evaluations before and after, and of the number of epochs.
        cut: how many prompts were longer than the policy reads, as a metric.
    """

    recipe: PolicyRecipe
    split: PromptSplit
    learner: Learner
    epochs: Epochs
    evaluator: Evaluator
    key: str
    card: Callable[[Row, Row, int], str]
    reports: Reports
    cut: Mapping[str, int]

    @property
    def processes(self) -> Processes:
        return self.learner.processes

    def run(self, out: Path, checkpoints: Path) -> Outcome:
        """Train into ``out`` (adapter/, training_log.csv, samples/), going on where a run of this key left off.

        Args:
            checkpoints: where those of this training and of others like it lie, a folder a key.

        Raises:
            DataError: when too many samples could not be scored.
            RuntimeError: when a gradient is not finite, or the training pass does not match the sampling pass.
        """
        store = checkpoints / self.key
        with self.epochs.open(store), self.evaluator.scoring, alone(store) if self.processes.main else nullcontext():
            self.processes.wait()  # until the first one is at it, no other reads where to go on from
            return self._epochs(out, store)

    def _epochs(self, out: Path, store: Path) -> Outcome:
        found = latest(store, self.key, self.recipe.epochs, ("stopped", "rows", "optimizer_steps"))
        rows: list[Row] = []
        spent: Row = {}
        start, stopped = 0, None
        if found is None or not (store / BEFORE).is_dir():
            before = self._evaluate(0, None)
            rows.append({"epoch": 0.0, **self._report(before, 0)})
            if self.processes.main:
                write_scores(store / BEFORE_SCORES, before.scores)
                save_pictures(store / BEFORE, before, self.split.unseen, self.recipe.eval_seeds)
        if found is not None:
            start, stopped = found.done, found.notes["stopped"]
            rows = [{k: math.nan if v is None else v for k, v in row.items()} for row in found.notes["rows"]]
            spent = dict(found.notes["seconds"])
            self.learner.restore(found.tensors, found.notes["optimizer_steps"])
            self.reports.say(f"resumes after epoch {start} of {self.recipe.epochs}")
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
            stopped = self._one_epoch(epoch, rows, spent, store)
            done = epoch + 1
            if done % self.recipe.checkpoint_every == 0 or done == self.recipe.epochs or stopped:
                self._save(store, done, {"rows": _plain(rows), "seconds": spent, "stopped": stopped})
        if stopped:
            self.reports.say(f"stopped after epoch {int(rows[-1]['epoch'])} of {self.recipe.epochs}: {stopped}")
        return self._finish(out, store, rows, spent, start, stopped)

    def _one_epoch(self, epoch: int, rows: list[Row], spent: Row, store: Path) -> str | None:
        """Train, evaluate where it is due, log; why to stop, or None."""
        rule, done = self.recipe.early_stop, epoch + 1
        try:
            row, seconds = self._epoch(epoch)
        except NotFinite as error:
            if rule is None or rule.nan == "error":
                raise
            rows.append({"epoch": float(done)})
            return str(error)
        for name, value in seconds.items():
            spent[name] = spent.get(name, 0.0) + value
        changes: Row = {}
        if done % self.recipe.eval_every == 0 and done < self.recipe.epochs:
            changes = self._evaluate_midway(done, row, store)
        rows.append(row)
        if self.processes.main:
            self.reports.metrics({k: v for k, v in {**row, **changes, **seconds}.items() if k != "epoch"}, done)
            self.reports.epoch(done, note(row))
        weights = {name: term.weight for name, term in self.recipe.rewards.terms.items()}
        return None if rule is None else stops(rows, weights, rule, self.recipe.hack_meter)

    def _evaluate_midway(self, epoch: int, row: Row, store: Path) -> Row:
        """Evaluate, add the figures to the row of the epoch, and return the changes since the start."""
        with self.learner.ema.applied(self.learner.parameters):
            evaluation = self._evaluate(epoch, store)
        row |= evaluation_row(evaluation, self.recipe.eval_sizes)
        return _changes(evaluation)

    def _save(self, store: Path, done: int, notes: dict[str, object]) -> None:
        tensors = self.learner.tensors()
        if self.processes.main:
            kept = Checkpoint(self.key, done, tensors, {**notes, "optimizer_steps": self.learner.ema.steps})
            save(store, kept, keep=self.recipe.keep_checkpoints)

    def _finish(self, out: Path, store: Path, rows: list[Row], spent: Row, start: int, stopped: str | None) -> Outcome:
        with self.learner.ema.applied(self.learner.parameters):
            last = int(rows[-1]["epoch"])
            after = self._evaluate(last, store)
            rows[-1] |= self._report(after, last)
            start_scores = read_scores(store / BEFORE_SCORES) if self.processes.main else {}
            outcome = Outcome(
                evaluated(rows[0]), dict(after.metrics), rows, start, stopped, self.cut, spent, after.changes,
                gap_changes(start_scores, after.scores, self.recipe.eval_sizes), self._scores(start_scores, after),
            )  # fmt: skip
            if self.processes.main:
                with atomic(out / "adapter", replace=True) as part:
                    self.learner.policy.save_adapter(part)
                    card = self.card(outcome.before, outcome.after, last)
                    (part / "README.md").write_text(card, encoding="utf-8")
        if self.processes.main:
            samples = out / "samples"
            save_pictures(samples / "after", after, self.split.unseen, self.recipe.eval_seeds)
            with atomic(samples / "before", replace=True) as part:
                shutil.copytree(store / BEFORE, part)
            if self.split.reference is not None:
                save_references(samples / "reference", self.split.unseen, self.split.reference)
            write_log(out / LOG, rows)
        self.processes.wait()
        return outcome

    def _evaluate(self, epoch: int, store: Path | None) -> Evaluation:
        """An evaluation, with the hack meter where there is one; ``store`` holds the first one, None: this is it."""
        evaluation = self.evaluator.evaluate()
        owners = [record for record in self.split.unseen for _ in self.recipe.eval_seeds]
        if (meter := self.recipe.hack_meter) is not None:
            start = Start.from_evaluation(evaluation) if store is None else self._start(store)
            found = measure(meter, evaluation, start, owners, self.split.reference)
            evaluation = replace(evaluation, metrics=evaluation.metrics | found)
        if self.processes.main:
            start_scores = evaluation.scores if store is None else read_scores(store / BEFORE_SCORES)
            evaluation = replace(evaluation, changes=paired_changes(start_scores, evaluation.scores))
            for side, pictures in evaluation.pictures.items():
                shown = list(zip(owners, pictures, strict=True))[:SHEET_PICTURES]
                cells = [p if self.split.reference is None else beside(self.split.reference(r), p) for r, p in shown]
                self.reports.picture(tiled(cells, SHEET_COLUMNS), f"unseen_{side}px", epoch)
        return evaluation

    def _start(self, store: Path) -> Start:
        names = picture_names(self.split.unseen, self.recipe.eval_seeds)
        return Start.read(store / BEFORE_SCORES, store / BEFORE, names, self.recipe.eval_sizes)

    def _scores(self, before: Mapping[str, np.ndarray], after: Evaluation) -> dict[str, object]:
        """The scores of each image before and after training, as JSON, with what the rows and columns are."""
        rows, columns = [record.idx for record in self.split.unseen], list(self.recipe.eval_seeds)
        scores = {"before": plain_scores(before), "after": plain_scores(after.scores)}
        return {"prompts": rows, "seeds": columns, **scores}

    def _report(self, evaluation: Evaluation, epoch: int) -> Row:
        row = evaluation_row(evaluation, self.recipe.eval_sizes)
        if self.processes.main:
            self.reports.metrics({**row, **_changes(evaluation)}, epoch)
        return row

    def _epoch(self, epoch: int) -> tuple[Row, Row]:
        """Gather what is learnt from, optimise; the figures of one epoch, and apart from them its seconds.

        Seconds are logged, and summed up in checkpoints, but are in no out: equal inputs make an equal one.
        """
        processor = time.process_time()
        experience, figures, seconds = self.epochs.gather(self.recipe.epochs_before + epoch)
        clock = time.monotonic()
        health = self.learner.learn(experience)
        self.learner.objective.after_epoch(epoch + 1)
        updates = {f"update/{name}": value for name, value in health.figures().items()}
        seconds["seconds/optimise"] = time.monotonic() - clock
        seconds["seconds/processor"] = time.process_time() - processor
        return {"epoch": epoch + 1.0, **figures, **updates}, seconds


def _changes(evaluation: Evaluation) -> Row:
    """The changes since the start, as they are logged: ``change/<size>/<metric>``."""
    return {f"change/{name}": change.mean for name, change in evaluation.changes.items()}


def _plain(rows: list[Row]) -> list[dict[str, float | None]]:
    """Rows as JSON holds them: NaN is None."""
    return [{k: None if math.isnan(v) else v for k, v in row.items()} for row in rows]
