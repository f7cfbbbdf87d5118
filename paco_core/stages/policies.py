"""Adapters of the image generators, trained by GRPO against the served reward at low resolution."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.experiments.training import recipe_of, train
from paco_core.grpo.trainer import Reports
from paco_core.io import paths
from paco_core.io.files import folder_digest
from paco_core.policies.adapted import adapted
from paco_core.runtime import checkpoints
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.provenance.chain import ENDPOINT_TAG
from paco_core.runtime.provenance.shipping import ship
from paco_core.runtime.tracking.models import registered_name
from paco_core.tasks.summary import Summary
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext


def assist(params: Params, item: str | None, root: Path) -> None:
    """Run training on ranks other than the first, without reporting."""
    code = StageCodes.present(root).of("policies", item).digest
    train(
        params,
        root,
        str(item),
        root / paths.POLICIES / str(item),
        checkpoints.stage_folder(root, f"policies@{item}"),
        code,
        lambda path: root / path,
        Reports(),
    )


def run(ctx: StageContext) -> None:
    name = str(ctx.item)
    if name not in ctx.params.policies.recipes:
        return ctx.skip(paths.POLICIES / name, f"policies.recipes.{name} is null")
    params = ctx.params.policies.of(recipe_of(ctx.params, name))
    place = paths.POLICIES / name
    samples, updates = params.prompts_per_epoch * params.group_size, params.updates_per_epoch
    recipe = params.recipes[name]
    summary = Summary(task_of(recipe).success(ctx.params.world), max(recipe.eval_sizes))
    with ctx.writing(place) as out, ctx.progress(params.epochs, "epochs") as progress:
        out.mkdir()
        reports = Reports(
            say=ctx.say,
            metrics=lambda values, epoch: ctx.tracker.metrics(
                {**summary.of(values), **values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates
            ),
            picture=lambda image, key, epoch: ctx.image(image, key, epoch * updates),
            epoch=lambda done, note: progress.advance(done - progress.done, note),
        )
        kept = checkpoints.stage_folder(ctx.root, ctx.label)
        outcome, judges = train(ctx.params, ctx.root, name, out, kept, ctx.code.digest, ctx.read, reports, place)
        if judges:
            ctx.endpoint = judges
            ctx.tracker.tags({ENDPOINT_TAG: judges})
        command = f"python -m paco_core run policies --item {name}"
        card = out / "adapter" / "README.md"
        if problem := ship(out, place, ctx.root, ctx.label, command, ctx.inputs, ctx.code, ctx.endpoint, card):
            ctx.say(problem)
    adapter = ctx.root / place / "adapter"
    ctx.tracker.adapter(
        registered_name(name), place, adapter, adapted(ctx.root, params, name), {"dvc.md5": folder_digest(adapter)}
    )
    ctx.tracker.metrics(summary.last, params.epochs * updates, measures="")
    ctx.report(outcome.metrics(), {"": place})
