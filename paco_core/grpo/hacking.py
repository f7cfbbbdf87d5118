"""Reward hacking: drift from a held-out reward model, the alarm, and when a training stops early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import DRIFT_PROMPTS, GAINS, IMAGE_MEASURES, PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.config.params import EarlyStop, HackMeter
from paco_core.data.image_measures import grid_score, reference_distance
from paco_core.grpo.image_alarm import image_alarm
from paco_core.grpo.metrics import deviation, mean_with_interval
from paco_core.rewards.aggregation import normalize_groups

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.grpo.evaluation import Evaluation

AGREEMENT = "agreement"


def drift(
    trained: np.ndarray, trained_start: np.ndarray, held_out: np.ndarray, held_out_start: np.ndarray
) -> dict[str, float]:
    """Gains by two reward models since the start, and drift: the first gain minus the second, in standard deviations.

    The unit is the standard deviation of the scores before training (Glass's delta), because two reward models may use
    different parts of the scale. A gain is NaN if all scores of a model are equal. Each metric is a mean over prompts
    with its 95% interval, ``_low`` and ``_high``. ``drift_prompts`` is the number of prompts. Prompts without all
    scores, before and now, are excluded. Over-optimization of a proxy reward: Gao et al., arXiv 2210.10760.

    Args:
        trained, held_out: scores (prompts, seeds) now; ``_start`` before training.
    """
    pairs = ((trained, trained_start), (held_out, held_out_start))
    gains = [np.mean(now - before, axis=1) / deviation(before) for now, before in pairs]
    complete = np.where(np.isnan(gains).any(axis=0), np.nan, gains)
    figures: dict[str, float] = {}
    for name, changes in zip(GAINS, (complete[0], complete[1], complete[0] - complete[1]), strict=True):
        figures |= zip((name, f"{name}_low", f"{name}_high"), mean_with_interval(changes), strict=True)
    return {**figures, DRIFT_PROMPTS: float((~np.isnan(complete[0])).sum())}


def hack_metrics(meter: HackMeter, now: Evaluation, baseline: Evaluation) -> dict[str, float]:
    """The hack meter at every size, named ``<size>/<measure>``.

    ``grid_score`` (nats, pictures of one size together, the largest where prompts have several), ``start_distance``
    (root mean square pixel difference from the same prompt and seed before training, 0 to 1), and the metrics of
    :func:`drift`.

    Args:
        baseline: pictures and scores before training.
    """
    figures: dict[str, float] = {}
    for side, pictures in now.pictures.items():
        before = baseline.pictures[side]
        trained, held_out = f"{side}/{meter.trained}", f"{side}/{meter.held_out}"
        measures = (
            largest_grid_score(pictures, before),
            float(np.mean([reference_distance(*pair) for pair in zip(pictures, before, strict=True)])),
        )
        of_size = {
            **dict(zip(IMAGE_MEASURES, measures, strict=True)),
            **drift(now.scores[trained], baseline.scores[trained], now.scores[held_out], baseline.scores[held_out]),
        }
        figures |= {f"{side}/{name}": value for name, value in of_size.items()}
    return figures


def largest_grid_score(pictures: Sequence[Image], before: Sequence[Image]) -> float:
    """:func:`grid_score` of pictures of equal size, the largest over all sizes.

    Args:
        before: pictures of the same prompts and noise before training.
    """
    scores = []
    for size in sorted({picture.size for picture in pictures}):
        now, start = ([image for image in images if image.size == size] for images in (pictures, before))
        scores.append(grid_score(now, start))
    return max(scores)


def score_agreement(trained: np.ndarray, held_out: np.ndarray) -> float:
    """Correlation of the scores of two reward models within a prompt, -1 to 1, mean over prompts.

    A policy learns from the ranking of the samples of a prompt. To first order, the correlation is the share of a gain
    that the held-out model confirms, in standard deviations. It is 0 if only the held-out model scores all samples of a
    prompt equally. Prompts whose samples the training model scores equally are excluded. NaN if no prompt is left.
    Reward models disagree under over-optimization: Gao et al., arXiv 2210.10760.

    Args:
        trained, held_out: scores (P, G). Samples with a NaN in either are excluded.
    """
    missing = np.isnan(trained) | np.isnan(held_out)
    first, second = (normalize_groups(np.where(missing, np.nan, scores)) for scores in (trained, held_out))
    counts = np.maximum((~missing).sum(axis=1), 1)
    correlations = np.nansum(first * second, axis=1) / counts
    is_informative = np.nansum(first**2, axis=1) > 0
    return float(correlations[is_informative].mean()) if is_informative.any() else float("nan")


def disagreement(trained: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """1 if only the training reward model scores a sample above the mean of its group, else 0: (P, G).

    The policy would learn from these samples, although the held-out model does not confirm them. If the held-out model
    has no score, the value is 1 too.

    Args:
        trained, held_out: scores (P, G), NaN if there is no score.
    """
    above = [normalize_groups(values) > 0 for values in (trained, held_out)]
    return (above[0] & ~above[1]).astype(np.float64)


def alarm(rows: Sequence[Mapping[str, float]], meter: HackMeter) -> str | None:
    """The reason for an alarm after the last of ``rows`` (one per trained epoch), or None.

    The mean :func:`score_agreement` of the last ``patience`` epochs that measured it is below the meter's bound.
    """
    agreements = [row[AGREEMENT] for row in rows if not np.isnan(row.get(AGREEMENT, np.nan))][-meter.patience :]
    if len(agreements) < meter.patience or np.mean(agreements) >= meter.agreement:
        return None
    return (
        f"{meter.trained} and the held-out {meter.held_out} rank the samples of a prompt differently: their agreement "
        f"was {np.mean(agreements):.2f} over the {meter.patience} epochs up to {rows[-1]['epoch']:.0f}; "
        f"at least {meter.agreement:g} is required"
    )


def first_alarm(rows: Sequence[Mapping[str, float]], meter: HackMeter) -> str | None:
    """The :func:`alarm` of the first epoch that raised one, or None."""
    reasons = (alarm(rows[:end], meter) for end in range(1, len(rows) + 1))
    return next((reason for reason in reasons if reason is not None), None)


def is_unshared_gain(trained_low: float, held_out_low: float, drift_low: float) -> bool:
    """Whether a held-out reward model does not confirm a gain, by the lower bounds of 95% intervals over prompts.

    The intervals of the training model's gain and of the drift are above zero, and that of the held-out gain is not.
    """
    return trained_low > 0 and drift_low > 0 and not held_out_low > 0


def stop_reason(
    rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop, meter: HackMeter | None = None
) -> str | None:
    """The reason to stop after the last of ``rows`` (the start, then one per trained epoch), or None."""
    if reason := collapse_reason(rows, weights, rule):
        return reason
    return (alarm(rows, meter) or image_alarm(rows[0], rows[-1])) if rule.hack_meter and meter is not None else None


def collapse_reason(rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop) -> str | None:
    """The reason to stop because of a collapse after the last of ``rows`` (one per trained epoch), or None.

    The baseline is the mean of the first ``patience`` epochs. Each of the last ``patience`` epochs must
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
    start, variety = reward[first].mean(), diversity[first].mean()
    last = slice(len(trained) - rule.patience, None)
    risen = reward[last] > start + rule.reward_rise * abs(start)
    narrowed = diversity[last] < rule.diversity_kept * variety
    if not (risen & narrowed).all():
        return None
    return (
        f"collapse: over the last {rule.patience} epochs the weighted reward was at least {reward[last].min():.4g} "
        f"({start:.4g} at first) while {measure.replace('_', ' ')} was at most {diversity[last].max():.4g} "
        f"({variety:.4g} at first)"
    )
