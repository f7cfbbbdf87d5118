"""When a training is no longer worth going on with: the reward rises while the panels of a set become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paco_core.params import EarlyStop


def collapsed(rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop) -> str | None:
    """Why to stop after the last of ``rows`` (one a trained epoch), or None.

    The mean of the first ``patience`` epochs is what is compared with. Each of the last ``patience`` epochs must
    have a weighted reward that is higher by the share ``reward_rise``, and a panel diversity below the share
    ``diversity_kept``.
    """
    trained = [row for row in rows if "panel_diversity" in row]
    if len(trained) < 2 * rule.patience:
        return None
    reward = np.array([sum(w * row[f"reward/{name}"] for name, w in weights.items()) for row in trained])
    diversity = np.array([row["panel_diversity"] for row in trained])
    first = slice(0, rule.patience)
    start, spread = reward[first].mean(), diversity[first].mean()
    last = slice(len(trained) - rule.patience, None)
    risen = reward[last] > start + rule.reward_rise * abs(start)
    narrowed = diversity[last] < rule.diversity_kept * spread
    if not (risen & narrowed).all():
        return None
    return (
        f"collapse: over the last {rule.patience} epochs the weighted reward was at least {reward[last].min():.4g} "
        f"({start:.4g} at first) while panel diversity was at most {diversity[last].max():.4g} ({spread:.4g} at first)"
    )
