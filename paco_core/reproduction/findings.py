"""What came out, said in words that follow from the intervals: held, not held, or not told apart."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paco_core.benchmarks.statistics import Estimate
from paco_core.reproduction.summary import Change, Row, Summary

LIFT, LOSS = 0.15, 0.03  # asked of the full recipe: gold consistency up by, gold following not down by more than
HELD, NOT_HELD, OPEN = "held", "not held", "not told apart"


@dataclass(frozen=True)
class Finding:
    """A claim, whether it held here, and the figures that say so."""

    claim: str
    verdict: str
    evidence: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def findings(summary: Summary) -> list[Finding]:
    """The claims that the finished variants allow to judge."""
    full = summary.full
    if full is None:
        return []
    goal, size = _goal(summary), summary.sizes[-1]
    found = [_lift(full, goal, size)]
    if (high := summary.row("no_decoupling")) is not None:
        found += [_same_quality(high, goal, size, summary.train_size), _less_time(full, high)]
    if (plain := summary.row("no_log_tame")) is not None:
        found += [_ratio(full, plain), _diversity(plain, size)]
    return found


def _goal(summary: Summary) -> str:
    return "gold_consistency" if "gold_consistency" in summary.measures else "consistency"


def signed(found: Estimate) -> str:
    if math.isnan(found.mean):
        return "–"
    return f"{found.mean:+.3f}" + ("" if math.isnan(found.low) else f" ({found.low:+.3f} to {found.high:+.3f})")


def _lift(full: Row, goal: str, size: int) -> Finding:
    change = full.measures[size][goal].change
    claim = f"The full recipe lifts {_words(goal)} at {size} px by {LIFT:.2f} or more"
    evidence = f"{_words(goal)} {signed(change)}"
    lifted, kept = change.mean >= LIFT, True
    following = full.measures[size].get("gold_following")
    if following is not None:
        claim += f", and costs no more than {LOSS:.2f} of gold prompt following"
        evidence += f", gold following {signed(following.change)}"
        kept = following.change.mean >= -LOSS
    return Finding(claim, HELD if lifted and kept else NOT_HELD, evidence)


def _same_quality(high: Row, goal: str, size: int, low: int) -> Finding:
    claim = (
        f"Training at {low} px gives up no {_words(goal)} at {size} px against training there (paper: .493 and .452)"
    )
    over = high.measures[size][goal].over_full
    if over is None:
        return Finding(claim, OPEN, "the two share no training seed")
    verdict = NOT_HELD if over.low > 0 else HELD if over.high <= 0 else OPEN
    return Finding(claim, verdict, f"trained at {size} px less the full recipe: {signed(over)}")


def _less_time(full: Row, high: Row) -> Finding:
    ratio = float(np.mean(high.told("seconds")) / np.mean(full.told("seconds")))
    text = f"{np.mean(full.told('seconds')):.0f} s and {np.mean(high.told('seconds')):.0f} s a training: {ratio:.2f} x"
    claim = "The low training size saves time (paper: 6.0 h for 12.0 h, 2 x)"
    return Finding(claim, HELD if ratio > 1 else NOT_HELD, text)


def _ratio(full: Row, plain: Row) -> Finding:
    tamed, summed = full.told("reward_ratio"), plain.told("reward_ratio")
    claim = "Log-taming keeps the ratio of the rewards lower (paper: below 1.8, above 2.5 without)"
    evidence = f"consistency / CLIP-T at the end: {_range(tamed)} with it, {_range(summed)} without"
    apart = max(tamed) < min(summed) or min(tamed) > max(summed)
    return Finding(claim, OPEN if not apart else HELD if max(tamed) < min(summed) else NOT_HELD, evidence)


def _diversity(plain: Row, size: int) -> Finding:
    claim = "Without log-taming panels become alike (paper: nearly identical)"
    change: Change = plain.measures[size]["panel_diversity"]
    if change.over_full is None:
        return Finding(claim, OPEN, "the two share no training seed")
    over = change.over_full
    verdict = HELD if over.high < 0 else NOT_HELD if over.low > 0 else OPEN
    evidence = f"panel diversity {change.after.mean:.3f}, less the full recipe's: {signed(over)}"
    return Finding(claim, verdict, evidence)


def _range(values: list[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{np.mean(values):.2f} ({min(values):.2f} to {max(values):.2f} over seeds)"


def _words(measure: str) -> str:
    return measure.replace("_", " ")
