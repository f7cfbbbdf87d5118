"""Pictures for a person, by a policy of the project: sets from a prompt, edits of a picture, and their scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import PromptRecord, characters_of_panels
from paco_core.grpo.panel_references import character_references
from paco_core.io import paths
from paco_core.io.pictures import picture_digest
from paco_core.io.secrets import redacted
from paco_core.operations.painters import BASE
from paco_core.policies.base import load_recipe_policy
from paco_core.policies.families import max_predecessors, validate_story_panels
from paco_core.reward_model.scorer import Scorer
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.characters import Characters
from paco_core.rewards.consistency import ConsistencyMeasure
from paco_core.rewards.editing import Editing
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.sampling.generation import generate_images
from paco_core.sampling.origin import ImageOrigin

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.operations.painters import NamedPolicy
    from paco_core.policies.base import Policy
    from paco_core.reward_model.yes_probability import PairScorer
    from paco_core.sampling.origin import PolicyVersion


def load_painter_policy(root: Path, by: NamedPolicy, *, cache: Path | None = None) -> Policy:
    """The policy of a painter, with its adapter.

    Args:
        cache: folder below which encodings of prompts and reference pictures are remembered; None = nothing is written.
    """
    policy = load_recipe_policy(by.recipe, root, cache=cache)
    if by.adapter is not None:
        policy.load_adapter(by.adapter)
    return policy


def generate_seed_images(  # noqa: PLR0913 - the options of `paco paint`
    params: Params,
    policy: Policy,
    by: NamedPolicy,
    record: PromptRecord,
    *,
    seeds: Sequence[int],
    side: int | None = None,
    steps: int | None = None,
    references: Sequence[Image] = (),
    compare: bool = False,
    models: PolicyVersion | None = None,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[GeneratedImage]:
    """One picture a seed by a painter, without noise steps; equal seeds give equal noise to every painter.

    Args:
        policy: the painter's, as :func:`load_painter_policy` loads it.
        side: scale of the pictures; when None, the largest evaluation size of the recipe, and of an edit the one that
            is nearest to its picture.
        references: of an edit, the picture that is edited, and those that the instruction takes something from.
        compare: also by the model before training.
        models: versions of the painter's models, for the origin of the pictures; None: they have no origin.
        advance: is called with the number of pictures just painted.
    """
    recipe = by.recipe
    validate_story_panels(recipe)
    steps = steps or (params.gedit if references else params.t2is).steps
    images: list[GeneratedImage] = []
    for phase in (BEFORE, AFTER):
        if not (compare or by.adapter is None if phase == BEFORE else by.adapter is not None):
            continue
        with policy.without_adapter() if phase == BEFORE else nullcontext():
            images += generate_images(
                policy,
                [record],
                seeds,
                side or _side(recipe, references),
                name=by.name,
                when=phase,
                steps=steps,
                guidance=recipe.guidance,
                max_sequence_length=recipe.max_sequence_length,
                reference=(lambda _record: references) if references else None,
                record_size="aspect",
                predecessors=max_predecessors(recipe),
                advance=advance,
            )
    if models is None:
        return images
    digests = tuple(picture_digest(image) for image in references or character_references(record))
    return [replace(image, origin=_origin(image, models, steps, recipe.guidance, digests)) for image in images]


def _origin(
    generated: GeneratedImage, models: PolicyVersion, steps: int, guidance: float, references: tuple[str, ...]
) -> ImageOrigin:
    if generated.when == BEFORE:
        models = replace(models, policy=BASE, adapter=None)
    width, height = generated.image.size
    return ImageOrigin(
        models, redacted(generated.record.prompt), generated.seed, width, height, steps, guidance,
        generated.record.layout, references=references,
    )  # fmt: skip


def _side(recipe: PolicyRecipe, references: Sequence[Image]) -> int:
    if not references:
        return max(recipe.eval_sizes)
    longest_side = max(references[0].size)
    return min(recipe.eval_sizes, key=lambda side: abs(side - longest_side))


def load_judge(root: Path, params: Params) -> Scorer | None:
    """The project's reward model; None where there is none yet."""
    folder = root / paths.REWARD_MERGED
    return Scorer.configured(folder, params.reward) if folder.is_dir() else None


def scored(scorer: PairScorer, generated: Sequence[GeneratedImage], references: Sequence[Image] = ()) -> list[float]:
    """Consistency of each set, or editing reward of each edit, by a reward model; NaN where it could not judge."""
    records, images = [p.record for p in generated], [p.image for p in generated]
    if not references:
        return [
            float(value) for value in ConsistencyMeasure(scorer)(RewardBatch(records, [p.panels for p in generated]))
        ]
    batch = RewardBatch(records, [[image] for image in images], images, [references] * len(images))
    return [float(value) for value in Editing(scorer)(batch)]


def panel_agreements(scorer: PairScorer, stories: Sequence[GeneratedImage]) -> list[list[dict[str, float]]]:
    """For each story and panel: P(Yes) that the panel shows each character that its text names, by name.

    These are the values of the reward ``characters``. A value is NaN if the reward model could not score it.
    """
    records = [story.record for story in stories]
    rows = Characters(scorer).agreements(RewardBatch(records, [story.panels for story in stories]))
    return [
        [
            {character.name: values[record.characters.index(character)] for character in panel}
            for panel, values in zip(characters_of_panels(record), row, strict=True)
        ]
        for record, row in zip(records, rows, strict=True)
    ]
