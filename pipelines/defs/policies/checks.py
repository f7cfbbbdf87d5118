"""Checks of the policies' training logs. The checks themselves are pure functions of the library."""

import dagster as dg

from pipelines.defs.graph import DATA, ROOT
from pipelines.defs.telling import told


@dg.asset_check(asset="policies", blocking=True, description="The panels of a set did not become one picture")
def no_collapse() -> dg.AssetCheckResult:
    from paco_core.grpo import checks
    from paco_core.params import PARAMS_FILE, load

    params = load(ROOT / PARAMS_FILE).policies
    return told(
        *(
            checks.collapse(checks.read_log(DATA / "policies" / name / "training_log.csv"), recipe.eval_sizes)
            for name, recipe in params.recipes.items()
        )
    )


@dg.asset_check(asset="policies", description="Before an update the ratio is one, up to rounding")
def ratio_is_one_before_update() -> dg.AssetCheckResult:
    from paco_core.grpo import checks
    from paco_core.params import PARAMS_FILE, load

    params = load(ROOT / PARAMS_FILE).policies
    return told(
        *(
            checks.ratio_before_update(checks.read_log(DATA / "policies" / name / "training_log.csv"), params.dtype)
            for name in params.recipes
        )
    )
