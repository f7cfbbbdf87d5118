"""When a training is no longer worth going on with: its pictures become copies, or please one judge alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paco_core.config.params import EarlyStop, HackMeter
from paco_core.grpo.scoring import PANEL_DIVERSITY, REFERENCE_DISTANCE


def stops(
    rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop, meter: HackMeter | None = None
) -> str | None:
    """Why to stop after the last of ``rows`` (one a trained epoch), or None."""
    return collapsed(rows, weights, rule) or (None if meter is None else drifted(rows, rule, meter))


def drifted(rows: Sequence[Mapping[str, float]], rule: EarlyStop, meter: HackMeter) -> str | None:
    """Why to stop where the policy pleases its judge and not one that did not train it, or None.

    Drift of an epoch: gain by the training judge less gain by the held-out one, both over the means of the first
    ``patience`` epochs; it must be above the bound in each of the last ``patience`` epochs. What a policy gains by the
    reward that it is trained by alone is over-optimisation (arXiv 2210.10760).
    """
    if rule.drift is None:
        return None
    names = (f"reward/{meter.trained}", f"reward/{meter.held_out}")
    found = np.array([[row[name] for name in names] for row in rows if all(name in row for name in names)])
    if len(found) < 2 * rule.patience:
        return None
    gains = found[-rule.patience :] - found[: rule.patience].mean(axis=0)
    if not (gains[:, 0] - gains[:, 1] > rule.drift).all():
        return None
    trained, held_out = gains.mean(axis=0)
    return (
        f"drift: over the last {rule.patience} epochs {meter.trained} gained {trained:.4g}, and the held-out "
        f"{meter.held_out} {held_out:.4g}; more than {rule.drift:g} apart in each"
    )


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
