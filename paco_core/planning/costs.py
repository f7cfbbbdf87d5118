"""What each stage would do, need and cost with the parameters at hand, before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.pairs.imported_pairs import count_to_train_on
from paco_core.planning.device_memory import device_memory, painting_gb
from paco_core.planning.skipped_stages import skipped_stages
from paco_core.planning.weights import model_gb
from paco_core.planning.workload import Workload
from paco_core.policies.families import family_of
from paco_core.storybook import bench_texts
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

#: Seconds for one unit of work on two cores with the small models, measured by `make demo`.
CPU_SECONDS = {
    "grid_step": 0.008,
    "reward_pair": 0.0125,
    "rollout_step": 0.006,
    "score_pair": 0.007,
    "train_sample": 0.01,
    "bench_question": 0.002,
}
WITHOUT_BACKWARD = 1 / 3  # of a trained pass's time
CRITERIA, TEXTS = 10, 6  # of a record and of a panel: the mean of 298 public records; one for each trait of storybook
START_UP_S, LIGHT_S = 5.0, 2.0  # a stage's imports, MLflow and the loading of models; of a stage without models
PAIRS_AN_INSTANCE = 1.05  # rule top1_bottom1: two, less duplicates, contradictions and what is left to balance


@dataclass(frozen=True)
class StageCost:
    """One row of `paco check`: memory in GB (CPU or GPU), time in seconds or None where nobody measured."""

    stage: str
    work: str
    memory_gb: float
    seconds: float | None
    device: str
    note: str = ""


def _writing_s(engine: str) -> float | None:
    """Seconds of a stage that writes texts: an endpoint takes the time it takes."""
    return None if engine == "openai" else LIGHT_S


def training_seconds(done: Workload, larger: float = 1.0) -> float:
    """Seconds of a training's epochs with the small models, without its evaluations.

    Args:
        larger: work of a transformer pass over that of one at 64 x 64 pixels.
    """
    trained = done.trained_passes + WITHOUT_BACKWARD * done.untrained_passes
    passes = done.rollout_passes * CPU_SECONDS["rollout_step"] + trained * CPU_SECONDS["train_sample"]
    scored = done.images_an_epoch * done.questions_a_picture * CPU_SECONDS["score_pair"]
    return done.epochs * (passes * larger + scored)


def _painted(recipes: Iterable[PolicyRecipe], cases: int, steps: int) -> tuple[int, int]:
    """(pictures, transformer passes) of a benchmark that paints its cases at every size, before and after training."""
    pictures = passes = 0
    for recipe in recipes:
        painted = 2 * cases * len(recipe.eval_sizes)
        pictures += painted
        passes += painted * steps * family_of(recipe.family).passes_a_step(recipe.guidance)
    return pictures, passes


def _edits(root: Path, params: Params, base: float) -> StageCost:
    """The base editors' pictures of the training edit prompts."""
    edits, count = params.edits, params.edit_prompts.count or 0
    prompts = max(0, count - params.edit_prompts.unseen)
    pictures = len(edits.painters) * prompts * len(edits.seeds)
    passes = sum(family_of(p.family).passes_a_step(p.guidance) for p in edits.painters)
    work = passes * prompts * len(edits.seeds) * edits.steps * CPU_SECONDS["rollout_step"]
    return StageCost(
        "edits",
        f"{pictures} pictures of {edits.size} x {edits.size}, {edits.steps} steps",
        base + max((model_gb(root, painter.model) for painter in edits.painters), default=0.0),
        START_UP_S + work if edits.device == "cpu" else None,
        edits.device,
    )


def _bench_questions(params: Params) -> int:
    """Questions of T2IS-Bench about what ``t2is`` paints; the stage itself counts those of the records at hand."""
    bench, painted = params.t2is_bench, params.t2is
    rows, columns = (int(n) for n in params.prompts.layout.split("x"))
    panels = rows * columns
    criteria = sum(map(len, bench_texts.criteria().values())) if params.world == "storybook" else CRITERIA
    a_set = (criteria * panels * (panels - 1) // 2 if bench.consistency else 0) + (
        panels * TEXTS if bench.alignment else 0
    )
    states = 3 if painted.separately else 2
    sizes = sum(len(recipe.eval_sizes) for recipe in recipes_of(SETS, params.policies).values())
    return min(painted.prompts, bench.prompts or painted.prompts) * len(painted.seeds) * states * sizes * a_set


def prompts_at_hand(params: Params, root: Path) -> int:
    """Prompts of the stage ``prompts``; of a file whose records are all asked for, its lines, 0 where it is missing."""
    if params.prompts.engine == "none":
        return 0
    return _lines(root / str(params.prompts.source)) if params.prompts.count is None else params.prompts.count


def _pairs(params: Params, root: Path, instances: int) -> int:
    """Training pairs: of the rankings at most, of the edits that are asked for, and the imported ones that are here."""
    ranked = int(instances * (1 - params.pairs.benchmark_share) * PAIRS_AN_INSTANCE)
    imported = count_to_train_on(root / params.pairs.imported) if params.pairs.imported else 0
    return ranked + imported + (params.pairs.editing.count or 0)


def _lines(file: Path) -> int:
    """Records of a JSON Lines file; 0 where it is missing, which `paco check` reports."""
    if not file.is_file():
        return 0
    with file.open("rb") as lines:
        return sum(1 for line in lines if line.strip())


def _edit_prompts(params: Params) -> str:
    return "0" if params.edit_prompts.source == "none" else str(params.edit_prompts.count or "all")


def stage_costs(params: Params, root: Path) -> list[StageCost]:
    """Estimate of every stage, in the order of the graph."""
    base = 1.2  # GB: Python with torch, diffusers and transformers
    written = prompts_at_hand(params, root)
    prompts = params.diverse_prompts.target or written
    pictures = prompts * len(params.grids.seeds)
    chosen = params.diverse_prompts.target or params.diverse_prompts.threshold is not None
    rows, columns = (int(n) for n in params.prompts.layout.split("x"))
    panels = rows * columns
    instances = prompts * panels * len(params.grids.seeds) * (len(params.grids.seeds) - 1)
    pairs = _pairs(params, root, instances)
    cpu = params.grids.device == "cpu"
    s = CPU_SECONDS

    def seconds(work: float) -> float | None:
        return START_UP_S + work if cpu else None

    reward_gb = model_gb(root, params.reward.base)
    table = [
        StageCost("prompts", f"{written} prompts", base, _writing_s(params.prompts.engine), "cpu"),
        StageCost(
            "diverse_prompts",
            f"{written} -> {prompts} prompts",
            base + (model_gb(root, params.diverse_prompts.model) if chosen else 0.0),
            seconds(2) if chosen else LIGHT_S,
            params.diverse_prompts.device if chosen else "cpu",
        ),
        StageCost(
            "grids",
            f"{pictures} pictures of {params.grids.height} x {params.grids.width}, {params.grids.steps} steps",
            base + model_gb(root, params.grids.model),
            seconds(pictures * params.grids.steps * s["grid_step"]),
            params.grids.device,
            f"{len(params.grid_shards)} shards",
        ),
        StageCost("rankings", f"{instances} instances", base, LIGHT_S, "cpu"),
        StageCost("annotations", f"{instances} rankings", base, seconds(instances / 400), "cpu"),
        StageCost("edit_prompts", f"{_edit_prompts(params)} editing prompts", base, LIGHT_S, "cpu"),
        _edits(root, params, base),
        StageCost("pairs", f"at most {pairs} pairs", base, LIGHT_S, "cpu"),
        StageCost("cot_labels", f"at most {pairs} answers", base, _writing_s(params.cot_labels.engine), "cpu"),
    ]
    steps = params.reward.epochs * max(1, pairs // (params.reward.batch_size * params.reward.accumulation))
    table += [
        StageCost("reward_lora", f"published weights, {params.reward.source}", base, None, "cpu")
        if params.reward.source != "train"
        else StageCost(
            "reward_lora",
            f"about {steps} optimiser steps of {params.reward.batch_size * params.reward.accumulation} pairs",
            base + 2.5 * reward_gb,
            seconds(steps * params.reward.batch_size * s["reward_pair"]),
            params.reward.device,
            "" if cpu else "published: 16 h on 2 x A100",
        ),
        StageCost("reward_merged", "1 merge", base + 2 * reward_gb, seconds(3), params.reward.device),
    ]
    p = params.policies
    for name, recipe in p.recipes.items():
        done, family = Workload.of(params, name), family_of(recipe.family)
        held = device_memory(params, name, root) if p.device.startswith("cuda") else None
        samples, evaluations = done.epochs * done.images_an_epoch, done.evaluations * done.evaluation_images
        asked = samples * done.questions_a_picture
        painted = family.passes_a_step(recipe.guidance) * evaluations * p.eval_steps * 2 * s["rollout_step"]
        table.append(
            StageCost(
                f"policies@{name}",
                f"{done.epochs} epochs, {samples} samples, {asked} scored pairs, "
                f"{done.optimiser_steps} optimiser steps, {evaluations} evaluation pictures",
                held.together_gb if held else base + 2.5 * model_gb(root, recipe.model) + reward_gb,
                seconds(training_seconds(done) + painted),
                p.device,
                "" if cpu or family.edits else "published: 6.0 h on 8 x H100",
            )
        )
    bench = params.consistency_rank.max_instances or instances
    sets, set_passes = _painted(
        recipes_of(SETS, p).values(), params.t2is.prompts * len(params.t2is.seeds), params.t2is.steps
    )
    edits, edit_passes = _painted(
        recipes_of(EDITS, p).values(), params.gedit.prompts * len(params.gedit.seeds), params.gedit.steps
    )
    table += [
        StageCost(
            "consistency_rank",
            f"at most {bench} instances, {bench * 4} pairs by each model",
            base + 2 * reward_gb,
            seconds(bench * 4 * 2 * s["score_pair"]),
            params.reward.device,
        ),
        StageCost(
            "edit_reward",
            "the public comparisons" if params.edit_reward.source else f"{params.edit_reward.count} comparisons",
            base + 2 * reward_gb,
            None if params.edit_reward.source else seconds(params.edit_reward.count * 8 / 3 * 2 * s["score_pair"]),
            params.reward.device,
        ),
        StageCost(
            "t2is",
            f"{sets} pictures",
            base + painting_gb(params, recipes_of(SETS, p).values(), root),
            seconds(set_passes * 2 * s["rollout_step"]),
            p.device,
        ),
        StageCost(
            "t2is_bench",
            f"about {_bench_questions(params)} questions",
            base + model_gb(root, judge.model if (judge := params.t2is_bench.consistency) else None),
            seconds(_bench_questions(params) * s["bench_question"]),
            params.reward.device,
        ),
        StageCost(
            "gedit",
            f"at most {edits} pictures",
            base + painting_gb(params, recipes_of(EDITS, p).values(), root),
            seconds(edit_passes * 2 * s["rollout_step"]),
            p.device,
        ),
        StageCost("report", "1 page", base, LIGHT_S, "cpu"),
    ]
    skipped = skipped_stages(params)
    return [
        StageCost(cost.stage, f"nothing: {skipped[cost.stage]}", base, LIGHT_S, "cpu")
        if cost.stage in skipped
        else cost
        for cost in table
    ]
