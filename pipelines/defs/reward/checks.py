"""Checks of the reward model. The checks themselves are pure functions of the library."""

from pipelines.defs.asset_checks import Check, asset_checks
from pipelines.defs.graph import METRICS

CHECKS = asset_checks(
    "paco_core.reward_model.checks",
    [
        Check(
            "reward_beats_base",
            "reward_lora",
            METRICS / "reward_lora.json",
            "Training lifted held-out accuracy by more than its error; blocks only where it lowered it",
            blocking=True,
        ),
        Check(
            "merged_equals_adapter",
            "reward_merged",
            METRICS / "reward_merged.json",
            "Base and adapter give the logits of the merged folder",
            blocking=True,
        ),
    ],
)
