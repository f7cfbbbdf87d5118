"""What a training reports while it runs, and what came out of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paco_core.grpo.figures import Row, gaps
from paco_core.grpo.scoring import PANEL_DIVERSITY, REFERENCE_DISTANCE

if TYPE_CHECKING:
    from PIL.Image import Image

LAST_UPDATE = ("update/ratio_gap", "update/first_clip_fraction")


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
    cut: Mapping[str, int] = field(default_factory=dict)  # how many prompts were longer than the policy reads
    seconds: Mapping[str, float] = field(default_factory=dict)  # of all epochs, by part: ``seconds/sample``
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # of changes, 95%: lower and upper end

    def changes(self) -> Row:
        """``change/64/x`` of each measure with its interval, ``_low`` and ``_high``, as MLflow keeps them."""
        row: Row = {}
        for name, (low, high) in self.intervals.items():
            key = f"change/{name}"
            row |= {key: self.after[name] - self.before.get(name, math.nan), f"{key}_low": low, f"{key}_high": high}
        return row

    def metrics(self) -> Row:
        """Flat figures: each evaluation and gap before and after, its change, and the last epoch's health.

        ``eval.64.x`` is ``x`` on the few prompts of an evaluation, with the 95% interval of its change over prompts;
        benchmarks measure it on more.
        """
        figures: Row = {**self.cut, "epochs": self.rows[-1]["epoch"], "stopped_early": float(self.stopped is not None)}
        after = self.after | {f"gap/{name}": value for name, value in gaps(self.after, self.sizes).items()}
        begun = self.before | {f"gap/{name}": value for name, value in gaps(self.before, self.sizes).items()}
        for name, value in after.items():
            key = f"{'' if name.startswith('gap/') else 'eval.'}{name.replace('/', '.')}"
            before = begun.get(name, math.nan)
            figures |= {f"{key}.before": before, f"{key}.after": value, f"{key}.change": value - before}
            if name in self.intervals:
                figures[f"{key}.change_low"], figures[f"{key}.change_high"] = self.intervals[name]
        for name in ("reward_ratio", PANEL_DIVERSITY, REFERENCE_DISTANCE, *LAST_UPDATE):
            if name in self.rows[-1]:
                figures[name.replace("/", ".")] = self.rows[-1][name]
        return figures
