"""Adapters of the image generators, trained by GRPO against the served reward at low resolution."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Pictures, Table
from paco_core.runtime.stage import Check, Cost, Stage, View

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from paco_core.config.params import Params
    from paco_core.config.params_policies import PolicyRecipe
    from paco_core.grpo.checks import Row
    from paco_core.io.check_report import CheckReport
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.launch import Rank
    from paco_core.runtime.preview import Preview

SHOWN_PROMPTS = 6


def _cost(params: Params, root: Path) -> dict[str, Cost]:
    from paco_core.planning.costs import training_cost
    from paco_core.planning.planned_prompts import plan_prompts_or_empty

    planned = plan_prompts_or_empty(params, root)
    return {name: training_cost(params, name, root, planned) for name in params.policies.recipes}


def _check_each(
    root: Path, item: str | None, check: Callable[[Sequence[Row], PolicyRecipe], CheckReport]
) -> list[CheckReport]:
    """In the run of one recipe that recipe: the others may not be trained yet. By itself all of them."""
    from paco_core.config.params import PARAMS_FILE, load
    from paco_core.grpo.checks import read_training_log
    from paco_core.io.check_report import CheckReport

    recipes = load(root / PARAMS_FILE).policies.recipes
    names = list(recipes) if item is None else [item]
    if untrained := [name for name in names if name not in recipes]:
        return [CheckReport.skipped(untrained[0], "ERROR", f"policies.recipes.{untrained[0]} is null")]
    return [
        check(read_training_log(root / paths.POLICIES / name / "training_log.csv"), recipes[name]) for name in names
    ]


def _no_collapse(root: Path, item: str | None) -> list[CheckReport]:
    from paco_core.grpo import checks

    return _check_each(root, item, lambda log, recipe: checks.collapse(log, recipe.eval_sizes))


def _ratio_is_one(root: Path, item: str | None) -> list[CheckReport]:
    from paco_core.grpo import checks

    return _check_each(root, item, checks.ratio_before_update)


def _gain_is_shared(root: Path, item: str | None) -> list[CheckReport]:
    from paco_core.grpo import checks

    results = _check_each(root, item, checks.shared_gain)
    return [replace(report, severity="WARN") for report in results]  # it stops a promotion, and no benchmark


def _images_stay_detailed(root: Path, item: str | None) -> list[CheckReport]:
    from paco_core.grpo import checks

    return _check_each(root, item, lambda log, recipe: checks.images_stay_detailed(log, recipe.eval_sizes))


def _preview(data: Path, item: str) -> dict[str, Preview]:
    """Evaluations on unseen prompts, newest first, and pictures before (above) and after training; of edits, what
    they are about on top."""
    import pandas as pd

    from paco_core.io.pictures import read_image

    folder = data / paths.POLICIES.name / item
    log = pd.read_csv(folder / "training_log.csv")
    measured = [name for name in log.columns if name.startswith("eval/")]
    rows = log.dropna(subset=measured, how="all")[["epoch", *measured]]
    previews: dict[str, Preview] = {"evaluations": Table(rows.iloc[::-1])}
    before = sorted((folder / "samples" / "before").rglob("*.png"))[:SHOWN_PROMPTS]
    after = [folder / "samples" / "after" / path.relative_to(folder / "samples" / "before") for path in before]
    if before and all(path.is_file() for path in after):
        about = [folder / "samples" / "reference" / f"{path.stem.rpartition('-')[0]}.png" for path in before]
        edits = all(path.is_file() for path in about)
        images = [read_image(path) for path in ((*about, *before, *after) if edits else (*before, *after))]
        lines = [*(["reference"] if edits else []), "before training", "after training"]
        captions = [line for line in lines for _ in before]
        previews["contact_sheet"] = Pictures(images, len(before), f"{item}: {', '.join(lines)}", captions)
    return previews


STAGE = Stage(
    seed=lambda params, item: recipe.seed if (recipe := params.policies.recipes.get(item or "")) else None,
    device=lambda params: params.policies.device,
    processes=lambda _params: 1,  # more with PACO_LAUNCHER=accelerate
    served=True,
    advice=(
        "lower policies.defaults.rollout_batch, policies.defaults.train_batch or the recipe's sizes, set "
        "policies.defaults.optimizer to adamw_8bit, or shard the weights (launch/fsdp2.yaml)"
    ),
    cost=_cost,
    headline=(
        # ``eval.64.consistency.change``, and no gap between the sizes. The gold metrics are the embedded world's;
        # the real world has none, and there the reward counts.
        tuple(
            f"eval.[0-9]*.{measure}.change"
            for measure in ("gold_consistency", "gold_editing", "consistency", "editing")
        ),
        tuple(f"eval.[0-9]*.{measure}.change" for measure in ("gold_following", "gold_kept", "clip_t")),
        ("eval.[0-9]*.drift.change",),  # with a hack meter; it begins at 0
        ("eval.[0-9]*.drift_low.change",),
        ("epochs",),
    ),
    preview=_preview,
    trains_recipe=True,
    view=View(
        "Policies compared",
        (
            ("Summary/goal", "LINE"),
            ("Summary/reward_ratio", "LINE"),
            ("Summary/goal", "BAR"),
            ("Summary/goal_change", "BAR"),
            ("Summary/guard", "LINE"),
            ("Summary/panel_diversity", "LINE"),
            ("Summary/drift", "LINE"),
            ("Summary/drift_low", "LINE"),
            ("Summary/agreement", "LINE"),
        ),
    ),
    checks=(
        Check("no_collapse", _no_collapse, "The panels of a set did not become one picture"),
        Check("ratio_is_one_before_update", _ratio_is_one, "Before an update the ratio is one, up to rounding"),
        Check("gain_is_shared", _gain_is_shared, "A held-out judge shares the gain, where the recipe names one"),
        Check("images_stay_detailed", _images_stay_detailed, "Images kept their edges, colors and brightness"),
    ),
)


def _recipe(ctx: StageContext | Rank) -> str:
    """The recipe that is trained: the item, or that of all rounds."""
    return ctx.params.rounds.recipe if paths.in_round(ctx.name) else str(ctx.item)


def _round_benchmark(ctx: StageContext) -> str:
    """The benchmark of a policy of a round, ``round_t2is@1``; empty for other policies."""
    return f"{paths.ROUND}{paths.T2IS.name}@{ctx.item}" if paths.in_round(ctx.name) else ""


def assist(rank: Rank) -> None:
    """Run training on ranks other than the first, without reporting."""
    from paco_core.grpo.trainer import RunContext
    from paco_core.runtime import checkpoints
    from paco_core.tasks.training import train_recipe

    name = _recipe(rank)
    final = rank.place(paths.POLICIES / name)
    context = RunContext(
        root=rank.root,
        out=rank.root / final,
        final=final,
        checkpoints=checkpoints.stage_folder(rank.root, rank.label),
        read=rank.read,
        code=rank.code.digest,
    )
    train_recipe(rank.params, name, context)


def run(ctx: StageContext) -> None:
    name = _recipe(ctx)
    if name not in ctx.params.policies.recipes:
        return ctx.skip(paths.POLICIES / name, f"policies.recipes.{name} is null")

    from paco_core.grpo.trainer import Reports, RunContext
    from paco_core.io.files import folder_digest
    from paco_core.policies.adapter_base import adapter_base
    from paco_core.runtime import checkpoints
    from paco_core.runtime.provenance.chain import ENDPOINT_TAG, SUMMARY_TAG
    from paco_core.runtime.provenance.text import write_provenance
    from paco_core.runtime.tracking.models import registered_name
    from paco_core.tasks.table import task_of
    from paco_core.tasks.training import Summary, train_recipe

    recipe = ctx.params.policies.recipes[name]
    final = ctx.place(paths.POLICIES / name)
    samples, updates = recipe.samples_per_epoch, recipe.updates_per_epoch
    summary = Summary(task_of(recipe).success(ctx.params.world), max(recipe.eval_sizes))
    with ctx.writing(final) as out, ctx.progress(recipe.epochs, "epochs") as progress:
        out.mkdir()
        reports = Reports(
            log=ctx.log,
            metrics=lambda values, epoch: ctx.tracker.metrics(
                {**summary.tracked(values), "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates
            ),
            picture=lambda image, key, epoch: ctx.image(image, key, epoch * updates),
            epoch=lambda completed, note: progress.advance(completed - progress.completed, note),
        )
        context = RunContext(
            root=ctx.root,
            out=out,
            final=final,
            checkpoints=checkpoints.stage_folder(ctx.root, ctx.label),
            read=ctx.read,
            code=ctx.code.digest,
            reports=reports,
            benchmark=_round_benchmark(ctx),
        )
        outcome, judges = train_recipe(ctx.params, name, context)
        if judges:
            ctx.endpoint = judges
            ctx.tracker.tags({ENDPOINT_TAG: judges})
        command = f"python -m paco_core run {ctx.name} --item {ctx.item}"
        if problem := write_provenance(out, final, ctx.root, ctx.label, command, ctx.inputs, ctx.code, ctx.endpoint):
            ctx.log(problem)
    adapter = ctx.root / final / "adapter"
    ctx.tracker.adapter(
        registered_name(name), final, adapter, adapter_base(ctx.root, recipe), {"dvc.md5": folder_digest(adapter)}
    )
    ctx.tracker.text(json.dumps(outcome.scores), "evaluation.json")
    ctx.tracker.tags({SUMMARY_TAG: json.dumps(summary.sources)})
    ctx.tracker.metrics(summary.last, int(outcome.rows[-1]["epoch"]) * updates, measures="")
    ctx.report(
        outcome.metrics(),
        {"": final},
        tracked=("stopped_early", "cut_prompts"),
        evaluations=(
            f"eval.SIZE.… are means over {recipe.eval_prompts} prompts x {len(recipe.eval_seeds)} seeds, "
            f"intervals are over prompts; {task_of(recipe).benchmark} measures the change on more"
        ),
    )
