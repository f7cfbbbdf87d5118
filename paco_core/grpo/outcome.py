"""Outcome of a training: evaluations before and after, the rows of its log, and the metrics that it reports."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paco_core.config.measures import PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.grpo.metrics import EvaluationChange, Row

LAST_UPDATE = ("update/ratio_gap", "update/first_clip_fraction")


@dataclass(frozen=True)
class Outcome:
    """Evaluations with the weights before and after training, and one row of figures an epoch."""

    before: Row
    after: Row
    rows: list[Row]
    resumed_at: int
    stopped: str | None = None  # why training ended before its last epoch
    truncated: Mapping[str, int] = field(default_factory=dict)  # number of prompts longer than the text window
    seconds: Mapping[str, float] = field(default_factory=dict)  # of all epochs, by part: ``seconds/sample``
    changes: Mapping[str, EvaluationChange] = field(
        default_factory=dict
    )  # over the prompts with scores before and after
    gap_changes: Row = field(default_factory=dict)
    scores: Mapping[str, Any] = field(default_factory=dict)  # of each image before and after, as JSON

    def metrics(self) -> Row:
        """Flat figures: each evaluation and gap before and after, its change, and the last epoch's health.

        ``eval.64.x`` is ``x`` on the few prompts of an evaluation. Its change is over the prompts that have all scores
        before and after, with its 95% interval; ``change_missing`` counts the others. Benchmarks measure more prompts.
        """
        figures: Row = {
            **self.truncated,
            "epochs": self.rows[-1]["epoch"],
            "stopped_early": float(self.stopped is not None),
        }
        begun, after = (
            evaluation | {name: value for name, value in row.items() if name.startswith("gap/")}
            for evaluation, row in ((self.before, self.rows[0]), (self.after, self.rows[-1]))
        )
        for name, value in after.items():
            key = f"{'' if name.startswith('gap/') else 'eval.'}{name.replace('/', '.')}"
            before = begun.get(name, math.nan)
            change = self.gap_changes.get(name, value - before)
            figures |= {f"{key}.before": before, f"{key}.after": value, f"{key}.change": change}
            if name in self.changes:
                figures |= {f"{key}.change{end}": number for end, number in self.changes[name].row().items()}
        for name in ("reward_ratio", PANEL_DIVERSITY, REFERENCE_DISTANCE, *LAST_UPDATE):
            if name in self.rows[-1]:
                figures[name.replace("/", ".")] = self.rows[-1][name]
        return figures
