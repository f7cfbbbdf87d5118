"""What came out, said in words that follow from the intervals: held, not held, or not distinguishable."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.tables import number, signed
from paco_core.experiments.reproduction.summary import RecipeSummary, VariantRow
from paco_core.experiments.reproduction.tables import spread, times
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


def findings(summary: RecipeSummary) -> list[Finding]:
    """The claims about a recipe that its finished variants allow to judge."""
    if summary.plain is None:
        return []
    full, size = summary.variants[summary.plain], summary.sizes[-1]
    trained_at = int(summary.settings[summary.recipe]["train_size"])
    gold = summary.task.gold.goal
    goal = gold if gold in summary.measures else summary.task.judged.goal
    found = [_lift(summary, full, goal, at, trained_at) for at in summary.sizes if at in (trained_at, size)]
    if large := summary.variants.get("no_decoupling"):
        over = large.measures[size][goal].over_plain
        claim = (
            f"Training at {trained_at} px gives up no {_words(goal)} at {size} px against training there "
            "(paper: .493 and .452)"
        )
        words = f"trained at {size} px less the full recipe"
        found += [_difference(claim, over, words, equal_holds=True), _less_time(full, large)]
    if summed := summary.variants.get("no_log_tame"):
        diversity = summed.measures[size]["panel_diversity"]
        claim = "Without log-taming panels become alike (paper: nearly identical)"
        words = f"panel diversity {diversity.after.mean:.3f}, less the full recipe's"
        found += [_ratio(full, summed), _difference(claim, diversity.over_plain, words, equal_holds=False)]
    return found


def _verdict(held: bool, not_held: bool) -> str:
    return HELD if held else NOT_HELD if not_held else OPEN


def _lift(summary: RecipeSummary, full: VariantRow, goal: str, size: int, trained_at: int) -> Finding:
    """Of sets the change is to reach :data:`LIFT`; of edits the interval decides."""
    far, change = summary.task is SETS, full.measures[size][goal].change
    where = f"at {size} px" + (", its training size" if size == trained_at else "")
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
        evidence += f", {_words(follows)} {signed(full.measures[size][follows].change)}"
        if full.measures[size][follows].change.mean < -LOSS:
            verdict, reasons = NOT_HELD, [*reasons, f"{_words(follows)} fell by more than {LOSS:.2f}"]
    return Finding(claim, verdict, "; ".join([evidence, *reasons]))


def _difference(claim: str, over: Estimate | None, words: str, *, equal_holds: bool) -> Finding:
    """A claim that a variant is worse than the full recipe; with ``equal_holds``, that it is no better."""
    if over is None:
        return Finding(claim, OPEN, "the two share no training seed")
    held = over.high <= 0 if equal_holds else over.high < 0
    return Finding(claim, _verdict(held, over.low > 0), f"{words}: {signed(over)}")


def _less_time(full: VariantRow, large: VariantRow) -> Finding:
    low, high = (float(np.mean(row.figures("seconds"))) for row in (full, large))
    text = f"{number(low, 0)} s and {number(high, 0)} s per training: {times(high, low)} x"
    claim = "The low training size saves time (paper: 6.0 h for 12.0 h, 2 x)"
    return Finding(claim, _verdict(high > low, high <= low), text)  # inconclusive if a time is not known


def _ratio(full: VariantRow, summed: VariantRow) -> Finding:
    with_it, without = (row.figures("reward_ratio") for row in (full, summed))
    claim = "Log-taming keeps the ratio of the rewards lower (paper: below 1.8, above 2.5 without)"
    evidence = f"consistency / CLIP-T at the end, with the range over seeds: {spread(with_it)} with it, "
    held, not_held = max(with_it) < min(without), min(with_it) > max(without)
    return Finding(claim, _verdict(held, not_held), f"{evidence}{spread(without)} without")


def _words(measure: str) -> str:
    return measure.replace("_", " ")
