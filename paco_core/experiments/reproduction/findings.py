"""What came out, said in words that follow from the intervals: held, not held, or not distinguishable."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate
from paco_core.experiments.reproduction.summary import CellChange, RecipeSummary, VariantRow
from paco_core.tasks.sets import SETS

LIFT = 0.15  # asked of a recipe for sets; of one for edits, that the interval lies above zero
LOSS = 0.03  # of following the prompt or instruction, at most
HELD, NOT_HELD, OPEN = "held", "not held", "inconclusive"


@dataclass(frozen=True)
class Finding:
    """A claim, whether it held here, and the figures that say so."""

    claim: str
    verdict: str
    evidence: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def findings(summary: RecipeSummary) -> list[Finding]:
    """The claims about a recipe that its finished variants allow to judge."""
    plain = summary.plain
    if plain is None:
        return []
    goal, size = _goal(summary), summary.sizes[-1]
    found = [_lift(summary, plain, s) for s in summary.sizes if s in (summary.train_size, size)]
    if (high := summary.row("no_decoupling")) is not None:
        found += [_same_quality(high, goal, size, summary.train_size), _less_time(plain, high)]
    if (untamed := summary.row("no_log_tame")) is not None:
        found += [_ratio(plain, untamed), _diversity(untamed, size)]
    return found


def _goal(summary: RecipeSummary) -> str:
    gold = summary.task.gold.goal
    return gold if gold in summary.measures else summary.task.judged.goal


def _follows(summary: RecipeSummary) -> str | None:
    """The measure of doing what was asked, which must not pay for the goal."""
    known = (summary.task.gold.follows, summary.task.judged.follows)
    return next((name for name in known if name in summary.measures), None)


def signed(found: Estimate) -> str:
    if math.isnan(found.mean):
        return "–"
    return f"{found.mean:+.3f}" + ("" if math.isnan(found.low) else f" ({found.low:+.3f} to {found.high:+.3f})")


def _lift(summary: RecipeSummary, plain: VariantRow, size: int) -> Finding:
    goal, follows, far = _goal(summary), _follows(summary), summary.task is SETS
    change = plain.measures[size][goal].change
    where = f"at {size} px" + (", its training size" if size == summary.train_size else "")
    claim = f"{summary.recipe} lifts {_words(goal)} {where}" + (f", by {LIFT:.2f} or more" if far else "")
    evidence = f"{_words(goal)} {signed(change)}"
    verdict, why = _risen_far(change) if far else _risen(change)
    if follows is not None:
        claim += f", and costs no more than {LOSS:.2f} of {_words(follows)}"
        cost = plain.measures[size][follows].change
        evidence += f", {_words(follows)} {signed(cost)}"
        if cost.mean < -LOSS:
            verdict, why = NOT_HELD, [*why, f"{_words(follows)} fell by more than {LOSS:.2f}"]
    return Finding(claim, verdict, "; ".join([evidence, *why]))


def _risen_far(change: Estimate) -> tuple[str, list[str]]:
    return (HELD, []) if change.mean >= LIFT else (NOT_HELD, [f"less than {LIFT:.2f}"])


def _risen(change: Estimate) -> tuple[str, list[str]]:
    """Up for certain, not up, or not distinguishable: by the interval."""
    if change.low > 0:
        return HELD, []
    if change.mean <= 0:
        return NOT_HELD, ["it did not rise"]
    return OPEN, ["the interval reaches down to no change"]


def _same_quality(high: VariantRow, goal: str, size: int, low: int) -> Finding:
    claim = (
        f"Training at {low} px gives up no {_words(goal)} at {size} px against training there (paper: .493 and .452)"
    )
    over = high.measures[size][goal].over_plain
    if over is None:
        return Finding(claim, OPEN, "the two share no training seed")
    verdict = NOT_HELD if over.low > 0 else HELD if over.high <= 0 else OPEN
    return Finding(claim, verdict, f"trained at {size} px less the full recipe: {signed(over)}")


def _less_time(full: VariantRow, high: VariantRow) -> Finding:
    low, large = (float(np.mean(row.figures("seconds"))) for row in (full, high))
    text = f"{low:.0f} s and {large:.0f} s a training: {large / low:.2f} x"
    claim = "The low training size saves time (paper: 6.0 h for 12.0 h, 2 x)"
    return Finding(claim, HELD if large > low else NOT_HELD, text)


def _ratio(full: VariantRow, plain: VariantRow) -> Finding:
    tamed, summed = full.figures("reward_ratio"), plain.figures("reward_ratio")
    claim = "Log-taming keeps the ratio of the rewards lower (paper: below 1.8, above 2.5 without)"
    evidence = f"consistency / CLIP-T at the end: {_range(tamed)} with it, {_range(summed)} without"
    apart = max(tamed) < min(summed) or min(tamed) > max(summed)
    return Finding(claim, OPEN if not apart else HELD if max(tamed) < min(summed) else NOT_HELD, evidence)


def _diversity(plain: VariantRow, size: int) -> Finding:
    claim = "Without log-taming panels become alike (paper: nearly identical)"
    change: CellChange = plain.measures[size]["panel_diversity"]
    if change.over_plain is None:
        return Finding(claim, OPEN, "the two share no training seed")
    over = change.over_plain
    verdict = HELD if over.high < 0 else NOT_HELD if over.low > 0 else OPEN
    evidence = f"panel diversity {change.after.mean:.3f}, less the full recipe's: {signed(over)}"
    return Finding(claim, verdict, evidence)


def _range(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f} over seeds)"


def _words(measure: str) -> str:
    return measure.replace("_", " ")
