"""Headline metrics of a run: at most ten rows for the terminal, and one number per row for DVC."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.measures import COPIES
from paco_core.config.params import Params
from paco_core.io import paths
from paco_core.io.text_table import text_table
from paco_core.models.metric_meanings import CHARACTER_METRICS, GROUND_TRUTH, METRICS
from paco_core.report.charts import read_log
from paco_core.report.html import UNKNOWN
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.report.html import Number

MOST_ROWS = 10
REWARD = "reward"
DRIFT = "drift"
HEAD = ("model", "metric", "before", "after", "change", "95% interval")
NOTES = (
    "before: the base model; after: the trained model, on the same held-out data and seeds",
    "policies are measured at their largest evaluation size",
)
GROUND_TRUTH_NOTE = "the recognizer of the demo world computes: {labels}"


@dataclass(frozen=True)
class HeadlineRow:
    """One metric of one model before and after training, with the paired change and its 95% interval.

    Attributes:
        model: ``reward``, or a recipe.
        metric: its name in the metrics files.
        priority: of several rows, those with the lowest number remain in the table.
    """

    model: str
    metric: str
    before: Number
    after: Number
    change: Number
    low: Number
    high: Number
    priority: int = 0

    @property
    def key(self) -> str:
        """The name of the number after training in the file of DVC's metrics."""
        return f"{self.model}.{self.metric.removeprefix(GROUND_TRUTH)}"


def headline(root: Path, params: Params, figures: Mapping[str, Number]) -> list[HeadlineRow]:
    """The rows of what was measured, the reward model first, then the recipes in the order of ``params.yaml``.

    Args:
        figures: numbers of the report by dotted key.
    """
    rank = paths.CONSISTENCY_RANK.name
    ends = {
        "before": f"{rank}.methods.base.metrics.accuracy.mean",
        "after": f"{rank}.methods.reward.metrics.accuracy.mean",
        **{end: f"{rank}.comparisons.reward - base.accuracy.{key}" for end, key in _CHANGE.items()},
    }
    rows = [_row(REWARD, "accuracy", figures, ends)]
    for name, recipe in params.policies.recipes.items():
        rows += _policy_rows(root, params, name, recipe, figures)
    measured = [row for row in rows if row.after is not None]
    first = sorted(measured, key=lambda row: row.priority)[:MOST_ROWS]
    return [row for row in measured if row in first]


_CHANGE = {"change": "mean", "low": "low", "high": "high"}


def _policy_rows(
    root: Path, params: Params, name: str, recipe: PolicyRecipe, figures: Mapping[str, Number]
) -> Iterator[HeadlineRow]:
    """The metrics of a policy at its largest evaluation size.

    Identity and copies if its stories have characters, the goal, the constraint, CLIP's text match, and the hack meter.
    """
    task, size = task_of(recipe), max(recipe.eval_sizes)
    success = task.success(params.world)
    identity = CHARACTER_METRICS[0] if params.world == "storybook" else "characters"
    metrics = ((0, identity), (0, COPIES), (0, success.goal), (2, success.constraint), (3, "clip_t"))
    for priority, metric in metrics:
        if metric is None or (priority == 3 and metric == success.constraint):
            continue
        key = f"{task.benchmark}.policies.{name}.{size}.{metric}"
        ends = {
            "before": f"{key}.before.mean",
            "after": f"{key}.after.mean",
            **{end: f"{key}.change.{value}" for end, value in _CHANGE.items()},
        }
        yield _row(name, metric, figures, ends, priority)
    log = read_log(root / paths.POLICIES / name / "training_log.csv")
    column = f"eval/{size}/{DRIFT}"
    if log is not None and column in log.columns:
        drift, low, high = (_finite(log[f"{column}{end}"].iloc[-1]) for end in ("", "_low", "_high"))
        yield HeadlineRow(name, DRIFT, None, drift, drift, low, high, priority=1)


def _row(
    model: str, metric: str, figures: Mapping[str, Number], ends: Mapping[str, str], priority: int = 0
) -> HeadlineRow:
    return HeadlineRow(model, metric, **{end: figures.get(key) for end, key in ends.items()}, priority=priority)


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def headline_metrics(rows: Sequence[HeadlineRow]) -> dict[str, float]:
    """The number after training of each row by its short key: what DVC's metrics contain."""
    return {row.key: row.after for row in rows if row.after is not None}


def headline_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines of the table for a terminal of 80 columns, with notes.

    Args:
        rows: :class:`HeadlineRow` as ``metrics.json`` contains them.
    """
    cells = [
        (
            row["model"],
            METRICS[row["metric"]].label,
            _cell(row["before"], ".3f"),
            _cell(row["after"], ".3f"),
            _cell(row["change"], "+.3f"),
            _cell(row["low"], "+.3f") + (f" to {row['high']:+.3f}" if row["high"] is not None else ""),
        )
        for row in rows
    ]
    names = [METRICS[row["metric"]].label.lower() for row in rows if row["metric"].startswith(GROUND_TRUTH)]
    truth = [GROUND_TRUTH_NOTE.format(labels=", ".join(dict.fromkeys(names)))] if names else []
    return [*text_table(cells, HEAD, right=(2, 3, 4)), *NOTES, *truth]


def _cell(value: Number, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)
