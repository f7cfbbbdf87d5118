"""Adapters of the image generators, trained by GRPO against the served reward at low resolution."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core import files, paths
from paco_core.dataset import prompt_text
from paco_core.dataset.edit_records import read_edit_prompts
from paco_core.dataset.records import read_prompts
from paco_core.files import DataError
from paco_core.provenance.chain import ENDPOINT_TAG
from paco_core.provenance.shipping import ship

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.context import StageContext
    from paco_core.dataset.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.grpo.prompt_split import PromptSplit
    from paco_core.grpo.scoring import Reference
    from paco_core.grpo.trainer import Outcome, Reports
    from paco_core.params import Params, PolicyRecipe
    from paco_core.serving.endpoint import RewardEndpoint

Read = Callable[[Path], Path]  # an input of the stage: its place, after a look whether it is there


def _content(root: Path, model: str) -> str:
    """What a model is: the digest of its folder, or its hub id."""
    return files.folder_digest(root / model) if (root / model).is_dir() else model


def _prompts(params: Params, edits: bool, read: Read) -> tuple[PromptSplit, Reference | None]:
    """What a policy trains on and is watched on; of edits, what gives their reference pictures."""
    from paco_core.grpo.prompt_split import held_out_edits, hold_out

    grpo = params.policies
    if not edits:
        path = read(paths.DIVERSE_PROMPTS) / "prompts.jsonl"
        records = read_prompts(path, lambda record: prompt_text.parse(record.prompt, record.layout))
        return hold_out(records, grpo.eval_prompts, grpo.seed), None
    records_of_edits, references = read_edit_prompts(read(paths.EDIT_PROMPTS))
    return held_out_edits(records_of_edits, grpo.eval_prompts, grpo.seed), references


def _gold(params: Params, edits: bool, read: Read) -> Gold | None:
    """The embedded world's truth about sets (consistency, prompt following) or edits; None in the real world."""
    if params.world != "storybook":
        return None
    from paco_core.benchmarks.edit_measures import EditGold
    from paco_core.benchmarks.set_measures import Gold as SetGold
    from paco_core.rewards.base import RewardBatch
    from paco_core.storybook.recogniser import Recogniser

    recogniser = Recogniser.from_pretrained(read(Path(str(params.annotations.model))))
    measure = EditGold(recogniser) if edits else SetGold(recogniser)

    def gold(panels: list[list[Image]], records: list[PromptRecord]) -> dict[str, float]:
        found = measure.measure(RewardBatch(records, panels))
        return {name: float(values.mean()) for name, values in found.items()}

    return gold


def _lease(params: Params, root: Path, read: Read, judge: str | None) -> AbstractContextManager[RewardEndpoint]:
    """A server of the project's reward model (None), or of another judge in a folder; it may still be loading."""
    from paco_core.serving.endpoint import RewardEndpoint

    if judge is not None and not (root / judge).is_dir():
        raise DataError(f"judge {judge}: no such folder; a judge is served from a folder")
    folder = read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, params.serving, root, wait=False)


def _recipe(params: Params, name: str) -> PolicyRecipe:
    recipes = params.policies.recipes
    if name not in recipes:
        raise DataError(f"no recipe {name!r} in policies.recipes; there are: {', '.join(recipes)}")
    return recipes[name]


def train(params: Params, root: Path, name: str, out: Path, read: Read, reports: Reports) -> tuple[Outcome, str]:
    """Train one recipe into ``out``; what came out, and the names of the judges that were asked."""
    from paco_core.grpo.processes import Processes
    from paco_core.grpo.sizes import refuse_sizes, token_pixels
    from paco_core.grpo.trainer import Trainer
    from paco_core.policies import base
    from paco_core.policies.encodings import FOLDER as ENCODINGS
    from paco_core.rewards import registry

    grpo, recipe = params.policies, _recipe(params, name)
    edits = base.policy_class(recipe.family).edits
    split, reference = _prompts(params, edits, read)
    model = str(read(Path(recipe.model))) if (root / recipe.model).is_dir() else recipe.model
    sets = [rewards for rewards in (recipe.rewards, recipe.test_rewards) if rewards is not None]
    for rewards in sets:
        registry.check(rewards, edits=edits)
    if multiple := token_pixels(root / recipe.model):
        refuse_sizes([*split.trained, *split.unseen], recipe, multiple)
    with ExitStack() as stack:
        # The policy loads while the servers of the rewards start.
        endpoints = {j: stack.enter_context(_lease(params, root, read, j)) for j in registry.judges_of(*sets)}
        processes = Processes(grpo.device)
        policy = base.load(
            recipe.family,
            model,
            processes.device or grpo.device,
            grpo.dtype,
            reference_size=recipe.reference_size,
            cache=root / ENCODINGS,
        )
        if processes.main:
            split.write(out)
        gold = _gold(params, edits, read)
        for endpoint in endpoints.values():
            endpoint.ready()
        judges = {judge: stack.enter_context(endpoint.client()) for judge, endpoint in endpoints.items()}
        makings = registry.Makings(judges, root)
        test = recipe.test_rewards
        outcome = Trainer(
            policy,
            grpo,
            recipe,
            registry.build_set(recipe.rewards, makings),
            split.trained,
            split.unseen,
            identity={
                "policy": _content(root, recipe.model),
                "start": _content(root, recipe.start) if recipe.start else "",
                "reward": judges[None].model if None in judges else "",
                **{n: _content(root, t.model) for s in sets for n, t in s.terms.items() if t.model},
            },
            test_rewards=registry.build_set(test, makings) if test else None,
            gold=gold,
            max_failed_share=params.serving.max_failed_share,
            reports=reports,
            processes=processes,
            reference=reference,
        ).run(out)
    return outcome, ", ".join(endpoint.model for endpoint in endpoints.values())


def assist(params: Params, item: str | None, root: Path) -> None:
    """What ranks other than the first do: their share of the training, without a word."""
    from paco_core.grpo.trainer import Reports

    out = root / paths.POLICIES / str(item)
    train(params, root, str(item), out, lambda path: root / path, Reports())


def run(ctx: StageContext) -> None:
    from paco_core.grpo.trainer import Reports

    name = str(ctx.item)
    params = ctx.params.policies.of(_recipe(ctx.params, name))
    out = ctx.keep(paths.POLICIES / name)
    samples, updates = params.prompts_per_epoch * params.group_size, params.updates_per_epoch
    with ctx.progress(params.epochs, "epochs") as progress:
        reports = Reports(
            say=ctx.say,
            metrics=lambda values, epoch: ctx.tracker.metrics(
                {**values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates
            ),
            picture=lambda image, key, epoch: ctx.image(image, key, epoch * updates),
            epoch=lambda done, note: progress.advance(done - progress.done, note),
        )
        outcome, judges = train(ctx.params, ctx.root, name, out, ctx.read, reports)
    if judges:
        ctx.endpoint = judges
        ctx.tracker.tags({ENDPOINT_TAG: judges})
    ctx.tracker.external_model(f"paco-{name}", paths.POLICIES / name, files.folder_digest(out / "adapter"))
    command = f"python -m paco_core run policies --item {name}"
    card = out / "adapter" / "README.md"
    problem = ship(out, ctx.root, ctx.label, command, ctx.recipe, ctx.endpoint, card)
    if problem:
        ctx.say(problem)
    ctx.report(outcome.metrics())
