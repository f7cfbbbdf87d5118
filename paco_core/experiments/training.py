"""One recipe of ``policies.recipes`` trained: its prompts, rewards, gold measure and policy, put together."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records import prompt_text
from paco_core.data.records.edit_records import read_edit_prompts
from paco_core.data.records.records import read_prompts
from paco_core.grpo.processes import Processes
from paco_core.grpo.prompt_split import held_out_edits, hold_out
from paco_core.grpo.sizes import refuse_sizes, token_pixels
from paco_core.grpo.trainer import Trainer
from paco_core.io import files, paths
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.encodings import cache_folder
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources
from paco_core.serving.servers.endpoint import RewardEndpoint

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.grpo.prompt_split import PromptSplit
    from paco_core.grpo.scoring import Reference
    from paco_core.grpo.trainer import Outcome, Reports

Read = Callable[[Path], Path]  # an input of the stage: its place, after a look whether it is there


def _content(root: Path, model: str) -> str:
    """What a model is: the digest of its folder, or its hub id."""
    return files.folder_digest(root / model) if (root / model).is_dir() else model


def _prompts(params: Params, edits: bool, read: Read) -> tuple[PromptSplit, Reference | None]:
    """What a policy trains on and is watched on; of edits, what gives their reference pictures."""
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
    if judge is not None and not (root / judge).is_dir():
        raise DataError(f"judge {judge}: no such folder; a judge is served from a folder")
    folder = read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, params.serving, root, wait=False)


def recipe_of(params: Params, name: str) -> PolicyRecipe:
    recipes = params.policies.recipes
    if name not in recipes:
        raise DataError(f"no recipe {name!r} in policies.recipes; there are: {', '.join(recipes)}")
    return recipes[name]


def train(
    params: Params, root: Path, name: str, out: Path, checkpoints: Path, code: str, read: Read, reports: Reports
) -> tuple[Outcome, str]:
    """Train one recipe into ``out``; what came out, and the names of the judges that were asked.

    Args:
        checkpoints: where to go on from, and to keep what the next run goes on from.
        code: digest of the code that trains; weights that other code made are not gone on with.
    """
    grpo, recipe = params.policies, recipe_of(params, name)
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
            cache=cache_folder(root),
        )
        if processes.main:
            split.write(out)
        gold = _gold(params, edits, read)
        for endpoint in endpoints.values():
            endpoint.ready()
        judges = {judge: stack.enter_context(endpoint.client()) for judge, endpoint in endpoints.items()}
        sources = Sources(judges, root)
        test = recipe.test_rewards
        outcome = Trainer(
            policy,
            grpo,
            recipe,
            registry.build_set(recipe.rewards, sources),
            split.trained,
            split.unseen,
            identity={
                "code": code,
                "policy": _content(root, recipe.model),
                "start": _content(root, recipe.start) if recipe.start else "",
                "reward": judges[None].model if None in judges else "",
                **{n: _content(root, t.model) for s in sets for n, t in s.terms.items() if t.model},
            },
            test_rewards=registry.build_set(test, sources) if test else None,
            gold=gold,
            max_failed_share=params.serving.max_failed_share,
            reports=reports,
            processes=processes,
            reference=reference,
        ).run(out, checkpoints)
    return outcome, ", ".join(endpoint.model for endpoint in endpoints.values())
