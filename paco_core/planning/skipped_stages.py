"""Which stages have nothing to do with the parameters at hand, and why."""

from __future__ import annotations

from paco_core.config.params import Params
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of


def skipped_stages(params: Params) -> dict[str, str]:
    """Stage -> reason, for every stage that has nothing to do, but for policies: a null recipe is none."""
    no_grids = "prompts.engine is 'none'" if params.prompts.engine == "none" else "grids.seeds is empty"
    skipped = dict[str, str]()
    if not params.grids.seeds or params.prompts.engine == "none":
        skipped |= {"grids": no_grids, "rankings": "there are no grids", "annotations": "there is nothing to rank"}
        if params.consistency_rank.source is None:
            skipped["consistency_rank"] = "no ranking is held out, and consistency_rank.source is null"
    if params.prompts.engine == "none":
        skipped |= {"prompts": no_grids, "diverse_prompts": "there are no prompts"}
    if params.edit_prompts.source == "none":
        skipped["edit_prompts"] = "edit_prompts.source is 'none'"
    if not params.edits.painters:
        skipped["edits"] = "edits.painters is empty"
    if params.edit_reward.source is None and params.world != "storybook":
        skipped["edit_reward"] = "edit_reward.source is null"
    if not recipes_of(SETS, params.policies):
        skipped |= {"t2is": "no recipe paints sets", "t2is_bench": "no recipe paints sets"}
    bench = params.t2is_bench
    if not (bench.consistency or bench.alignment or bench.aesthetics):
        skipped["t2is_bench"] = "t2is_bench names no judge"
    if not recipes_of(EDITS, params.policies):
        skipped["gedit"] = "no recipe edits"
    return skipped
