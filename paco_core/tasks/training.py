"""Task of a training: what a policy trains on and is watched on, and the metrics that all recipes share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from paco_core.config.measures import COPIES, DRIFT_PROMPTS, ENDS, GAINS, IMAGE_CONTENT, IMAGE_MEASURES
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


# Equal names for all recipes. MLflow sorts the groups of a run without case; the saved view shows these metrics first.
GOAL, GOAL_CHANGE, GUARD, RATIO = "Summary/goal", "Summary/goal_change", "Summary/guard", "Summary/reward_ratio"
DIVERSITY = "Summary/panel_diversity"
#: Of the hack meter: image measures of each policy; and if the recipe has a held-out reward model, gains with ends of
#: intervals as separate metrics, because a chart shows no interval.
HACK_METER = {
    f"Summary/{name}": name
    for name in (*IMAGE_CONTENT, COPIES, "drift", "drift_low", "trained_gain", "held_out_gain", "grid_score")
}
#: Names of the hack meter's metrics at one size, with the ends of their intervals.
HACK_METER_DETAILS = frozenset(
    {*IMAGE_CONTENT, COPIES, *IMAGE_MEASURES, DRIFT_PROMPTS, *(f"{gain}{end}" for gain in GAINS for end in ("", *ENDS))}
)


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
        for end in ("_low", "_high"):
            self._places[f"{GOAL_CHANGE}{end}"] = f"{self._places[GOAL_CHANGE]}{end}"
        self.last: dict[str, float] = {}  # the latest value of each

    @property
    def sources(self) -> dict[str, str]:
        """The metric of the training log that each summary metric which has a value repeats."""
        return {name: self._places[name] for name in self.last}

    def of(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The summary metrics among the metrics of an epoch or an evaluation."""
        values = {name: figures[place] for name, place in self._places.items() if place in figures}
        self.last |= values
        return values

    def tracked(self, figures: Mapping[str, float]) -> dict[str, float]:
        """The metrics of an epoch or an evaluation for MLflow: none occurs twice.

        A summary metric replaces the metric that it repeats. Some metrics are in ``training_log.csv``, the metrics file
        or ``evaluation.json`` only: changes and gaps, which follow from evaluations; tamed rewards; evaluations of
        single layouts; and the hack meter at other sizes.
        """
        repeated = set(self._places.values())
        remaining = {name: v for name, v in figures.items() if name not in repeated and not _is_detail(name)}
        return {**self.of(figures), **remaining}


def _is_detail(name: str) -> bool:
    """Whether a metric of a training log is left out of MLflow."""
    group, _, measure = name.partition("/")
    if group in ("change", "gap", "tamed"):
        return True
    measure = measure.partition("/")[2]  # without the size
    return group == "eval" and ("/" in measure or measure in HACK_METER_DETAILS)
