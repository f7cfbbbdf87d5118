"""Report of a round: its reward model, its policy before and after, and drift, as rows of three tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks.paired_changes import Change, compare_changes, flat_changes
from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.tables import TABLES, ResultTable, interval, number, read_tables, signed
from paco_core.config.params_benchmarks import BEFORE as JUDGE_BEFORE
from paco_core.config.params_benchmarks import REWARD
from paco_core.io.files import DataError, read_json, read_table
from paco_core.models.metric_meanings import label_of
from paco_core.runtime.stage import skip_reason
from paco_core.sampling.generated_image import AFTER, BEFORE

if TYPE_CHECKING:
    from paco_core.config.params_benchmarks import T2isParams

#: That no judge of a round decides, so that rounds can be compared; those that a project measures.
MEASURES = ("gold_consistency", "gold_following", "clip_t")
JUDGES, POLICIES, DRIFT = (
    "The reward model of each round on its own images",
    "The policy of each round on held-out prompts",
    "Gains by two reward models in the training of each round",
)
SIZE = re.compile(r"eval\.(\d+)\.(.+)\.after")
Changes = Mapping[int, Mapping[str, Change]]


def changes(before: Path, after: Path, recipe: str, params: T2isParams) -> Changes:
    """The policy of the round before against that of this one, on the prompts and seeds that both painted, by size.

    Args:
        before, after: folders of the benchmark ``t2is`` of the two; each holds a policy after its training.

    Raises:
        DataError: when the two have no prompt in common.
    """
    case, sides = ["policy", "size", "prompt_id", "seed"], []
    for folder in (before, after):
        table = read_table(folder / "per_prompt.parquet", require=[*case, "when"])
        sides.append(table[(table["when"] == AFTER) & (table["policy"] == recipe)])
    names = [name for name in MEASURES if all(name in side for side in sides)]
    common = sides[0][case].merge(sides[1][case])
    if common.empty:
        raise DataError(f"{after}: no prompt in common with {before}; run `dvc repro` for both")
    paired = [
        common.merge(side[[*case, *names]]).assign(when=phase)
        for side, phase in zip(sides, (BEFORE, AFTER), strict=True)
    ]
    result = compare_changes(
        pd.concat(paired, ignore_index=True),
        seeds=params.seeds,
        steps=params.steps,
        resamples=params.bootstrap,
        seed=params.seed,
    )
    return result.changes[recipe]


def exam(folder: Path) -> Mapping[str, Any] | None:
    """The results of the benchmark ``consistency_rank`` in a round; None where no ranking was held out."""
    return None if skip_reason(folder) else read_json(folder / "results.json")


def training(metrics: Path) -> dict[str, float | None]:
    """The figures of a training's evaluations, ``eval.<size>.<measure>.<before|after|change>``."""
    metrics_by_name: dict[str, float | None] = read_json(metrics)
    return {name: value for name, value in metrics_by_name.items() if name.startswith("eval.")}


def added(before: Path, tables: Sequence[ResultTable]) -> list[ResultTable]:
    """The tables with the rows of the rounds before on top; ``before`` is the folder of their report.

    The report of the graph itself has none of these tables.
    """
    earlier = {table.title: table for table in read_tables(before)} if (before / TABLES).is_file() else {}
    return [
        replace(table, rows=[*earlier[table.title].rows, *table.rows]) if table.title in earlier else table
        for table in tables
    ]


@dataclass(frozen=True)
class RoundFigures:
    """The figures of one round."""

    number: str
    policy: Changes
    exam: Mapping[str, Any] | None
    training: Mapping[str, float | None]

    def tables(self) -> list[ResultTable]:
        return [self._judges(), self._policies(), self._drift()]

    def metrics(self) -> dict[str, float]:
        metrics = flat_changes(self.policy)
        if self.exam is not None:
            metrics["judge.rankings"] = self.exam["instances"]
            for judge in (REWARD, JUDGE_BEFORE):
                value = _estimate(self.exam["best_above_worst"][judge])
                metrics |= value.metrics(f"judge.{judge}.best_above_worst")
        return metrics

    def _judges(self) -> ResultTable:
        head = [
            "Round", "Rankings", "Prompts", "Best above worst", "Best above worst, previous model", "Accuracy",
            "Accuracy, previous model",
        ]  # fmt: skip
        if self.exam is None:
            cells = ["0", "0", *[number(None)] * 4]
        else:
            best, methods = self.exam["best_above_worst"], self.exam["methods"]
            cells = [str(self.exam["instances"]), str(self.exam["prompts"])]
            cells += [interval(_estimate(best[judge])) for judge in (REWARD, JUDGE_BEFORE)]
            cells += [interval(_estimate(methods[judge]["metrics"]["accuracy"])) for judge in (REWARD, JUDGE_BEFORE)]
        notes = [
            "Held-out rankings of images by the previous policy, drawn at random, without rankings that a reward model "
            "selected. Best above worst: the annotator's best candidate scores above the worst (chance: 0.5), with "
            "Wilson's 95% interval. Accuracy: with a bootstrap interval. Both intervals are over prompts."
        ]
        return ResultTable(JUDGES, head, [[self.number, *cells]], notes)

    def _policies(self) -> ResultTable:
        rows = []
        for size, changes_by_name in self.policy.items():
            for name, change in changes_by_name.items():
                cells = [label_of(name), interval(change.before), interval(change.after), signed(change.change)]
                rows.append([self.number, f"{size} px", *cells])
        for size, name in self._evaluated():
            if name == "consistency":
                before, after = (number(self._value(size, name, phase)) for phase in ("before", "after"))
                change_text = self._change(size, name)
                rows.append([self.number, f"{size} px", "Score by its reward model", before, after, change_text])
        notes = [
            "Before: the previous policy. After: the policy of this round, on the same prompts and noise. 95% "
            "intervals over prompts. The score by its reward model comes from the training's evaluations, on fewer "
            "prompts. Each round has its own reward model, so you cannot compare this score across rounds."
        ]
        return ResultTable(POLICIES, ["Round", "Size", "Measure", "Before", "After", "Change"], rows, notes)

    def _drift(self) -> ResultTable:
        rows = [
            [self.number, f"{size} px", *(self._after(size, key) for key in ("trained_gain", "held_out_gain", "drift"))]
            for size, name in self._evaluated()
            if name == "drift"
        ] or [[self.number, "–", "–", "–", "no hack_meter in the recipe"]]
        head = ["Round", "Size", "By the training reward model", "By the held-out reward model", "Drift"]
        notes = [
            "Change since the start of the round's training, in standard deviations of each model's scores at the "
            "start, with 95% intervals over the prompts of its evaluations."
        ]
        return ResultTable(DRIFT, head, rows, notes)

    def _evaluated(self) -> list[tuple[int, str]]:
        return [(int(match[1]), match[2]) for name in self.training if (match := SIZE.fullmatch(name))]

    def _value(self, size: int, name: str, phase: str) -> float | None:
        return self.training.get(f"eval.{size}.{name}.{phase}")

    def _change(self, size: int, name: str) -> str:
        change, low, high = (self._value(size, name, f"change{end}") for end in ("", "_low", "_high"))
        return _signed(change, low, high)

    def _after(self, size: int, name: str) -> str:
        return _signed(*(self._value(size, f"{name}{end}", "after") for end in ("", "_low", "_high")))


def _signed(mean: float | None, low: float | None, high: float | None) -> str:
    if mean is None:
        return number(None)
    ends = [number(None) if end is None else f"{end:+.3f}" for end in (low, high)]
    return f"{mean:+.3f} ({' to '.join(ends)})"


def _estimate(stored: Mapping[str, Any]) -> Estimate:
    """An estimate as JSON keeps it, null for NaN."""
    values: dict[str, Any] = {name: float("nan") if value is None else value for name, value in stored.items()}
    return Estimate(**values)
