"""Reward hacking: drift from a held-out reward model, near copies, the alarm, and when a training stops early."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import DRIFT_PROMPTS, GAINS, IMAGE_MEASURES, PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.config.params import EarlyStop, HackMeter
from paco_core.data.image_measures import grid_score, pixel_distances, reference_distance
from paco_core.data.records.panels import cut
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.metrics import deviation, mean_with_interval
from paco_core.rewards.aggregation import normalise

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.grpo.evaluation import Evaluation
    from paco_core.grpo.scoring import Reference

AGREEMENT = "agreement"


def drift(
    trained: np.ndarray, trained_start: np.ndarray, held_out: np.ndarray, held_out_start: np.ndarray
) -> dict[str, float]:
    """Gains by two judges since the start, and drift, the first less the second, in standard deviations.

    The unit is the standard deviation of the judge's own scores before training (Glass's delta), for two judges need
    not use the same part of the scale; NaN where a judge scored all pictures alike. Each a mean over prompts with its
    95% interval, ``_low`` and ``_high``; ``drift_prompts`` says over how many. A prompt with a score missing from
    either judge, before or now, is left out of all three. Over-optimisation of a proxy reward: Gao et al., arXiv
    2210.10760.

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


def near_copies(
    pictures: Sequence[Image], records: Sequence[PromptRecord], bound: float, reference: Reference | None = None
) -> float:
    """Share of the panel pairs, or of the edits against their reference, that differ by less than ``bound``: 0 to 1.

    A difference is a root mean square one of pixels on the scale 0 to 1. Copies are the cheapest way to be consistent,
    and an edit that changes nothing the cheapest way to keep the rest. NaN where no picture has a pair.
    """
    differences: list[float] = []
    for picture, record in zip(pictures, records, strict=True):
        if reference is not None:
            differences.append(reference_distance(picture, reference(record)[0]))
        elif len(panels := cut(picture, record.layout)) > 1:
            differences.extend(pixel_distances(panels))
    return float(np.mean(np.array(differences) < bound)) if differences else float("nan")


def hack_metrics(
    meter: HackMeter,
    now: Evaluation,
    baseline: Evaluation,
    records: Sequence[PromptRecord],
    reference: Reference | None,
) -> dict[str, float]:
    """The hack meter at every size, named ``<size>/<measure>``.

    ``grid_score`` (nats, pictures of one size together, the largest where prompts have several), ``near_copies`` and
    ``start_distance`` (root mean square pixel difference from the same prompt and seed before training, 0 to 1), and
    the figures of :func:`drift`.

    Args:
        baseline: pictures and scores before training.
        records: the prompt of each picture, in the order of the evaluation.
    """
    figures: dict[str, float] = {}
    for side, pictures in now.pictures.items():
        before = baseline.pictures[side]
        trained, held_out = f"{side}/{meter.trained}", f"{side}/{meter.held_out}"
        measures = (
            _largest_grid_score(pictures, before),
            near_copies(pictures, records, meter.near_copy, reference),
            float(np.mean([reference_distance(*two) for two in zip(pictures, before, strict=True)])),
        )
        of_size = {
            **dict(zip(IMAGE_MEASURES, measures, strict=True)),
            **drift(now.scores[trained], baseline.scores[trained], now.scores[held_out], baseline.scores[held_out]),
        }
        figures |= {f"{side}/{name}": value for name, value in of_size.items()}
    return figures


def _largest_grid_score(pictures: Sequence[Image], before: Sequence[Image]) -> float:
    scores = []
    for size in sorted({picture.size for picture in pictures}):
        now, start = ([p for p in some if p.size == size] for some in (pictures, before))
        scores.append(grid_score(now, start))
    return max(scores)


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
    first, second = (normalise(np.where(missing, np.nan, scores)) for scores in (trained, held_out))
    counts = np.maximum((~missing).sum(axis=1), 1)
    correlations = np.nansum(first * second, axis=1) / counts
    teaches = np.nansum(first**2, axis=1) > 0
    return float(correlations[teaches].mean()) if teaches.any() else float("nan")


def disagreement(trained: np.ndarray, held_out: np.ndarray) -> np.ndarray:
    """1 where the training judge puts a sample above its group's mean and the held-out one does not, else 0: (P, G).

    These are the samples that the policy would learn from and the other judge would not; where the latter has no score
    it is 1, too.

    Args:
        trained, held_out: scores (P, G), NaN where there is none.
    """
    above = [normalise(values) > 0 for values in (trained, held_out)]
    return (above[0] & ~above[1]).astype(np.float64)


def alarm(rows: Sequence[Mapping[str, float]], meter: HackMeter) -> str | None:
    """Why the judges have parted by the last of ``rows`` (one a trained epoch), or None.

    The mean :func:`agreement` of the last ``patience`` epochs that measured it is below the meter's bound.
    """
    agreements = [row[AGREEMENT] for row in rows if not np.isnan(row.get(AGREEMENT, np.nan))][-meter.patience :]
    if len(agreements) < meter.patience or np.mean(agreements) >= meter.agreement:
        return None
    return (
        f"{meter.trained} and the held-out {meter.held_out} rank the samples of a prompt apart: their agreement was "
        f"{np.mean(agreements):.2f} over the {meter.patience} epochs up to {rows[-1]['epoch']:.0f}, and "
        f"{meter.agreement:g} is asked for"
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


def stop_reason(
    rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop, meter: HackMeter | None = None
) -> str | None:
    """Why to stop after the last of ``rows`` (one a trained epoch), or None."""
    if reason := collapse_reason(rows, weights, rule):
        return reason
    return alarm(rows, meter) if rule.hack_meter and meter is not None else None


def collapse_reason(rows: Sequence[Mapping[str, float]], weights: Mapping[str, float], rule: EarlyStop) -> str | None:
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
