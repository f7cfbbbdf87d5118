"""Checks of a finished training, from its log: no collapse, an exact ratio, a shared gain, and detailed images."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path

from paco_core.config.measures import COPIES, DRIFT_PROMPTS, GAINS, IMAGE_CONTENT, PANEL_DIVERSITY, REFERENCE_DISTANCE
from paco_core.config.params import PolicyRecipe, PolicyTraining
from paco_core.grpo.hacking import AGREEMENT, first_alarm, is_unshared_gain
from paco_core.grpo.image_alarm import first_image_alarm
from paco_core.grpo.metrics import FEWEST_GROUPS
from paco_core.io.check_report import CheckReport, Severity
from paco_core.io.files import DataError

Row = Mapping[str, float]
DRIFT = (
    *(f"{key}{end}" for key in GAINS for end in ("", "_low", "_high")),
    DRIFT_PROMPTS,
)
DIVERSITY_KEPT = {PANEL_DIVERSITY: 0.5, REFERENCE_DISTANCE: 0.25}  # of the value before training
HALF_A_GREY_LEVEL = 0.5 / 255  # images whose pixels differ by less are copies; a share of such a difference is noise
#: Largest |ratio - 1| before the first update that training, promotion and Dagster's check accept, in clip ranges.
RATIO_LIMIT = 3.0
#: Share of samples outside the clip range before the first update from which on training and the checks warn.
CLIPPED_SHARE = 0.05
RATIO_REMEDY = "choose policies.defaults.old_log_prob: recomputed"


def read_training_log(path: Path) -> list[dict[str, float]]:
    """Rows of ``training_log.csv``. A row contains only the metrics that its epoch measured.

    Raises:
        DataError: if the file is missing or has no rows.
    """
    if not path.is_file():
        raise DataError(f"{path}: the file is missing; run `dvc repro policies` to create it")
    with path.open(newline="") as stream:
        rows = [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(stream)]
    if not rows:
        raise DataError(f"{path}: contains no epoch; is it truncated?")
    return rows


def _last(rows: Sequence[Row], name: str) -> float:
    return next((row[name] for row in reversed(rows) if name in row), math.nan)


def _first(rows: Sequence[Row], name: str) -> float:
    return next((row[name] for row in rows if name in row), math.nan)


def collapse(rows: Sequence[Row], sizes: Sequence[int]) -> CheckReport:
    """Check that the panels of a set, or a reference and its edit, did not become copies while the reward rose.

    If they were copies before training, the check warns, because the diversity cannot be compared.
    """
    measure = next((m for m in DIVERSITY_KEPT if f"eval/{sizes[0]}/{m}" in rows[0]), "panel_diversity")
    least = DIVERSITY_KEPT[measure]
    if all(math.isnan(rows[0].get(f"eval/{side}/{measure}", 0.0)) for side in sizes):
        return CheckReport("no_collapse", True, "ERROR", "nothing to compare: each image has a single panel")
    ends = {side: [end(rows, f"eval/{side}/{measure}") for end in (_first, _last)] for side in sizes}
    shares = {side: last / first for side, (first, last) in ends.items() if not first < HALF_A_GREY_LEVEL}
    copies = [side for side, values in ends.items() if max(values) < HALF_A_GREY_LEVEL]
    percentages = ", ".join(f"{share:.0%} at {side} px" for side, share in shares.items())
    sentences = [
        f"at {side} px images were copies before and after training, so diversity is not compared" for side in copies
    ]
    if shares:
        comparison = f"{measure.replace('_', ' ')} after training is {percentages} of that before"
        sentences = [f"{comparison}; at least {least:.0%} is required", *sentences]
    description = "; ".join(sentences)
    collapsed = not all(share >= least for share in shares.values())
    metadata: dict[str, str | int | float] = {f"diversity_kept_{side}px": share for side, share in shares.items()}
    severity: Severity = "ERROR" if collapsed or not copies else "WARN"
    return CheckReport("no_collapse", not collapsed and not copies, severity, description, metadata)


def max_ratio_gap(params: PolicyTraining) -> float:
    """Largest accepted |ratio - 1| before the first update: ``max_ratio_gap``, or :data:`RATIO_LIMIT` clip ranges.

    Before the first update, new and old weights are equal, so the ratio differs from 1 by rounding only. The effect on
    a training depends on ``clip_range``: a sample outside it is clipped before anything is learned.
    """
    return params.max_ratio_gap or RATIO_LIMIT * params.clip_range


def clipping_warning(share: float, params: PolicyTraining) -> str | None:
    """A warning if the ``share`` of samples outside the clip range before the first update is large, else None."""
    if not share > CLIPPED_SHARE:
        return None
    return (
        f"before the first update {share:.0%} of the samples are outside clip_range={params.clip_range:g}: rounding in "
        f"{params.dtype} decides their gradient; {RATIO_REMEDY}"
    )


def ratio_before_update(rows: Sequence[Row], params: PolicyTraining) -> CheckReport:
    """Check that the training pass reproduces the log-probabilities of the rollout (:func:`max_ratio_gap`)."""
    name = "ratio_is_one_before_update"
    if params.forward:  # losses on clean latents
        return CheckReport(name, True, "ERROR", f"loss {params.loss} compares no log-probabilities: it has no ratio")
    gaps = [row["update/ratio_gap"] for row in rows if "update/ratio_gap" in row]
    shares = [row["update/first_clip_fraction"] for row in rows if "update/first_clip_fraction" in row]
    largest, share, bound = max(gaps, default=math.nan), max(shares, default=0.0), max_ratio_gap(params)
    metadata: dict[str, str | int | float] = {
        "largest_gap": largest,
        "largest_clip_share": share,
        "epochs": len(gaps),
    }
    description = f"largest |ratio - 1| before an update is {largest:.2g} over {len(gaps)} epochs, {bound:g} at most"
    if not largest <= bound:
        return CheckReport(name, False, "ERROR", f"{description}; {RATIO_REMEDY}", metadata)
    if warning := clipping_warning(share, params):
        return CheckReport(name, False, "WARN", warning, metadata)
    return CheckReport(name, True, "ERROR", description, metadata)


def shared_gain(rows: Sequence[Row], recipe: PolicyRecipe) -> CheckReport:
    """Check that a held-out reward model confirms the gain (:func:`.hacking.is_unshared_gain`).

    The check fails if any epoch raised the alarm, or the last evaluation at any size has an unshared gain.
    """
    name, meter = "gain_is_shared", recipe.hack_meter
    if meter is None:
        return CheckReport(name, True, "ERROR", "there is no held-out reward model: the recipe has no hack_meter")
    metadata: dict[str, str | int | float] = {}
    sentences, unshared = [], []
    for side in recipe.eval_sizes:
        last = {key: _last(rows, f"eval/{side}/{key}") for key in DRIFT}
        metadata |= {f"{key}_{side}px": value for key, value in last.items() if not math.isnan(value)}
        gains = "; ".join(
            f"{words} {last[key]:+.3f} ({last[f'{key}_low']:+.3f} to {last[f'{key}_high']:+.3f})"
            for key, words in (
                ("trained_gain", meter.trained), ("held_out_gain", f"held-out {meter.held_out}"), ("drift", "drift")
            )
        )  # fmt: skip
        sentences.append(f"at {side} px over {last['drift_prompts']:.0f} prompts {gains}")
        if is_unshared_gain(last["trained_gain_low"], last["held_out_gain_low"], last["drift_low"]):
            unshared.append(f"{side} px")
        if math.isnan(last["drift_low"]):
            few = f"fewer than {FEWEST_GROUPS} prompts have scores by both reward models, or all scores are equal"
            unshared.append(f"{side} px (not measured: {few})")
    unshared_gain = f"the held-out reward model does not share the gain at {', '.join(unshared)}" if unshared else None
    first = first_alarm(rows, meter)
    description = f"in standard deviations {'. '.join(sentences)}" + "".join(
        f"; {reason}" for reason in (unshared_gain, first) if reason
    )
    if not math.isnan(last_agreement := _last(rows, AGREEMENT)):
        metadata[AGREEMENT] = last_agreement
    return CheckReport(name, not unshared and first is None, "ERROR", description, metadata)


def images_stay_detailed(rows: Sequence[Row], sizes: Sequence[int]) -> CheckReport:
    """Check that no evaluation raised the image alarm (:func:`.image_alarm.image_alarm`).

    The check warns, because fewer details can be the goal of a training, for example with a reward for plain images.
    """
    metadata, changes = dict[str, str | int | float](), list[str]()
    for side, measure in product(sizes, (*IMAGE_CONTENT, COPIES)):
        key = f"eval/{side}/{measure}"
        before, after = rows[0].get(key, math.nan), _last(rows, key)
        if math.isnan(after):
            continue
        metadata[f"{measure}_{side}px"] = after
        if not math.isnan(before):
            changes.append(f"{measure.replace('_', ' ')} at {side} px {before:.3f} -> {after:.3f}")
    reason = first_image_alarm(rows)
    description = reason or ", ".join(changes) or "the log has no measures of images"
    return CheckReport("images_stay_detailed", reason is None, "WARN", description, metadata)
