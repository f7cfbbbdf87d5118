"""What came out, said in words that follow from the intervals: held, not held, or not distinguishable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paco_core.benchmarks.tables import signed
from paco_core.experiments.reproduction.summary import RecipeSummary
from paco_core.tasks.sets import SETS

LIFT = 0.15  # asked of a recipe for sets; of one for edits, that the interval lies above zero
LOSS = 0.03  # of following the prompt or instruction, at most
HELD, NOT_HELD, OPEN = "held", "not held", "inconclusive"
NO_COMMON_SEED = "the two share no training seed"


@dataclass(frozen=True)
class Finding:
    """A claim, whether it held here, and the figures that say so."""

    claim: str
    verdict: str
    evidence: str


def findings(summary: RecipeSummary) -> list[Finding]:
    """The claims about a recipe that its finished variants allow to judge."""
    if summary.plain is None:
        return []
    found = [_lift(summary, size) for size in summary.sizes if size in (summary.train_size, summary.sizes[-1])]
    if "no_decoupling" in summary.variants:
        found += [_same_quality(summary), _less_time(summary)]
    if "no_log_tame" in summary.variants:
        found += [_ratio(summary), _diversity(summary)]
    return found


def _verdict(held: bool, not_held: bool) -> str:
    return HELD if held else NOT_HELD if not_held else OPEN


def _goal(summary: RecipeSummary) -> str:
    gold = summary.task.gold.goal
    return gold if gold in summary.measures else summary.task.judged.goal


def _lift(summary: RecipeSummary, size: int) -> Finding:
    """Of sets the change is to reach :data:`LIFT`; of edits the interval decides."""
    goal, far = _goal(summary), summary.task is SETS
    measures = summary.variants[str(summary.plain)].measures[size]
    change = measures[goal].change
    where = f"at {size} px" + (", its training size" if size == summary.train_size else "")
    claim = f"{summary.recipe} lifts {_words(goal)} {where}" + (f", by {LIFT:.2f} or more" if far else "")
    evidence = f"{_words(goal)} {signed(change)}"
    if far:
        verdict, why = _verdict(change.mean >= LIFT, True), f"less than {LIFT:.2f}"
    else:
        verdict = _verdict(change.low > 0, change.mean <= 0)
        why = "it did not rise" if verdict == NOT_HELD else "the interval reaches down to no change"
    reasons = [] if verdict == HELD else [why]
    # What doing as asked is measured by: it must not pay for the goal.
    follows = next((n for n in (summary.task.gold.follows, summary.task.judged.follows) if n in summary.measures), None)
    if follows is not None:
        claim += f", and costs no more than {LOSS:.2f} of {_words(follows)}"
        evidence += f", {_words(follows)} {signed(measures[follows].change)}"
        if measures[follows].change.mean < -LOSS:
            verdict, reasons = NOT_HELD, [*reasons, f"{_words(follows)} fell by more than {LOSS:.2f}"]
    return Finding(claim, verdict, "; ".join([evidence, *reasons]))


def _same_quality(summary: RecipeSummary) -> Finding:
    goal, low, size = _goal(summary), summary.train_size, summary.sizes[-1]
    claim = (
        f"Training at {low} px gives up no {_words(goal)} at {size} px against training there (paper: .493 and .452)"
    )
    over = summary.variants["no_decoupling"].measures[size][goal].over_plain
    if over is None:
        return Finding(claim, OPEN, NO_COMMON_SEED)
    evidence = f"trained at {size} px less the full recipe: {signed(over)}"
    return Finding(claim, _verdict(over.high <= 0, over.low > 0), evidence)


def _figures(summary: RecipeSummary, variant: str, name: str) -> tuple[list[float], list[float]]:
    """Of the trainings of the recipe as it is, and of a variant, one a seed."""
    plain = summary.variants[str(summary.plain)]
    return plain.figures(name), summary.variants[variant].figures(name)


def _less_time(summary: RecipeSummary) -> Finding:
    low, large = (float(np.mean(of)) for of in _figures(summary, "no_decoupling", "seconds"))
    text = f"{low:.0f} s and {large:.0f} s a training: {large / low:.2f} x"
    return Finding("The low training size saves time (paper: 6.0 h for 12.0 h, 2 x)", _verdict(large > low, True), text)


def _ratio(summary: RecipeSummary) -> Finding:
    tamed, summed = _figures(summary, "no_log_tame", "reward_ratio")
    claim = "Log-taming keeps the ratio of the rewards lower (paper: below 1.8, above 2.5 without)"
    evidence = f"consistency / CLIP-T at the end: {_range(tamed)} with it, {_range(summed)} without"
    return Finding(claim, _verdict(max(tamed) < min(summed), min(tamed) > max(summed)), evidence)


def _diversity(summary: RecipeSummary) -> Finding:
    claim = "Without log-taming panels become alike (paper: nearly identical)"
    change = summary.variants["no_log_tame"].measures[summary.sizes[-1]]["panel_diversity"]
    if (over := change.over_plain) is None:
        return Finding(claim, OPEN, NO_COMMON_SEED)
    evidence = f"panel diversity {change.after.mean:.3f}, less the full recipe's: {signed(over)}"
    return Finding(claim, _verdict(over.high < 0, over.low > 0), evidence)


def _range(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f} over seeds)"


def _words(measure: str) -> str:
    return measure.replace("_", " ")
