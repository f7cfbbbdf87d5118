"""Recipe: combines prompts, rewards and policy to a :class:`Trainer`."""

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
from paco_core.grpo.encoded_prompts import EncodedPrompts, texts_of
from paco_core.grpo.epochs import Epochs, OfflineEpochs, OnlineEpochs
from paco_core.grpo.evaluation import Evaluator, Gold
from paco_core.grpo.learner import Learner
from paco_core.grpo.model_card import policy_model_card
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.prompt_split import PromptSplit, validate_even_batches, validate_whole_groups
from paco_core.grpo.sampling import Sampler
from paco_core.grpo.scoring import Scoring
from paco_core.grpo.sizes import grids_of, side_multiple_of, validate_sizes
from paco_core.grpo.trainer import RunContext, Trainer
from paco_core.io import paths
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digests, reference_digests
from paco_core.models.licence import licence_front
from paco_core.policies.base import Policy, Size, load_recipe_policy
from paco_core.policies.compiled import compile_blocks, validate_compile
from paco_core.policies.encoded import validate_equal_shapes
from paco_core.policies.encodings import cache_folder
from paco_core.policies.families import (
    max_predecessors,
    needs_text_encoders,
    validate_sharding,
    validate_story_panels,
    validate_text_window,
)
from paco_core.policies.truncation import log_truncations, truncations_by_id
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.training import fsdp2
from paco_core.training.checkpoint import validate_saving
from paco_core.training.optimizers import validate_optimizer
from paco_core.training.precision import choose_kernels
from paco_core.training.processes import Processes, launched_processes, uses_fsdp2

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe


def train_policy(
    params: Params, name: str, split: PromptSplit, gold: Callable[[], Gold | None], context: RunContext
) -> tuple[Outcome, str]:
    """Train one recipe. Returns the outcome and the names of its reward models.

    Args:
        name: name of the recipe.
        split: training and evaluation prompts.
        gold: loads the ground-truth metrics, None if there are none.
        context: folders, code and reports. Rewards, ground-truth metrics, identity and processes are set here.
    """
    recipe, root = params.policies.recipe(name), context.root
    model_at(root, recipe.model, f"policies.recipes.{name}.model")
    validate_text_window(f"policies.recipes.{name}", recipe, root)
    sets, records = recipe.reward_sets.values(), [*split.trained, *split.unseen]
    views = "panels" if split.reference is None else "reference"
    whole_groups, *_ = [registry.validate_rewards(rewards, views, records) for rewards in sets]
    registry.validate_judge_folders(root, *sets)
    multiple = side_multiple_of(root / recipe.model, recipe.family)
    validate_recipe(recipe, split, whole_groups, launched_processes(), multiple)
    with ExitStack() as stack:
        # The policy loads while the servers of the rewards start.
        endpoints = {j: stack.enter_context(_lease(params, context, j)) for j in registry.judges_of(*sets)}
        processes = Processes(recipe.device)
        policy = load_recipe_policy(recipe, root, device=processes.device, cache=cache_folder(root))
        if multiple is None:  # only known for the loaded policy
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
    """Validate a recipe before a model is loaded.

    Args:
        whole_groups: names of the rewards that compare the images of a group.
        multiple: the sides of images are multiples of this number of pixels. None if it is not known before the policy
            is loaded.

    Raises:
        DataError: with the parameter or the record, and valid values.
    """
    validate_story_panels(recipe)
    validate_optimizer(recipe.optimizer)
    sharded = world_size > 1 and uses_fsdp2()
    validate_sharding(recipe.family, sharded)
    validate_compile(recipe.compile, sharded=sharded)
    validate_whole_groups(whole_groups, recipe, world_size)
    if multiple is not None:
        validate_sizes([*split.trained, *split.unseen], recipe, multiple)
        _validate_batches(recipe, split, world_size, multiple)


def _validate_batches(recipe: PolicyRecipe, split: PromptSplit, world_size: int, multiple: int) -> None:
    validate_even_batches(grids_of(recipe, split.trained, recipe.train_size, multiple), recipe, world_size)


def _lease(params: Params, context: RunContext, judge: str | None) -> AbstractContextManager[RewardEndpoint]:
    """A server of a reward model: that of the project (None), or a folder. It may still be loading."""
    folder = context.read(paths.REWARD_MERGED if judge is None else Path(judge))
    return RewardEndpoint.lease(folder, params.serving, context.root, wait=False)


def identity(params: Params, root: Path, name: str, code: str, judges: Mapping[str, str]) -> dict[str, str]:
    """Digests of code, models and files that a training depends on.

    Args:
        judges: identity of each served reward model, :attr:`paco_core.serving.client.RewardClient.scoring_identity`.
    """
    gold = {"gold": model_content(root, str(params.annotations.model))} if params.world == "storybook" else {}
    files = contents(root, params.policies.recipe(name))
    return {"code": code, **files, **gold, **{f"judge {judge}": answers for judge, answers in judges.items()}}


def assemble(recipe: PolicyRecipe, policy: Policy, split: PromptSplit, context: RunContext) -> Trainer:
    """Build the trainer of a policy: encode all prompts, drop its encoders, attach the adapter.

    If the panels of stories are encoded as reference images, the encoders stay (:func:`needs_text_encoders`).

    Raises:
        DataError: if there are too few prompts, prompts are in training and evaluation, or sizes are not supported.
        ValueError: if the parts are inconsistent.
    """
    split, processes, reports = _at_image_sizes(recipe, split), context.processes or Processes(), context.reports
    _validate_parts(recipe, policy, split, context)
    choose_kernels(recipe.device, recipe.dtype)
    torch.manual_seed(recipe.seed)  # noise has separate generators; this seed is for layers such as dropout
    trained, train_digests = _prompts(recipe, policy, split, split.trained, [recipe.train_size])
    unseen, unseen_digests = _prompts(recipe, policy, split, split.unseen, recipe.eval_sizes)
    if processes.sharded:
        _validate_equal_passes(recipe, split.trained, trained)
        _validate_equal_passes(recipe, split.unseen, unseen)
    references, content = [train_digests, unseen_digests], {**context.identity, **_preference_digest(split)}
    key = policy_training_key(recipe, split.trained, split.unseen, references, content)
    texts = partial(texts_of, predecessors=trained.predecessors)
    truncated = log_truncations(
        truncations_by_id(policy.truncations, [*split.trained, *split.unseen], texts), reports.log
    )
    if not needs_text_encoders(recipe):
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
    learner = Learner(policy, recipe, processes, reports.log)
    if processes.main:
        validate_saving(policy.save_adapter)
    if processes.world_size > 1:
        reports.log(f"{processes.world_size} processes share the work of each epoch")
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
        card=partial(policy_model_card, recipe, policy, split, context, licence),
        truncated=truncated,
    )


def _prompts(
    recipe: PolicyRecipe, policy: Policy, split: PromptSplit, records: Sequence[PromptRecord], sides: Sequence[int]
) -> tuple[EncodedPrompts, list[str]]:
    """Encode prompts and their reference images at all image sizes. Also returns the digests of the references."""
    references = None if split.reference is None else [split.reference(record) for record in records]
    sizes = [_sizes(recipe, policy, [record], sides) for record in records] if policy.edits else []
    before, length = max_predecessors(recipe), recipe.max_sequence_length
    prompts = EncodedPrompts.from_records(policy, records, before, length, recipe.guidance, references, sizes)
    return prompts, reference_digests(references or ())


def _validate_equal_passes(recipe: PolicyRecipe, records: Sequence[PromptRecord], prompts: EncodedPrompts) -> None:
    """Check that batches of prompts need equally many transformer passes, as FSDP2 requires."""
    if max(recipe.train_batch, recipe.rollout_batch, recipe.eval_batch or 1) == 1:
        return
    if recipe.panels == "together":
        validate_equal_shapes([record.idx for record in records], prompts.encoded.rows)
    elif any(prompts.characters) or len({record.layout for record in records}) > 1:
        raise DataError(
            "panels: one_by_one with characters or with several layouts: the number of transformer passes of a batch "
            "depends on its stories, but FSDP2 needs the same number in each process. Use launch/ddp.yaml"
        )


def _at_image_sizes(recipe: PolicyRecipe, split: PromptSplit) -> PromptSplit:
    """The split, with training records of the proportions of their ranked images."""
    if split.preferences is None:
        return split
    resize = partial(split.preferences.at_image_size, record_size=recipe.record_size)
    return replace(split, trained=[resize(record) for record in split.trained])


def _preference_digest(split: PromptSplit) -> dict[str, str]:
    """Digest of the pixels of the image pairs of the training prompts."""
    if split.preferences is None:
        return {}
    pairs = [picture_digests(split.preferences.pictures(record.idx)) for record in split.trained]
    return {"preferences": digest(pairs)}


def _sizes(recipe: PolicyRecipe, policy: Policy, records: Sequence[PromptRecord], sides: Sequence[int]) -> list[Size]:
    """Sizes of the images, or of the panels of stories, that are generated."""
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
            policy.validate_size(size)


def policy_training_key(
    recipe: PolicyRecipe,
    train: Sequence[PromptRecord],
    unseen: Sequence[PromptRecord],
    references: Sequence[Sequence[str]],
    identity: Mapping[str, str],
) -> str:
    """Digest of everything that an epoch's result depends on.

    Depends on, and contains: the recipe without its execution options and number of epochs (a training can be
    extended); the records of training and evaluation in order, because evaluations are in the log and next to the
    checkpoints; the pixels of their reference images; and ``identity`` (:func:`identity`): code and libraries, models,
    the initial adapter, reward models with engine and number format, models of rewards, the annotator of the
    ground-truth metrics. Numbers of processes and threads change weights by rounding only and are excluded.

    Args:
        references: digests of the reference images of ``train`` and of ``unseen``. Empty if the policy does not edit.
        identity: digests by name, see :func:`identity`.
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
