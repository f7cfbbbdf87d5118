"""Checks of the benchmarks. The checks themselves are pure functions of the library."""

from typing import TYPE_CHECKING

import dagster as dg

from pipelines.defs.asset_checks import Check, as_result, asset_checks
from pipelines.defs.graph import DATA, METRICS, ROOT
from pipelines.defs.history import last_two_versions

if TYPE_CHECKING:
    from paco_core.config.params_policies import PolicyRecipe


CHECKS = asset_checks(
    "paco_core.benchmarks.checks",
    [
        Check(
            "reward_ranks_better_than_base",
            "consistency_rank",
            METRICS / "consistency_rank.json",
            "The trained reward beats its base on held-out rankings",
        ),
        Check(
            "every_ranking_was_scored",
            "consistency_rank",
            METRICS / "consistency_rank.json",
            "No judge failed on any instance",
        ),
        Check(
            "every_question_was_answered",
            "t2is_bench",
            METRICS / "t2is_bench.json",
            "No question of T2IS-Bench failed",
        ),
        Check("report_is_complete", "report", DATA / "report" / "metrics.json", "Nothing is missing from the page"),
    ],
)


@dg.asset_check(asset="t2is", description="Training lifted consistency on unseen prompts, by the gold metric")
def policies_gain_consistency() -> dg.AssetCheckResult:
    from paco_core.benchmarks import checks

    return as_result(
        *(
            checks.policy_gains_consistency(METRICS / "t2is.json", name, recipe.train_size, size)
            for name, recipe in _recipes("t2is")
            for size in recipe.eval_sizes
        )
    )


@dg.asset_check(asset="t2is", description="Prompt following did not fall, by the gold metric")
def policies_still_follow_prompts() -> dg.AssetCheckResult:
    from paco_core.benchmarks import checks

    return as_result(
        *(
            checks.policy_still_follows_prompts(METRICS / "t2is.json", name, size)
            for name, recipe in _recipes("t2is")
            for size in recipe.eval_sizes
        )
    )


@dg.asset_check(
    asset="gedit", description="Training raised the share of right edits on unseen pictures, by the gold metric"
)
def policies_gain_edits() -> dg.AssetCheckResult:
    from paco_core.benchmarks import checks

    return as_result(
        *(
            checks.policy_gains_edits(METRICS / "gedit.json", name, size)
            for name, recipe in _recipes("gedit")
            for size in recipe.eval_sizes
        )
    )


def _recipes(benchmark: str) -> "list[tuple[str, PolicyRecipe]]":
    """The recipes that a benchmark measures, by name."""
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.tasks.table import measured_by, recipes_of

    return list(recipes_of(measured_by(benchmark), load(ROOT / PARAMS_FILE).policies).items())


def _drift_check(asset: str) -> dg.AssetChecksDefinition:
    @dg.asset_check(asset=asset, name="figures_hold", description="No figure left the interval of the previous version")
    def figures_hold(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
        from paco_core.benchmarks import checks

        return as_result(checks.figures_hold(*last_two_versions(context.instance, dg.AssetKey(asset))))

    return figures_hold


consistency_rank_holds, t2is_holds = _drift_check("consistency_rank"), _drift_check("t2is")
edit_reward_holds, gedit_holds = _drift_check("edit_reward"), _drift_check("gedit")
