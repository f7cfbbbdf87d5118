"""Checks of the reward model. The checks themselves are pure functions of the library."""

import dagster as dg

from pipelines.defs.check_results import as_result
from pipelines.defs.graph import METRICS


@dg.asset_check(
    asset="reward_lora",
    blocking=True,
    description="Training lifted held-out accuracy by more than its error; blocks only where it lowered it",
)
def reward_beats_base() -> dg.AssetCheckResult:
    from paco_core.reward_model import checks

    return as_result(checks.reward_beats_base(METRICS / "reward_lora.json"))


@dg.asset_check(
    asset="reward_merged", blocking=True, description="Base and adapter give the logits of the merged folder"
)
def merged_equals_adapter() -> dg.AssetCheckResult:
    from paco_core.reward_model import checks

    return as_result(checks.merged_equals_adapter(METRICS / "reward_merged.json"))
