"""When a training is no longer worth going on with: its pictures become copies, or please one judge alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paco_core.config.measures import PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.config.params import EarlyStop, HackMeter
from paco_core.grpo.hack_alarm import alarm


def stops(
    rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop, meter: HackMeter | None = None
) -> str | None:
    """Why to stop after the last of ``rows`` (one a trained epoch), or None."""
    heeded = meter if rule.hack_meter else None
    return collapsed(rows, weights, rule) or (None if heeded is None else alarm(rows, heeded))


def collapsed(rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop) -> str | None:
    """Why to stop after the last of ``rows`` (one a trained epoch), or None.

    The mean of the first ``patience`` epochs is what is compared with. Each of the last ``patience`` epochs must
    have a weighted reward that is higher by the share ``reward_rise``, and a panel diversity (of edits: a distance
    from the reference) below the share ``diversity_kept``.
    """
    measure = REFERENCE_DISTANCE if any(REFERENCE_DISTANCE in row for row in rows) else PANEL_DIVERSITY
    trained = [row for row in rows if measure in row]
    if len(trained) < 2 * rule.patience:
        return None
    reward = np.array([sum(w * row[f"reward/{name}"] for name, w in weights.items()) for row in trained])
    diversity = np.array([row[measure] for row in trained])
    first = slice(0, rule.patience)
    start, spread = reward[first].mean(), diversity[first].mean()
    last = slice(len(trained) - rule.patience, None)
    risen = reward[last] > start + rule.reward_rise * abs(start)
    narrowed = diversity[last] < rule.diversity_kept * spread
    if not (risen & narrowed).all():
        return None
    return (
        f"collapse: over the last {rule.patience} epochs the weighted reward was at least {reward[last].min():.4g} "
        f"({start:.4g} at first) while {measure.replace('_', ' ')} was at most {diversity[last].max():.4g} "
        f"({spread:.4g} at first)"
    )
