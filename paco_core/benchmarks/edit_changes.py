"""GEdit-Bench: paired changes of editing policies, by task type, and as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from paco_core.benchmarks.paired_changes import PairedChanges, compare_changes
from paco_core.benchmarks.statistics import METHODS
from paco_core.benchmarks.tables import ResultTable, interval, number, signed
from paco_core.io.answer import to_jsonable
from paco_core.models.metric_meanings import label_of
from paco_core.sampling.generated_image import AFTER, BEFORE

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.published import PublishedRow

#: Columns that describe an edit.
EDIT_COLUMNS = ("picture", "task_type", "language")
VIESCORE_COLUMNS = {"sc": "semantic consistency", "pq": "perceptual quality", "overall": "overall"}
#: Metrics of an edit by their labels, in the order of the tables.
EDIT_MEASURES = {
    **{
        name: label_of(name)
        for name in ("gold_editing", "gold_reached", "gold_kept", "editing", "edit_consistency", "edit_following")
    },
    **{name: f"VIEScore: {words}" for name, words in VIESCORE_COLUMNS.items()},
}


@dataclass(frozen=True)
class EditChanges:
    """Paired changes of editing policies, and means by task type."""

    changes: PairedChanges
    by_task: Sequence[dict[str, Any]]  # policy, size, task_type, edits, and of each measure [before, after]
    pictures: int
    failed: int  # images without a reward

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        counts = {"pictures": self.pictures, "failed": self.failed, "by_task": list(self.by_task)}
        cleaned: dict[str, Any] = to_jsonable({**self.changes.as_dict(), **counts})
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat metrics for DVC and MLflow: ``<policy>.px<size>.<measure>.<before|after|change>``."""
        return {**self.changes.metrics(), "pictures": self.pictures, "failed": self.failed}

    def tables(self, published: Sequence[PublishedRow], viescore: ResultTable | None = None) -> list[ResultTable]:
        """Before and after by policy and size, the published rows, and means by task type."""
        tables = [] if viescore is None else [viescore]
        tables.append(published_edits_table(published))
        for policy, sizes in self.changes.changes.items():
            rows = [
                [f"{size} px: {EDIT_MEASURES[name]}", interval(c.before), interval(c.after), signed(c.change)]
                for size, row in sizes.items()
                for name, c in row.items()
            ]
            note = (
                f"{self.changes.prompts} instructions about {self.pictures} pictures that no policy was trained on, "
                f"{len(self.changes.seeds)} seeds, {self.changes.steps} steps; 95% intervals over pictures "
                f"({METHODS}). {self.failed} edits could not be scored."
            )
            title = f"GEdit-Bench, {policy}: before and after"
            tables.append(ResultTable(title, ["measure", "before", "after", "change"], rows, [note]))
        if self.by_task:
            names = [name for name in ("gold_editing", "editing") if name in self.by_task[0]]
            head = ["task type", "policy", "size", "edits", *(EDIT_MEASURES[name] for name in names)]
            rows = [
                [
                    task["task_type"], task["policy"], f"{task['size']} px", str(task["edits"]),
                    *(" → ".join(map(number, task[name])) for name in names),
                ]
                for task in self.by_task
            ]  # fmt: skip
            tables.append(ResultTable("By task type", head, rows, detail=True))
        return tables


def published_edits_table(published: Sequence[PublishedRow]) -> ResultTable:
    """Published rows of GEdit-Bench, for orientation."""
    head = ["model", "semantic consistency", "perceptual quality", "overall"]
    rows = [[f"{r.model} (published)", *(number(v) for v in r.figures.values())] for r in published]
    note = (
        "Published on GEdit-Bench, English, full set, 0 to 10, judged by GPT-4.1 in the published words: figures that "
        "were asked otherwise, or on other pictures, cannot be compared with them."
    )
    return ResultTable("GEdit-Bench (published)", head, rows, [note, *{r.source for r in published}])


def compare_edits(
    table: pd.DataFrame, *, seeds: Sequence[int], steps: int, resamples: int = 2000, seed: int = 0
) -> EditChanges:
    """Paired changes of a table of edits; of an empty one, none.

    Raises:
        ValueError: when an image before has no partner after, or the other way round.
    """
    if table.empty:
        return EditChanges(PairedChanges({}, 0, tuple(seeds), steps), [], 0, 0)
    changes = compare_changes(
        table, seeds=seeds, steps=steps, group="picture", columns=EDIT_COLUMNS, resamples=resamples, seed=seed
    )
    names = [name for name in EDIT_MEASURES if name in table]
    by_task = []
    for cell, rows in table.groupby(["task_type", "policy", "size"], sort=True):
        sides = {phase: part.set_index(["prompt_id", "seed"])[names] for phase, part in rows.groupby("when")}
        common = sides[BEFORE].notna() & sides[AFTER].notna()
        by_task.append(
            {
                "task_type": str(cell[0]), "policy": str(cell[1]), "size": int(str(cell[2])), "edits": len(rows) // 2,
                **{
                    name: [float(sides[phase][name][common[name]].mean()) for phase in (BEFORE, AFTER)]
                    for name in names
                },
            }
        )  # fmt: skip
    return EditChanges(changes, by_task, table["picture"].nunique(), int(table["editing"].isna().sum()))
