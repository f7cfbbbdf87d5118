"""How far the ratio of new to old probability may be from one before the first update: one bound for all who ask.

There the new weights are the old ones, and rounding alone moves the ratio. What that does to a training depends on
``clip_range``: a sample outside it is clipped before anything was learnt.
"""

from __future__ import annotations

from paco_core.config.params import PolicyTraining

#: Largest |ratio - 1| that training, promotion and Dagster's check accept, in clip ranges.
STOP_AT = 3.0
#: Share of samples outside the clip range from which on training and the checks warn.
WARN_AT = 0.05
REMEDY = "choose policies.defaults.old_log_prob: recomputed"


def bound(params: PolicyTraining) -> float:
    """Largest accepted |ratio - 1| before the first update: ``max_ratio_gap``, or :data:`STOP_AT` clip ranges."""
    return params.max_ratio_gap or STOP_AT * params.clip_range


def compares(params: PolicyTraining) -> bool:
    """Whether the loss has a ratio: one on clean latents compares no log-probabilities."""
    return not params.forward


def clipped_early(share: float, params: PolicyTraining) -> str | None:
    """A sentence about ``share`` of the samples outside the clip range before the first update; None where few are."""
    if not share > WARN_AT:
        return None
    return (
        f"before the first update {share:.0%} of the samples are outside clip_range={params.clip_range:g}: rounding in "
        f"{params.dtype} decides what they teach; {REMEDY}"
    )
