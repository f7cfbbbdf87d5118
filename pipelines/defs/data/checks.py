"""Checks of the data sets. The checks themselves are pure functions of the library."""

import dagster as dg

from pipelines.defs.check_results import as_result
from pipelines.defs.graph import DATA, ROOT


@dg.asset_check(asset="prompts", blocking=True, description="Every prompt is valid, and none occurs twice")
def prompts_are_valid() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.prompts_are_valid(DATA))


@dg.asset_check(
    asset="diverse_prompts",
    blocking=True,
    description="Every diverse prompt is one of the prompts; no subcategory is emptied",
)
def diverse_prompts_are_a_subset() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.diverse_prompts_are_a_subset(DATA))


@dg.asset_check(
    asset="edit_prompts", blocking=True, description="Every edit has its picture; none is both trained on and unseen"
)
def edit_prompts_are_held_apart() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.edit_prompts_are_held_apart(DATA))


@dg.asset_check(asset="edits", blocking=True, description="Every painted edit is of a training prompt; pictures open")
def painted_edits_are_of_training_prompts() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.painted_edits_are_of_training_prompts(DATA))


@dg.asset_check(asset="grids", blocking=True, description="Every prompt has its grids, and pictures open")
def grids_are_complete(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """In the run of one shard that shard: the others may not be painted yet. By itself all of them."""
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.data import checks

    if not context.has_partition_key:
        return as_result(checks.grids_are_complete(DATA))
    shards = load(ROOT / PARAMS_FILE).grid_shards
    return as_result(checks.grids_are_complete(DATA, int(context.partition_key), shards))


@dg.asset_check(asset="rankings", blocking=True, description="Every instance points at panels that exist")
def rankings_are_complete() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.rankings_are_complete(DATA))


@dg.asset_check(asset="annotations", blocking=True, description="Every ranking orders all candidates")
def annotations_order_all_candidates() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.annotations_order_all_candidates(DATA))


@dg.asset_check(asset="annotations", description="No annotator's rankings are doubtful")
def annotators_agree() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.annotators_agree(DATA))


@dg.asset_check(asset="pairs", description="As many Yes as No")
def labels_are_balanced() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.labels_are_balanced(DATA))


@dg.asset_check(asset="pairs", blocking=True, description="No prompt of the benchmark is trained on")
def benchmark_is_held_out() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.benchmark_is_held_out(DATA))


@dg.asset_check(asset="cot_labels", blocking=True, description="Every answer starts with its pair's label")
def answers_agree_with_labels() -> dg.AssetCheckResult:
    from paco_core.data import checks

    return as_result(checks.answers_agree_with_labels(DATA))
