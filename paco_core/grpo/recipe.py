"""The training of one recipe, put together: prompts, rewards and policy become the parts of a :class:`Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paco_core.config.references import contents, model_at, model_content
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.epoch_prompts import refuse_split_groups, refuse_uneven
from paco_core.grpo.evaluation import Evaluator, Gold
from paco_core.grpo.learner import Learner
from paco_core.grpo.model_card import model_card
from paco_core.grpo.offline import OfflineEpochs
from paco_core.grpo.online import Epochs, OnlineEpochs
from paco_core.grpo.outcome import Outcome, Reports
from paco_core.grpo.pages import EncodedPrompts, texts_of
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.sampler import Sampler
from paco_core.grpo.scoring import Scoring, groupwise
from paco_core.grpo.sizes import pages_of, refuse_sizes, token_pixels
from paco_core.grpo.trainer import Trainer
from paco_core.grpo.training_key import training_key
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.io.model_licence import licence_front
from paco_core.io.pictures import picture_digests, reference_digests
from paco_core.policies.base import Policy, Size, load_recipe
from paco_core.policies.compiled import check_compile, compile_blocks
from paco_core.policies.cuts import of_records, report
from paco_core.policies.encodings import cache_folder
from paco_core.policies.families import predecessors_of, refuse_stories, refuse_text_window
from paco_core.rewards import registry
from paco_core.rewards.base import RewardFunction
from paco_core.rewards.sources import Sources
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.training import fsdp2
from paco_core.training.optimizers import check_optimizer
from paco_core.training.precision import choose_kernels
from paco_core.training.processes import Processes, launched_processes
from paco_core.training.saving import try_to_save
from paco_core.training.sharding import uses_fsdp2

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe


@dataclass(frozen=True)
class Scorers:
    """What says how good a picture is.

    Attributes:
        rewards: the recipe's ``rewards`` by name.
        test: its ``test_rewards``, which answer at evaluations; None = the rewards of the training do.
        gold: measures that no training sees; None where nobody knows the truth.
    """

    rewards: Mapping[str, RewardFunction]
    test: Mapping[str, RewardFunction] | None = None
    gold: Gold | None = None


@dataclass(frozen=True)
class Place:
    """Where a training reads and writes.

    Attributes:
        root: the project.
        out: folder of the results while they are made.
        final: where ``out`` will be once it is finished, relative to the root, for the paths on the model card.
        checkpoints: where those of this training and of others like it lie, a folder an identity.
        read: gives the place of an input, after a look whether it is there.
    """

    root: Path
    out: Path
    final: Path
    checkpoints: Path
    read: Callable[[Path], Path]


@dataclass(frozen=True)
class TrainingSetting:
    """What a training has around it, beside its recipe.

    Attributes:
        identity: models, data and code by content, for checkpoints.
        max_failed_share: share of samples without a score that ends a training.
        place: folder of the results once they are finished, for the paths on the card.
        licence: of the base model, for the head of the card.
    """

    identity: Mapping[str, str] = field(default_factory=dict)
    max_failed_share: float = 0.05
    place: Path = Path()
    licence: Mapping[str, str] = field(default_factory=dict)
    reports: Reports = field(default_factory=Reports)
    processes: Processes = field(default_factory=Processes)


def assemble(
    recipe: PolicyRecipe, policy: Policy, split: PromptSplit, scorers: Scorers, setting: TrainingSetting | None = None
) -> Trainer:
    """Make a policy ready to be trained: encode all prompts, drop its encoders, attach the adapter.

    Raises:
        DataError: when prompts are too few, shared by training and evaluation, or sizes do not fit.
        ValueError: when the parts do not belong together.
    """
    setting, split = setting or TrainingSetting(), _at_image_sizes(recipe, split)
    processes, reports = setting.processes, setting.reports
    _refuse_misfits(recipe, policy, split, scorers, processes.world)
    choose_kernels(recipe.device, recipe.dtype)
    torch.manual_seed(recipe.seed)  # noise has generators of its own; this is for layers that draw, dropout say
    trained, seen = _prompts(recipe, policy, split, split.trained, [recipe.train_size])
    unseen, watched = _prompts(recipe, policy, split, split.unseen, recipe.eval_sizes)
    identity = {**setting.identity, **_preferred(split)}
    key = training_key(recipe, split.trained, split.unseen, [seen, watched], identity)
    texts = partial(texts_of, predecessors=trained.predecessors)
    cut = report(of_records(policy.cut, [*split.trained, *split.unseen], texts), reports.say)
    policy.drop_encoders()
    if recipe.start is None:
        policy.add_adapter(recipe.lora, recipe.seed)
    else:
        policy.start_from(recipe.start)
    if recipe.gradient_checkpointing:
        policy.enable_gradient_checkpointing()
    if recipe.compile:
        compile_blocks(getattr(policy, "transformer", None))
    if processes.sharded:
        fsdp2.shard(getattr(policy, "transformer", None), policy.device)
    learner = Learner(policy, recipe, processes, reports.say)
    if processes.main:
        try_to_save(policy.save_adapter)
    if processes.world > 1:
        reports.say(f"{processes.world} processes share the work of each epoch")
    scoring = Scoring(scorers.rewards, split.reference)
    tested = scoring if scorers.test is None else Scoring(scorers.test, split.reference)
    epochs: Epochs
    if split.preferences is not None:
        epochs = OfflineEpochs(policy, recipe, split.trained, trained.encoded, split.preferences)
    else:
        sampler = Sampler(policy, recipe, split.trained, trained, learner.objective, scoring, processes)
        epochs = OnlineEpochs(recipe, split.trained, sampler, learner.objective, setting.max_failed_share)
    return Trainer(
        recipe=recipe,
        split=split,
        learner=learner,
        epochs=epochs,
        evaluator=Evaluator(
            policy, recipe, split.unseen, unseen, tested, scorers.gold, processes, setting.max_failed_share
        ),
        key=key,
        card=partial(model_card, recipe, policy, split.unseen[0], setting.place.as_posix(), setting.licence),
        reports=reports,
        cut=cut,
    )


def _prompts(
    recipe: PolicyRecipe, policy: Policy, split: PromptSplit, records: Sequence[PromptRecord], sides: Sequence[int]
) -> tuple[EncodedPrompts, list[str]]:
    """Prompts, and the reference pictures of each edit at the sizes of its own pictures.

    Also the digests of these pictures.
    """
    references = None if split.reference is None else [split.reference(record) for record in records]
    sizes = [_sizes(recipe, policy, [record], sides) for record in records] if policy.edits else []
    before, length = predecessors_of(recipe), recipe.max_sequence_length
    prompts = EncodedPrompts.from_records(policy, records, before, length, recipe.guidance, references, sizes)
    return prompts, reference_digests(references or ())


def _at_image_sizes(recipe: PolicyRecipe, split: PromptSplit) -> PromptSplit:
    """The split, with training records of the proportions of their ranked images."""
    if split.preferences is None:
        return split
    sized = partial(split.preferences.at_image_size, record_size=recipe.record_size)
    return replace(split, trained=[sized(record) for record in split.trained])


def _preferred(split: PromptSplit) -> dict[str, str]:
    """The pairs of the training prompts, by their pixels."""
    if split.preferences is None:
        return {}
    pairs = [picture_digests(split.preferences.pictures(record.idx)) for record in split.trained]
    return {"preferences": digest(pairs)}


def _sizes(recipe: PolicyRecipe, policy: Policy, records: Sequence[PromptRecord], sides: Sequence[int]) -> list[Size]:
    """What is painted at once: pictures, or panels of stories."""
    return sorted({page.part_size for side in sides for page in pages_of(recipe, records, side, policy.multiple)})


def _refuse_misfits(recipe: PolicyRecipe, policy: Policy, split: PromptSplit, scorers: Scorers, world: int) -> None:
    both = {record.idx for record in split.trained} & {record.idx for record in split.unseen}
    if both:
        raise DataError(f"prompts {sorted(both)[:3]} are in training and in evaluation")
    if not split.unseen:
        raise DataError("no unseen prompt to evaluate on")
    if (recipe.test_rewards is None) != (scorers.test is None):
        raise ValueError("test_rewards of the recipe and of the scorers belong together")
    if recipe.offline != (split.preferences is not None):
        raise ValueError("an offline loss and preferences belong together")
    if policy.edits != (split.reference is not None):
        raise ValueError("an editing policy needs references of its records, and no other policy takes them")
    refuse_stories(recipe)
    check_optimizer(recipe.optimizer)
    check_compile(recipe.compile, sharded=world > 1 and uses_fsdp2())
    refuse_split_groups(groupwise(scorers.rewards), recipe, world)
    refuse_uneven(pages_of(recipe, split.trained, recipe.train_size, policy.multiple), recipe, world)
    for records, sides in ((split.trained, [recipe.train_size]), (split.unseen, recipe.eval_sizes)):
        for size in _sizes(recipe, policy, records, sides):
            policy.check_size(size)


def identity(params: Params, root: Path, name: str, code: str, judges: Mapping[str, str]) -> dict[str, str]:
    """What a training depends on beside parameters, records and pictures, by content.

    Args:
        judges: what answers as each judge, :attr:`paco_core.serving.client.RewardClient.answers`.
    """
    gold = {"gold": model_content(root, str(params.annotations.model))} if params.world == "storybook" else {}
    named = contents(root, params.policies.recipe(name))
    return {"code": code, **named, **gold, **{f"judge {judge}": answers for judge, answers in judges.items()}}


def train(
    params: Params,
    name: str,
    split: PromptSplit,
    gold: Callable[[], Gold | None],
    place: Place,
    code: str,
    reports: Reports,
) -> tuple[Outcome, str]:
    """Train one recipe; what came out, and the names of the judges that were asked.

    Args:
        gold: loads the measures that no training sees.
        code: digest of the code that trains; weights that other code made are not gone on with.
    """
    recipe, root = params.policies.recipe(name), place.root
    model_at(root, recipe.model, f"policies.recipes.{name}.model")
    refuse_text_window(f"policies.recipes.{name}", recipe, root)
    sets, records = recipe.reward_sets.values(), [*split.trained, *split.unseen]
    given = "panels" if split.reference is None else "reference"
    groupwise, *_ = [registry.check(rewards, given, records) for rewards in sets]
    registry.refuse_missing_judges(root, *sets)
    together = launched_processes()
    check_compile(recipe.compile, sharded=together > 1 and uses_fsdp2())
    refuse_split_groups(groupwise, recipe, together)
    if multiple := token_pixels(root / recipe.model):
        refuse_sizes(records, recipe, multiple)
        refuse_uneven(pages_of(recipe, split.trained, recipe.train_size, multiple), recipe, together)
    with ExitStack() as stack:
        # The policy loads while the servers of the rewards start.
        endpoints = {j: stack.enter_context(_lease(params, place, j)) for j in registry.judges_of(*sets)}
        processes = Processes(recipe.device)
        policy = load_recipe(recipe, root, device=processes.device, cache=cache_folder(root))
        if processes.main:
            split.write(place.out)
        truth = gold()
        for endpoint in endpoints.values():
            endpoint.ready()
        judges = {judge: stack.enter_context(endpoint.client()) for judge, endpoint in endpoints.items()}
        sources, test = Sources(judges, root), recipe.test_rewards
        answers = {str(judge): client.answers for judge, client in judges.items()}
        outcome = assemble(
            recipe,
            policy,
            split,
            Scorers(
                registry.build_set(recipe.rewards, sources), registry.build_set(test, sources) if test else None, truth
            ),
            TrainingSetting(
                identity=identity(params, root, name, code, answers),
                max_failed_share=params.serving.max_failed_share,
                place=place.final,
                licence=licence_front(recipe.model, root),
                reports=reports,
                processes=processes,
            ),
        ).run(place.out, place.checkpoints)
    return outcome, ", ".join(endpoint.model for endpoint in endpoints.values())


def _lease(params: Params, place: Place, judge: str | None) -> AbstractContextManager[RewardEndpoint]:
    """A server of the project's reward model (None), or of another judge in a folder; it may still be loading."""
    folder = place.read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, params.serving, place.root, wait=False)
