"""One recipe of ``policies.recipes`` trained: its prompts, rewards, gold measure and policy, put together."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.references import contents, model_at, model_content
from paco_core.grpo.sizes import refuse_sizes, token_pixels
from paco_core.grpo.trainer import Trainer
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.model_licence import licence_front
from paco_core.policies import base
from paco_core.policies.encodings import cache_folder
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.sources import Sources
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.tasks.table import task_of
from paco_core.training.processes import Processes

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.evaluation import Gold
    from paco_core.grpo.trainer import Outcome, Reports
    from paco_core.tasks.base import Read, Task


def _gold(task: Task, params: Params, read: Read) -> Gold | None:
    """The means of the embedded world's truth about pictures; None in the real world."""
    if params.world != "storybook":
        return None
    measure = task.truth(params, read(Path(str(params.annotations.model))))
    assert measure is not None, "the embedded world has a truth"

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


def identity(params: Params, root: Path, name: str, code: str, judges: Mapping[str, str]) -> dict[str, str]:
    """What a training depends on beside parameters, records and pictures, by content.

    Args:
        judges: what answers as each judge, :attr:`paco_core.serving.client.RewardClient.answers`.
    """
    gold = {"gold": model_content(root, str(params.annotations.model))} if params.world == "storybook" else {}
    named = contents(root, recipe_of(params, name))
    return {"code": code, **named, **gold, **{f"judge {judge}": answers for judge, answers in judges.items()}}


def train(
    params: Params,
    root: Path,
    name: str,
    out: Path,
    checkpoints: Path,
    code: str,
    read: Read,
    reports: Reports,
    place: Path = Path(),
) -> tuple[Outcome, str]:
    """Train one recipe into ``out``; what came out, and the names of the judges that were asked.

    Args:
        checkpoints: where to go on from, and to keep what the next run goes on from.
        code: digest of the code that trains; weights that other code made are not gone on with.
        place: where ``out`` will be once it is finished, for the paths on the model card.
    """
    grpo, recipe = params.policies, recipe_of(params, name)
    task = task_of(recipe)
    split, reference = task.split(params, recipe, read)
    model = str(model_at(root, recipe.model, f"policies.recipes.{name}.model"))
    sets = recipe.reward_sets.values()
    for rewards in sets:
        registry.check(rewards, task.given)
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
        gold = _gold(task, params, read)
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
            identity=identity(
                params, root, name, code, {str(judge): client.answers for judge, client in judges.items()}
            ),
            test_rewards=registry.build_set(test, sources) if test else None,
            gold=gold,
            max_failed_share=params.serving.max_failed_share,
            reports=reports,
            processes=processes,
            reference=reference,
            place=place,
            licence=licence_front(recipe.model, root),
        ).run(out, checkpoints)
    return outcome, ", ".join(endpoint.model for endpoint in endpoints.values())
