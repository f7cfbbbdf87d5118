"""Editing policies before and after RL: equal instructions and pictures, equal noise, every evaluation size.

No policy was trained on the pictures. Differences are taken edit by edit and their intervals over source pictures,
for an English and a Chinese instruction about one picture stand or fall together.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks import viescore
from paco_core.benchmarks.cases import Cases
from paco_core.benchmarks.edit_answers import EditAnswers, answers
from paco_core.benchmarks.paired_changes import PairedChanges
from paco_core.benchmarks.paired_changes import summarise as paired
from paco_core.benchmarks.published import PublishedRow
from paco_core.benchmarks.results import validate_measures
from paco_core.benchmarks.statistics import METHODS
from paco_core.benchmarks.tables import ResultTable, interval, number, signed
from paco_core.data.records.edit_records import EditRecord, connected, of_part, read_edit_prompts
from paco_core.data.records.prompt_content import untrained
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.files import DataError
from paco_core.painting.painted import AFTER, BEFORE, Painted
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import QUESTIONS
from paco_core.tasks.edits import EDITS

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.grpo.scoring import Reference
    from paco_core.tasks.base import GoldMeasure, Read

ABOUT = ("picture", "task_type", "language")  # columns that say what was edited
MEASURES = {
    "gold_editing": "edited as asked, all else kept (gold)",
    "gold_reached": "asked trait reached (gold)",
    "gold_kept": "other traits kept (gold)",
    "editing": "reward",
    "edit_consistency": "P(Yes): the rest stayed",
    "edit_following": "P(Yes): the edit was made",
    **{name: f"VIEScore: {words}" for name, words in viescore.COLUMNS.items()},
}


def cases(read: Read, params: Params, trained: Collection[str]) -> Cases:
    """Editing prompts that were held back from training, of no reference image in ``trained``, with their pictures.

    Raises:
        DataError: when none is left.
    """
    numbers = params.gedit
    records, reference = read_edit_prompts(read(paths.EDIT_PROMPTS))
    chosen = unseen(untrained(records, trained), numbers.prompts, numbers.seed)
    if not chosen:
        raise DataError("every editing prompt was trained on, none is left to test; raise edit_prompts.unseen")
    return Cases(EDITS, chosen, numbers.seeds, numbers.steps, reference)


def measuring(root: Path, params: Params, judge: Path, cases: Cases) -> Callable[[Sequence[Painted]], pd.DataFrame]:
    """:func:`measure` by the merged reward model in ``judge``, and by the embedded world's truth where there is one.

    It raises a DataError when more than ``execution.serving.max_failed_share`` of the edits have no score.
    """
    reference, asked = cases.reference, answers(params, judge)
    assert reference is not None, "cases of edits have reference pictures"
    gold = EDITS.truth(params, root / str(params.annotations.model))

    def measured(painted: Sequence[Painted]) -> pd.DataFrame:
        table, names = measure(painted, reference, asked, gold), ["editing", *QUESTIONS]
        return validate_measures(table, names, params.serving.max_failed_share, asked.editing.causes)

    return measured


def unseen(records: Sequence[EditRecord], count: int, seed: int) -> list[EditRecord]:
    """A random choice of ``count`` editing prompts that were held back from training, the same for equal seeds."""
    held = sorted(of_part(records, "unseen"), key=lambda record: record.idx)
    return random.Random(seed).sample(held, min(count, len(held)))


def measure(
    painted: Sequence[Painted], reference: Reference, answers: EditAnswers, gold: GoldMeasure | None = None
) -> pd.DataFrame:
    """One row a picture: policy, size, when, prompt_id, seed, :data:`ABOUT`, and a column a measure (NaN = failed)."""
    records = [p.record for p in painted]
    images = [p.image for p in painted]
    batch = RewardBatch(records, [[i] for i in images], images, [reference(record) for record in records])
    found = answers.measure(batch) | ({} if gold is None else gold.measure(batch))
    edits = [record for record in records if isinstance(record, EditRecord)]
    group_of = connected(record.references for record in edits)
    return pd.DataFrame(
        {
            "policy": [p.policy for p in painted],
            "size": [p.size for p in painted],
            "when": [p.when for p in painted],
            "prompt_id": [record.idx for record in edits],
            "seed": [p.seed for p in painted],
            "picture": [group_of[record.references[0]] for record in edits],
            "task_type": [record.task_name for record in edits],
            "language": [record.language for record in edits],
            **{name: found[name] for name in MEASURES if name in found},
        }
    )


def intersection(painted: Sequence[Painted]) -> set[str]:
    """Ids of the prompts in the subset that all compared editors of GEdit-Bench answered."""
    return {p.record.idx for p in painted if (p.record.model_extra or {}).get("intersection")}


@dataclass(frozen=True)
class GEditResult:
    """Paired changes of every policy, and means by task type."""

    changes: PairedChanges
    by_task: Sequence[dict[str, Any]]  # policy, size, task_type, edits, and of each measure (before, after)
    pictures: int
    failed: int  # pictures that got no reward

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        more = {"pictures": self.pictures, "failed": self.failed, "by_task": list(self.by_task)}
        cleaned: dict[str, Any] = plain({**self.changes.as_dict(), **more})
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat figures for DVC and MLflow: ``<policy>.px<size>.<measure>.<before|after|change>``."""
        return {**self.changes.metrics(), "pictures": self.pictures, "failed": self.failed}

    def tables(self, published: Sequence[PublishedRow], judged: ResultTable | None = None) -> list[ResultTable]:
        """Before and after by policy and size, published rows beside, and by task type.

        Args:
            judged: the figures of VIEScore, where it was asked.
        """
        found = [] if judged is None else [judged]
        found.append(published_table(published))
        for policy, sizes in self.changes.changes.items():
            rows = [
                [f"{size} px: {MEASURES[name]}", interval(c.before), interval(c.after), signed(c.change)]
                for size, row in sizes.items()
                for name, c in row.items()
            ]
            note = (
                f"{self.changes.prompts} instructions about {self.pictures} pictures that no policy was trained on, "
                f"{len(self.changes.seeds)} seeds, {self.changes.steps} steps; 95% intervals over pictures "
                f"({METHODS}). {self.failed} edits could not be scored."
            )
            title = f"GEdit-Bench, {policy}: before and after"
            found.append(ResultTable(title, ["measure", "before", "after", "change"], rows, [note]))
        if self.by_task:
            names = [name for name in ("gold_editing", "editing") if name in self.by_task[0]]
            head = ["task type", "policy", "size", "edits", *(MEASURES[name] for name in names)]
            rows = [
                [t["task_type"], t["policy"], f"{t['size']} px", str(t["edits"]), *(_arrow(*t[n]) for n in names)]
                for t in self.by_task
            ]
            found.append(ResultTable("By task type", head, rows, detail=True))
        return found


def published_table(published: Sequence[PublishedRow]) -> ResultTable:
    """Rows from elsewhere, for orientation."""
    head = ["model", "semantic consistency", "perceptual quality", "overall"]
    rows = [[f"{r.model} (published)", *(number(v) for v in r.figures.values())] for r in published]
    note = (
        "Published on GEdit-Bench, English, full set, 0 to 10, judged by GPT-4.1 in the published words: figures that "
        "were asked otherwise, or on other pictures, cannot be compared with them."
    )
    return ResultTable("GEdit-Bench (published)", head, rows, [note, *{r.source for r in published}])


def _arrow(before: float, after: float) -> str:
    return f"{number(before)} → {number(after)}"


def summarise(
    table: pd.DataFrame, *, seeds: Sequence[int], steps: int, resamples: int = 2000, seed: int = 0
) -> GEditResult:
    """Paired figures of a table that :func:`measure` made; of an empty one, none.

    Raises:
        ValueError: when a picture before has no partner after, or the other way round.
    """
    if table.empty:
        return GEditResult(PairedChanges({}, 0, tuple(seeds), steps), [], 0, 0)
    changes = paired(table, seeds=seeds, steps=steps, group="picture", about=ABOUT, resamples=resamples, seed=seed)
    names = [name for name in MEASURES if name in table]
    by_task = []
    for cell, rows in table.groupby(["task_type", "policy", "size"], sort=True):
        sides = {when: part.set_index(["prompt_id", "seed"])[names] for when, part in rows.groupby("when")}
        common = sides[BEFORE].notna() & sides[AFTER].notna()
        by_task.append(
            {
                "task_type": str(cell[0]), "policy": str(cell[1]), "size": int(str(cell[2])), "edits": len(rows) // 2,
                **{name: [float(sides[when][name][common[name]].mean()) for when in (BEFORE, AFTER)] for name in names},
            }
        )  # fmt: skip
    return GEditResult(changes, by_task, table["picture"].nunique(), int(table["editing"].isna().sum()))
