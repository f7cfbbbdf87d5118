"""Adapter of the image generator, trained by GRPO against the served reward at low resolution."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import files, paths
from paco_core.dataset.records import read_prompts
from paco_core.files import DataError
from paco_core.provenance.chain import ENDPOINT_TAG
from paco_core.provenance.shipping import ship

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.context import StageContext
    from paco_core.dataset.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.serving.endpoint import RewardEndpoint


def _content(root: Path, model: str) -> str:
    """What a model is: the digest of its folder, or its hub id."""
    return files.folder_digest(root / model) if (root / model).is_dir() else model


def _gold(ctx: StageContext) -> Gold | None:
    """The embedded world's truth about consistency and prompt following; None in the real world."""
    if ctx.params.world != "storybook":
        return None
    from paco_core.benchmarks.set_measures import Gold as Measure
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Recogniser

    measure = Measure(Recogniser.from_pretrained(ctx.read(Path(str(ctx.params.annotations.model)))))

    def gold(panels: list[list[Image]], records: list[PromptRecord]) -> dict[str, float]:
        found = measure.measure(RewardBatch(records, panels))
        return {name: float(values.mean()) for name, values in found.items()}

    return gold


def _lease(ctx: StageContext, judge: str | None) -> AbstractContextManager[RewardEndpoint]:
    """A server of the project's reward model (None), or of another judge in a folder; it may still be loading."""
    from paco_core.serving.endpoint import RewardEndpoint

    if judge is not None and not (ctx.root / judge).is_dir():
        raise DataError(f"reward consistency, model {judge}: no such folder; a judge is served from a folder")
    folder = ctx.read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, ctx.params.serving, ctx.root, wait=False)


def run(ctx: StageContext) -> None:
    params, name = ctx.params.policies, str(ctx.item)
    if name not in params.recipes:
        raise DataError(f"no recipe {name!r} in policies.recipes; there are: {', '.join(params.recipes)}")
    recipe = params.recipes[name]
    records = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl")
    model = str(ctx.read(Path(recipe.model))) if (ctx.root / recipe.model).is_dir() else recipe.model
    out = ctx.keep(paths.POLICIES / name)

    from paco_core.rewards import registry

    sets = [rewards for rewards in (recipe.rewards, recipe.test_rewards) if rewards is not None]
    for rewards in sets:
        registry.check(rewards)
    with ExitStack() as stack:
        # The policy loads while the servers of the rewards start.
        endpoints = {judge: stack.enter_context(_lease(ctx, judge)) for judge in registry.judges_of(*sets)}
        asked = ", ".join(endpoint.model for endpoint in endpoints.values()) or None
        if asked:
            ctx.tracker.tags({ENDPOINT_TAG: asked})

        from paco_core.grpo.prompt_split import hold_out
        from paco_core.grpo.trainer import Reports, Trainer
        from paco_core.policies import base

        policy = base.load(recipe.family, model, params.device, params.dtype)
        split = hold_out(records, params.eval_prompts, params.seed)
        split.write(out)
        gold = _gold(ctx)
        for endpoint in endpoints.values():
            endpoint.ready()
        judges = {judge: stack.enter_context(endpoint.client()) for judge, endpoint in endpoints.items()}
        makings = registry.Makings(judges, ctx.root)
        test = recipe.test_rewards
        samples = params.prompts_per_epoch * params.group_size
        progress = stack.enter_context(
            ctx.progress(params.epochs if recipe.epochs is None else recipe.epochs, "epochs")
        )
        outcome = Trainer(
            policy,
            params,
            recipe,
            registry.build_set(recipe.rewards, makings),
            split.trained,
            split.unseen,
            identity={
                "policy": _content(ctx.root, recipe.model),
                "start": _content(ctx.root, recipe.start) if recipe.start else "",
                "reward": judges[None].model if None in judges else "",
                **{n: _content(ctx.root, t.model) for s in sets for n, t in s.terms.items() if t.model},
            },
            test_rewards=registry.build_set(test, makings) if test else None,
            gold=gold,
            max_failed_share=ctx.params.serving.max_failed_share,
            reports=Reports(
                say=ctx.say,
                metrics=lambda values, epoch: ctx.tracker.metrics(
                    {**values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * params.updates_per_epoch
                ),
                picture=lambda image, key, epoch: ctx.image(image, key, epoch * params.updates_per_epoch),
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            ),
        ).run(out)
    ctx.tracker.external_model(f"paco-{name}", paths.POLICIES / name, files.folder_digest(out / "adapter"))
    command = f"python -m paco_core run policies --item {name}"
    card = out / "adapter" / "README.md"
    problem = ship(out, ctx.root, ctx.label, command, ctx.recipe, ctx.run(asked), card)
    if problem:
        ctx.say(problem)
    ctx.report(outcome.metrics())
