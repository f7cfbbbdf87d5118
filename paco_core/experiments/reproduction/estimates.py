"""How long a cell will take, estimated before it starts."""

from __future__ import annotations

from pathlib import Path

from paco_core.config.params import Params
from paco_core.experiments.reproduction.exam import Exam
from paco_core.experiments.reproduction.variants import Variant
from paco_core.planning.amounts import CPU_SECONDS, START_UP_S
from paco_core.planning.costs import training_seconds
from paco_core.planning.footprint import architecture
from paco_core.planning.workload import Workload
from paco_core.policies.families import family_of


def seconds(root: Path, params: Params, variant: Variant, exam: Exam) -> float | None:
    """Estimate for one seed on two cores with the small models; None where nobody measured (a GPU).

    Args:
        exam: whose pictures are painted afterwards to be measured.
    """
    if params.policies.recipes[variant.recipe].device != "cpu":
        return None
    asked = variant.applied(params, 0)
    work, rule, unit = Workload.from_params(asked, variant.recipe), asked.policies.recipes[variant.recipe], CPU_SECONDS
    larger = _relative_size(root, params, asked, variant.recipe)
    watched = work.evaluations * work.evaluation_images * params.policies.recipes[variant.recipe].eval_steps
    examined = exam.pictures * exam.cases.steps
    each = family_of(rule.family).passes_a_step(rule.guidance)
    # Evaluations paint the small and the large size alike: half of them cost about three times as much.
    return (
        START_UP_S
        + training_seconds(work, larger)
        + 2 * each * unit["rollout_step"] * (watched + examined)
        + exam.pictures * work.questions_a_picture * unit["score_pair"] * len(rule.eval_sizes) / 2
    )


def _relative_size(root: Path, params: Params, asked: Params, name: str) -> float:
    """Work of a pass at the variant's training size over that at the recipe's own."""
    found, rule = architecture(root, asked.policies.recipes[name].model), asked.policies.recipes[name]
    if found is None:
        return 1.0
    sides = rule.train_size, params.policies.recipes[name].train_size
    new, own = (found.pass_flops(*found.tokens(rule, side)) for side in sides)
    return new / own


def words(value: float | None) -> str:
    """``about 6.0 min a seed``."""
    return "time unknown (not measured on this device)" if value is None else f"about {value / 60:.1f} min per seed"
