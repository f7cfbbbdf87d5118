"""Recipe: prompts, rewards and policy put together to a :class:`Trainer`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from paco_core.config.references import contents, model_at, model_content
from paco_core.config.resolved import resolved_section
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.epochs import Epochs, OfflineEpochs, OnlineEpochs
from paco_core.grpo.evaluation import Evaluator, Gold
from paco_core.grpo.learner import Learner
from paco_core.grpo.model_card import model_card
from paco_core.grpo.prompt_split import PromptSplit, validate_even_batches, validate_whole_groups
from paco_core.grpo.sampling import EncodedPrompts, Sampler, texts_of
from paco_core.grpo.scoring import Scoring
from paco_core.grpo.sizes import grids_of, token_pixels, validate_sizes
from paco_core.grpo.trainer import Outcome, RunContext, Trainer
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digests, reference_digests
from paco_core.models.licence import licence_front
from paco_core.policies.base import Policy, Size, load_recipe
from paco_core.policies.compiled import check_compile, compile_blocks
from paco_core.policies.cuts import of_records, report
from paco_core.policies.encodings import cache_folder
from paco_core.policies.families import predecessors_of, refuse_stories, refuse_text_window
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.training import fsdp2
from paco_core.training.checkpoint import try_to_save
from paco_core.training.optimizers import check_optimizer
from paco_core.training.precision import choose_kernels
from paco_core.training.processes import Processes, launched_processes, uses_fsdp2

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe


def train(
    params: Params, name: str, split: PromptSplit, gold: Callable[[], Gold | None], context: RunContext
) -> tuple[Outcome, str]:
    """Train one recipe; the outcome, and the names of the reward models that scored.

    Args:
        gold: loads the measures that no training sees.
        context: folders, code and reports; the rewards and the rest are set here.
    """
    recipe, root = params.policies.recipe(name), context.root
    model_at(root, recipe.model, f"policies.recipes.{name}.model")
    refuse_text_window(f"policies.recipes.{name}", recipe, root)
    sets, records = recipe.reward_sets.values(), [*split.trained, *split.unseen]
    views = "panels" if split.reference is None else "reference"
    whole_groups, *_ = [registry.check(rewards, views, records) for rewards in sets]
    registry.refuse_missing_judges(root, *sets)
    multiple = token_pixels(root / recipe.model)
    validate_recipe(recipe, split, whole_groups, launched_processes(), multiple)
    with ExitStack() as stack:
        # The policy loads while the servers of the rewards start.
        endpoints = {j: stack.enter_context(_lease(params, context, j)) for j in registry.judges_of(*sets)}
        processes = Processes(recipe.device)
        policy = load_recipe(recipe, root, device=processes.device, cache=cache_folder(root))
        if multiple is None:  # only the loaded policy knows it
            _validate_batches(recipe, split, processes.world_size, policy.multiple)
        if processes.main:
            split.write(context.out)
        truth = gold()
        for endpoint in endpoints.values():
            endpoint.ready()
        judges = {judge: stack.enter_context(endpoint.client()) for judge, endpoint in endpoints.items()}
        sources, test = Sources(judges, root), recipe.test_rewards
        answers = {str(judge): client.scoring_identity for judge, client in judges.items()}
        run_context = replace(
            context,
            rewards=registry.build_set(recipe.rewards, sources),
            test_rewards=registry.build_set(test, sources) if test else None,
            gold=truth,
            identity=identity(params, root, name, context.code, answers),
            max_failed_share=params.serving.max_failed_share,
            processes=processes,
            world=params.world,
        )
        outcome = assemble(recipe, policy, split, run_context).run(context.out, context.checkpoints)
    return outcome, ", ".join(endpoint.model for endpoint in endpoints.values())


def validate_recipe(
    recipe: PolicyRecipe, split: PromptSplit, whole_groups: Sequence[str], world_size: int, multiple: int | None
) -> None:
    """Find early, before a model is loaded, why a recipe cannot be trained.

    Args:
        whole_groups: names of the rewards that compare the images of a group.
        multiple: pixels that a token is high and wide; None if only the loaded policy knows it.

    Raises:
        DataError: naming the parameter or the record, and valid neighbors.
    """
    refuse_stories(recipe)
    check_optimizer(recipe.optimizer)
    check_compile(recipe.compile, sharded=world_size > 1 and uses_fsdp2())
    validate_whole_groups(whole_groups, recipe, world_size)
    if multiple is not None:
        validate_sizes([*split.trained, *split.unseen], recipe, multiple)
        _validate_batches(recipe, split, world_size, multiple)


def _validate_batches(recipe: PolicyRecipe, split: PromptSplit, world_size: int, multiple: int) -> None:
    validate_even_batches(grids_of(recipe, split.trained, recipe.train_size, multiple), recipe, world_size)


def _lease(params: Params, context: RunContext, judge: str | None) -> AbstractContextManager[RewardEndpoint]:
    """A server of the project's reward model (None), or of another judge in a folder; it may still be loading."""
    folder = context.read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, params.serving, context.root, wait=False)


def identity(params: Params, root: Path, name: str, code: str, judges: Mapping[str, str]) -> dict[str, str]:
    """By content, what a training depends on apart from parameters, records and images.

    Args:
        judges: what answers as each judge, :attr:`paco_core.serving.client.RewardClient.scoring_identity`.
    """
    gold = {"gold": model_content(root, str(params.annotations.model))} if params.world == "storybook" else {}
    files = contents(root, params.policies.recipe(name))
    return {"code": code, **files, **gold, **{f"judge {judge}": answers for judge, answers in judges.items()}}


def assemble(recipe: PolicyRecipe, policy: Policy, split: PromptSplit, context: RunContext) -> Trainer:
    """Make a policy ready to be trained: encode all prompts, drop its encoders, attach the adapter.

    Raises:
        DataError: when prompts are too few, shared by training and evaluation, or sizes do not fit.
        ValueError: when the parts do not belong together.
    """
    split, processes, reports = _at_image_sizes(recipe, split), context.processes or Processes(), context.reports
    _validate_parts(recipe, policy, split, context)
    choose_kernels(recipe.device, recipe.dtype)
    torch.manual_seed(recipe.seed)  # noise has generators of its own; this is for layers that draw, dropout say
    trained, train_digests = _prompts(recipe, policy, split, split.trained, [recipe.train_size])
    unseen, unseen_digests = _prompts(recipe, policy, split, split.unseen, recipe.eval_sizes)
    references, content = [train_digests, unseen_digests], {**context.identity, **_preferred(split)}
    key = training_key(recipe, split.trained, split.unseen, references, content)
    texts = partial(texts_of, predecessors=trained.predecessors)
    cut = report(of_records(policy.cut, [*split.trained, *split.unseen], texts), reports.say)
    policy.drop_encoders()
    if recipe.start is None:
        policy.add_adapter(recipe.lora, recipe.seed)
    else:
        policy.start_from(recipe.start, recipe.lora.alpha / recipe.lora.rank)
    if recipe.gradient_checkpointing:
        policy.enable_gradient_checkpointing()
    if recipe.compile:
        compile_blocks(getattr(policy, "transformer", None))
    if processes.sharded:
        fsdp2.shard(getattr(policy, "transformer", None), policy.device)
    learner = Learner(policy, recipe, processes, reports.say)
    if processes.main:
        try_to_save(policy.save_adapter)
    if processes.world_size > 1:
        reports.say(f"{processes.world_size} processes share the work of each epoch")
    objective, scoring = learner.objective, Scoring(context.rewards, split.reference)
    tested = scoring if context.test_rewards is None else Scoring(context.test_rewards, split.reference)
    epochs: Epochs
    if split.preferences is not None:
        epochs = OfflineEpochs(policy, recipe, split.trained, trained.encoded, split.preferences)
    else:
        sampler = Sampler(
            policy, recipe, split.trained, trained, objective.keeps, objective.keeps_clean, scoring, processes
        )
        epochs = OnlineEpochs(recipe, split.trained, sampler, objective)
    licence = licence_front(recipe.model, context.root)
    return Trainer(
        recipe=recipe,
        split=split,
        learner=learner,
        epochs=epochs,
        scoring=scoring,
        evaluator=Evaluator(
            policy, recipe, split.unseen, unseen, tested, context.gold, processes, context.max_failed_share
        ),
        context=context,
        key=key,
        card=partial(model_card, recipe, policy, split, context, licence),
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
    return sorted({grid.part_size for side in sides for grid in grids_of(recipe, records, side, policy.multiple)})


def _validate_parts(recipe: PolicyRecipe, policy: Policy, split: PromptSplit, context: RunContext) -> None:
    shared = {record.idx for record in split.trained} & {record.idx for record in split.unseen}
    if shared:
        raise DataError(f"prompts {sorted(shared)[:3]} are in training and in evaluation")
    if not split.unseen:
        raise DataError("no unseen prompt to evaluate on")
    if (recipe.test_rewards is None) != (context.test_rewards is None):
        raise ValueError("test_rewards of the recipe and of the context belong together")
    if recipe.offline != (split.preferences is not None):
        raise ValueError("an offline loss and preferences belong together")
    if policy.edits != (split.reference is not None):
        raise ValueError("an editing policy needs references of its records, and no other policy takes them")
    for records, sides in ((split.trained, [recipe.train_size]), (split.unseen, recipe.eval_sizes)):
        for size in _sizes(recipe, policy, records, sides):
            policy.check_size(size)


def training_key(
    recipe: PolicyRecipe,
    train: Sequence[PromptRecord],
    unseen: Sequence[PromptRecord],
    references: Sequence[Sequence[str]],
    identity: Mapping[str, str],
) -> str:
    """Digest of everything that an epoch's result depends on.

    Depends on, and holds: the recipe but for how it is run and its number of epochs (a training can be prolonged); all
    that the records of training and evaluation say, in order (evaluations lie in the log, and their pictures beside
    the checkpoints); the pixels of the reference pictures of both; what ``identity`` names by content: code and
    libraries, models, the adapter to start from, judges with engine and number format, models of rewards, the
    annotator of the gold measure (:func:`identity`). Processes and threads move weights
    by rounding and are left out.

    Args:
        references: digests of the pictures of ``train`` and of ``unseen``; empty where the policy edits none.
    """
    return digest(
        {
            "recipe": {name: value for name, value in resolved_section(recipe).items() if name != "epochs"},
            "train": [record.model_dump() for record in train],
            "unseen": [record.model_dump() for record in unseen],
            "references": [list(pictures) for pictures in references],
            "identity": dict(identity),
        }
    )
