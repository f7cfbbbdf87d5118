"""Checks of the data sets. The checks themselves are pure functions of the library."""

import dagster as dg

from pipelines.defs.asset_checks import Check, as_result, asset_checks
from pipelines.defs.graph import DATA, ROOT

CHECKS = asset_checks(
    "paco_core.data.checks",
    [
        Check("prompts_are_valid", "prompts", DATA, "Every prompt is valid, and none occurs twice", blocking=True),
        Check(
            "diverse_prompts_are_a_subset",
            "diverse_prompts",
            DATA,
            "Every diverse prompt is one of the prompts; no subcategory is emptied",
            blocking=True,
        ),
        Check(
            "edit_prompts_are_held_apart",
            "edit_prompts",
            DATA,
            "Every edit has its picture; none is both trained on and unseen",
            blocking=True,
        ),
        Check(
            "painted_edits_are_of_training_prompts",
            "edits",
            DATA,
            "Every painted edit is of a training prompt; pictures open",
            blocking=True,
        ),
        Check("rankings_are_complete", "rankings", DATA, "Every instance points at panels that exist", blocking=True),
        Check(
            "annotations_order_all_candidates",
            "annotations",
            DATA,
            "Every ranking orders all candidates",
            blocking=True,
        ),
        Check("annotators_agree", "annotations", DATA, "No annotator's rankings are doubtful"),
        Check("labels_are_balanced", "pairs", DATA, "As many Yes as No"),
        Check("benchmark_is_held_out", "pairs", DATA, "No prompt of the benchmark is trained on", blocking=True),
        Check(
            "answers_agree_with_labels", "cot_labels", DATA, "Every answer starts with its pair's label", blocking=True
        ),
    ],
)


@dg.asset_check(asset="grids", blocking=True, description="Every prompt has its grids, and pictures open")
def grids_are_complete(context: dg.AssetCheckExecutionContext) -> dg.AssetCheckResult:
    """In the run of one shard that shard: the others may not be painted yet. By itself all of them."""
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.data import checks

    if not context.has_partition_key:
        return as_result(checks.grids_are_complete(DATA))
    shards = load(ROOT / PARAMS_FILE).grid_shards
    return as_result(checks.grids_are_complete(DATA, int(context.partition_key), shards))
