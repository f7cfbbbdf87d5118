"""Adapter of the image generator, trained by GRPO against the served reward at low resolution."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import files, paths
from paco_core.dataset.records import read_prompts
from paco_core.files import DataError

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.context import StageContext
    from paco_core.dataset.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.serving.client import RewardClient


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


def _client(ctx: StageContext, stack: ExitStack) -> RewardClient:
    """A client of the reward model's endpoint, which runs for as long as ``stack`` is open."""
    from paco_core.serving.client import RewardClient
    from paco_core.serving.endpoint import RewardEndpoint

    serving = ctx.params.serving
    folder = ctx.read(paths.REWARD_MERGED)
    endpoint = stack.enter_context(RewardEndpoint.lease(folder, serving, ctx.root))
    client = RewardClient(
        endpoint.url,
        endpoint.model,
        in_flight=serving.requests_in_flight,
        timeout_s=serving.request_timeout_s,
        cache=None,  # every sampled picture is new
        max_failed_share=serving.max_failed_share,
    )
    stack.callback(client.close)
    return client


def run(ctx: StageContext) -> None:
    params, name = ctx.params.policies, str(ctx.item)
    if name not in params.recipes:
        raise DataError(f"no recipe {name!r} in policies.recipes; there are: {', '.join(params.recipes)}")
    recipe = params.recipes[name]
    records = read_prompts(ctx.read(paths.DIVERSE_PROMPTS) / "prompts.jsonl")
    model = ctx.root / recipe.model if (ctx.root / recipe.model).is_dir() else recipe.model
    out = ctx.keep(paths.POLICIES / name)

    with ExitStack() as stack, ThreadPoolExecutor(1) as beside:
        from paco_core.policies import base

        # The policy loads while the reward's endpoint starts.
        loading = beside.submit(base.load, recipe.family, str(model), params.device, params.dtype)
        client = _client(ctx, stack) if "consistency" in recipe.rewards.terms else None

        from paco_core.grpo.prompt_split import hold_out
        from paco_core.grpo.trainer import Reports, Trainer
        from paco_core.rewards import registry

        split = hold_out(records, params.eval_prompts, params.seed)
        split.write(out)
        gold = _gold(ctx)
        policy = loading.result()
        rewards = {
            term: registry.build(term, settings, client, ctx.root) for term, settings in recipe.rewards.terms.items()
        }
        progress = stack.enter_context(ctx.progress(params.epochs, "epochs"))
        outcome = Trainer(
            policy,
            params,
            recipe,
            rewards,
            split.trained,
            split.unseen,
            identity={
                "policy": _content(ctx.root, recipe.model),
                "consistency": client.model if client else "",
                **{n: _content(ctx.root, t.model) for n, t in recipe.rewards.terms.items() if t.model},
            },
            gold=gold,
            max_failed_share=ctx.params.serving.max_failed_share,
            reports=Reports(
                say=ctx.say,
                metrics=ctx.tracker.metrics,
                picture=ctx.image,
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            ),
        ).run(out)
    ctx.tracker.external_model(f"paco-{name}", paths.POLICIES / name, files.folder_digest(out / "adapter"))
    ctx.report(outcome.metrics())
