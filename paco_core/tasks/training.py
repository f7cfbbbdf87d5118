"""Task of a training: what a policy trains on and is watched on, and the metrics that all recipes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paco_core.grpo.hacking import AGREEMENT
from paco_core.grpo.prompt_split import with_preferences
from paco_core.grpo.recipe import train_policy
from paco_core.tasks.base import Success
from paco_core.tasks.preferences import preferences_of
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.grpo.outcome import Outcome
    from paco_core.grpo.trainer import RunContext


def train_recipe(params: Params, name: str, context: RunContext) -> tuple[Outcome, str]:
    """Train a recipe by its name; see :func:`paco_core.grpo.recipe.train_policy`.

    Raises:
        DataError: when there is no such recipe, too few prompts, or a reward that cannot judge its pictures.
    """
    recipe = params.policies.recipe(name)
    task = task_of(recipe)
    split = task.split(recipe, context.read)
    if params.world == "storybook":
        task.validate_truth([*split.trained, *split.unseen])
    if recipe.offline:
        ids = {record.idx for record in (*split.trained, *split.unseen)}
        split = with_preferences(split, preferences_of(recipe, ids, context.read, context.reports.log))
        context.reports.log(f"{len(split.trained)} training prompts have a best and a worst picture")
    context = replace(context, benchmark=context.benchmark or task.benchmark)
    return train_policy(params, name, split, partial(task.unseen_truth, params, context.read), context)


# With a capital, for MLflow's charts of a run stand in the order of the code points of their groups.
GOAL, GOAL_CHANGE, GUARD, RATIO = "Summary/goal", "Summary/goal_change", "Summary/guard", "Summary/reward_ratio"
DIVERSITY = "Summary/panel_diversity"
#: Of the hack meter, where the recipe has one: ends of intervals beside the means, for a chart shows no interval.
HACK_METER = {f"Summary/{name}": name for name in ("drift", "drift_low", "trained_gain", "held_out_gain", "grid_score")}


class Summary:
    """Selects the summary metrics from those of a training, at the largest evaluation size.

    ``Summary/goal`` is the metric that training should raise (ground truth in the embedded world), and
    ``Summary/goal_change`` is its change since the start. ``Summary/guard`` is the metric that must not fall. Task and
    world determine these metrics. ``Summary/drift`` and the keys of :data:`HACK_METER` indicate over-optimization of
    the reward model.
    """

    def __init__(self, success: Success, side: int) -> None:
        self._places = {GOAL: f"eval/{side}/{success.goal}", GOAL_CHANGE: f"change/{side}/{success.goal}"}
        if success.constraint is not None:
            self._places[GUARD] = f"eval/{side}/{success.constraint}"
        self._places |= {DIVERSITY: f"eval/{side}/panel_diversity", RATIO: "reward_ratio"}
        self._places |= {name: f"eval/{side}/{measure}" for name, measure in HACK_METER.items()}
        self._places["Summary/agreement"] = AGREEMENT
        self.last: dict[str, float] = {}  # the latest value of each

    def of(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The summary metrics among the metrics of an epoch or an evaluation."""
        values = {name: figures[place] for name, place in self._places.items() if place in figures}
        self.last |= values
        return values
