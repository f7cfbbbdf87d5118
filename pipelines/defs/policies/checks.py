"""Checks of the policies' training logs. The checks themselves are pure functions of the library.

In the run of one recipe they look at that recipe: the others may not be trained yet. By themselves at all of them.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import dagster as dg

from pipelines.defs.asset_checks import as_result
from pipelines.defs.graph import DATA, ROOT

if TYPE_CHECKING:
    from paco_core.config.params_policies import PoliciesParams
    from paco_core.grpo.checks import Row
    from paco_core.io.check_report import CheckReport


@dg.asset_check(asset="policies", blocking=True, description="The panels of a set did not become one picture")
def no_collapse(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    from paco_core.grpo import checks

    return _of_each(context, lambda log, params, name: checks.collapse(log, params.recipes[name].eval_sizes))


@dg.asset_check(asset="policies", blocking=True, description="Before an update the ratio is one, up to rounding")
def ratio_is_one_before_update(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    from paco_core.grpo import checks

    return _of_each(context, lambda log, params, name: checks.ratio_before_update(log, params.of(params.recipes[name])))


def _of_each(
    context: dg.AssetCheckExecutionContext, check: "Callable[[Sequence[Row], PoliciesParams, str], CheckReport]"
) -> dg.AssetCheckResult:
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.grpo.checks import read_log

    params = load(ROOT / PARAMS_FILE).policies
    names = [context.partition_key] if context.has_partition_key else list(params.recipes)
    if untrained := [name for name in names if name not in params.recipes]:
        return dg.AssetCheckResult(passed=True, description=f"skipped: policies.recipes.{untrained[0]} is null")
    return as_result(*(check(read_log(DATA / "policies" / name / "training_log.csv"), params, name) for name in names))
