"""Workload of a policy's training: numbers of passes, queries, updates and evaluations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paco_core.config.params import Params, PolicyRecipe, RewardSet
from paco_core.data.records.edit_records import EditRecord, evaluated_references
from paco_core.data.records.prompt_text import parse_layout
from paco_core.planning.passes import references_per_part
from paco_core.policies.families import family_of, is_editing
from paco_core.rewards import registry
from paco_core.rewards.panel_pairs import select_panel_pairs

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


def evaluations_of(epochs: int, every: int) -> int:
    """Number of evaluations: before the training, after each ``every`` epochs, and after the last epoch."""
    return 2 + max(0, epochs - 1) // every


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Work of one training. A pass is a transformer pass of one sample; a guided step may take two.

    A sample is an image, or a panel of a story.
    """

    images_an_epoch: int = 0
    panels_a_story: float = 1  # mean number of panels that are generated one by one; 1 = complete images
    #: Distinct queries to a reward model about an image: a set's pairs of panels, and its panels with the images of its
    #: characters.
    questions_by_layout: Mapping[str, float] = field(default_factory=dict)
    questions_a_picture: float = 0  # their mean over the layouts; the maximum for an edit
    rubric_questions: int = 0  # per image, to models behind an endpoint
    rollout_batches: int = 0
    rollout_passes: int = 0  # per epoch
    trained_passes: int  # per epoch, forward and backward
    untrained_passes: int  # per epoch, without gradient: old policy and reference
    micro_batches: int  # per update
    optimiser_steps: int
    evaluations: int
    evaluation_images: int  # per evaluation
    epochs: int

    @property
    def images(self) -> int:
        """Number of samples in all epochs."""
        return self.epochs * self.images_an_epoch

    @property
    def scored_pairs(self) -> str:
        """Number of scored pairs as text; unknown if the file of prompts is missing and has several layouts."""
        is_known = self.questions_by_layout or not self.images
        return f"{round(self.images * self.questions_a_picture)} scored pairs" if is_known else "scored pairs unknown"

    @classmethod
    def from_params(cls, params: Params, policy: str, records: Sequence[PromptRecord] = ()) -> Workload:
        """Count the work of one recipe.

        Args:
            records: its training prompts. If empty, sets of each layout in the parameters, or edits of one image,
                are counted.

        Raises:
            DataError: when no recipe has this name.
        """
        recipe = params.policies.recipe(policy)
        if recipe.offline:
            return cls._offline(recipe)
        images = recipe.prompts_per_epoch * recipe.group_size
        noisy = recipe.num_noise_steps or len(recipe.noise_steps)
        trained = len(recipe.train_steps) if recipe.train_steps else noisy
        if recipe.forward and recipe.train_steps is None:
            trained = recipe.sampling_steps
        passes_per_step = family_of(recipe.family).passes_per_step(recipe.guidance)
        # Samples that share their initial noise share the passes up to the first noisy step, this one included.
        first = min(recipe.noise_steps, default=recipe.sampling_steps - 1)
        common = first + 1 if recipe.shared_noise else 0
        shares = recipe.shared_noise and not recipe.forward and first in (recipe.train_steps or [first])
        apart, together = trained - shares, int(shares)
        parts = references_per_part(recipe, records)
        panels = sum(map(len, parts)) / len(parts)
        later = round(images * (panels - 1))  # panels with references, which samples do not share
        an_update = images // recipe.updates_per_epoch
        groups = -(-an_update // recipe.group_size)
        passes = passes_per_step * (images * apart + recipe.prompts_per_epoch * together + later * trained)
        queries = _questions(params, recipe, records)
        rolled = passes_per_step * (
            images * (recipe.sampling_steps - common)
            + recipe.prompts_per_epoch * common
            + later * recipe.sampling_steps
        )
        return cls(
            images_an_epoch=images,
            panels_a_story=panels,
            questions_by_layout={layout: count for layout, (count, _) in queries.items()},
            questions_a_picture=_mean(queries),
            rubric_questions=_rubrics(recipe.rewards),
            rollout_batches=-(-images // recipe.rollout_batch),
            rollout_passes=rolled,
            trained_passes=passes,
            untrained_passes=passes * _other_passes(recipe),
            micro_batches=-(-an_update // recipe.train_batch) * apart
            + -(-groups // recipe.train_batch) * together
            + round(-(-an_update // recipe.train_batch) * (panels - 1)) * trained,
            optimiser_steps=recipe.epochs * recipe.updates_per_epoch,
            evaluations=evaluations_of(recipe.epochs, recipe.eval_every),
            evaluation_images=recipe.eval_prompts * len(recipe.eval_seeds) * len(recipe.eval_sizes),
            epochs=recipe.epochs,
        )

    @classmethod
    def _offline(cls, recipe: PolicyRecipe) -> Workload:
        """Work of a loss on ranked pairs: the training neither samples nor scores images."""
        passes_per_step, steps = family_of(recipe.family).passes_per_step(recipe.guidance), recipe.train_steps
        trained = len(steps) if steps else recipe.sampling_steps
        passes = passes_per_step * recipe.samples_per_epoch * trained
        pairs = recipe.prompts_per_epoch // recipe.updates_per_epoch
        together = max(1, recipe.train_batch // recipe.pictures_a_pair)
        return cls(
            trained_passes=passes,
            untrained_passes=passes if recipe.loss == "dpo" else 0,
            micro_batches=-(-pairs // together) * trained,
            optimiser_steps=recipe.epochs * recipe.updates_per_epoch,
            evaluations=evaluations_of(recipe.epochs, recipe.eval_every),
            evaluation_images=recipe.eval_prompts * len(recipe.eval_seeds) * len(recipe.eval_sizes),
            epochs=recipe.epochs,
        )


def _questions(params: Params, recipe: PolicyRecipe, records: Sequence[PromptRecord]) -> dict[str, tuple[float, int]]:
    """Layout -> (number of queries per image to the reward model, number of prompts).

    The number is the maximum over edits, and the mean over sets with different characters.
    """
    edits = [record for record in records if isinstance(record, EditRecord)]
    about = max((len(evaluated_references(edit.prompt, len(edit.references))) for edit in edits), default=1)
    layouts = [record.layout for record in records] or (["1x1"] if is_editing(recipe) else params.prompts.layouts)
    queries = {}
    for layout, prompts in Counter(layouts).items():
        rows, columns = parse_layout(layout)
        questions = 0.0
        for name, term in recipe.rewards.terms.items():
            kind = registry.reward_kind(name, term)
            if kind == "consistency":
                questions += len(select_panel_pairs(rows * columns, columns, term.pairs))
            if kind == "characters":
                questions += rows * columns * _character_images([r for r in records if r.layout == layout])
            questions += (1 + about) * (kind == "editing")
        queries[layout] = _int_if_whole(questions), prompts
    return queries


def _character_images(records: Sequence[PromptRecord]) -> float:
    """Mean number of images of all characters of a record; 0 without records."""
    return sum(len(c.images) for record in records for c in record.characters) / max(1, len(records))


def _mean(queries: Mapping[str, tuple[float, int]]) -> float:
    """Mean number of queries per image over all prompts."""
    prompts = sum(count for _, count in queries.values())
    return _int_if_whole(sum(questions * count for questions, count in queries.values()) / max(1, prompts))


def _int_if_whole(value: float) -> float:
    """The value as an integer, if it is one."""
    return int(value) if value == int(value) else value


def _rubrics(rewards: RewardSet) -> int:
    """Number of rubric queries per image: one query of a rubric has all its criteria."""
    return sum(registry.reward_kind(name, term) == "rubric" for name, term in rewards.terms.items())


def _other_passes(recipe: PolicyRecipe) -> int:
    """Number of passes without gradient per trained pass: of the old policy and the reference, if needed."""
    old = recipe.loss == "nft" or recipe.old_log_prob == "recomputed"
    return int(old) + int(recipe.kl.beta > 0)
