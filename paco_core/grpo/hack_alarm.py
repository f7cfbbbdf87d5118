"""When the hack meter raises the alarm: one rule, for a training that may end early, its check and `paco promote`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from paco_core.config.params import HackMeter
from paco_core.rewards.aggregation import normalise

AGREEMENT = "agreement"


def agreement(trained: np.ndarray, held_out: np.ndarray) -> float:
    """Correlation of two judges' scores of samples of one prompt, -1 to 1, mean over the prompts.

    A policy learns from how its judge ranks the samples of a prompt. Of a gain by that judge, in standard deviations,
    the correlation is the share that the other judge is to see, to first order. 0 where only the held-out judge finds
    all samples alike; a prompt whose samples the training judge finds alike teaches nothing and is left out. NaN where
    none is left. Judges part under over-optimisation: Gao et al., arXiv 2210.10760.

    Args:
        trained, held_out: scores (P, G); a sample with a NaN from either is left out.
    """
    missing = np.isnan(trained) | np.isnan(held_out)
    both = [normalise(np.where(missing, np.nan, scores)) for scores in (trained, held_out)]
    known = np.maximum((~missing).sum(axis=1), 1)
    found = np.nansum(both[0] * both[1], axis=1) / known
    teaches = np.nansum(both[0] ** 2, axis=1) > 0
    return float(found[teaches].mean()) if teaches.any() else float("nan")


def alarm(rows: Sequence[Mapping[str, float]], meter: HackMeter) -> str | None:
    """Why the judges have parted by the last of ``rows`` (one a trained epoch), or None.

    The mean :func:`agreement` of the last ``patience`` epochs that measured it is below the meter's bound.
    """
    found = [row[AGREEMENT] for row in rows if not np.isnan(row.get(AGREEMENT, np.nan))][-meter.patience :]
    if len(found) < meter.patience or np.mean(found) >= meter.agreement:
        return None
    return (
        f"{meter.trained} and the held-out {meter.held_out} rank the samples of a prompt apart: their agreement was "
        f"{np.mean(found):.2f} over the {meter.patience} epochs up to {rows[-1]['epoch']:.0f}, and {meter.agreement:g} "
        "is asked for"
    )


def first_alarm(rows: Sequence[Mapping[str, float]], meter: HackMeter) -> str | None:
    """The :func:`alarm` of the first epoch that raised one, or None."""
    reasons = (alarm(rows[:end], meter) for end in range(1, len(rows) + 1))
    return next((reason for reason in reasons if reason is not None), None)


def gained_alone(trained_low: float, held_out_low: float, drift_low: float) -> bool:
    """Whether a held-out judge does not share a gain, by the lower ends of 95% intervals over prompts.

    The gain by the training judge and the drift are above zero with their whole intervals, and the held-out judge's
    gain is not.
    """
    return trained_low > 0 and drift_low > 0 and not held_out_low > 0
