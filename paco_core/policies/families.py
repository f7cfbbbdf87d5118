"""Model families: the properties of each family that are available before its code or weights are loaded.

A family is one file with a class that follows :class:`paco_core.policies.base.Policy`, and one entry here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from paco_core.io.files import DataError
from paco_core.models.pipeline_index import find_index, read_index
from paco_core.policies.windows import TextWindow, validate_window

Task = Literal["sets", "edits"]
Panels = Literal["together", "one_by_one"]


@dataclass(frozen=True)
class Family:
    """One kind of image generator.

    Attributes:
        policy: "module:class". The module is imported when a policy of the family is loaded.
        pipeline: class of the diffusers pipeline.
        text_encoders: parts of the pipeline that are freed once prompts are encoded.
        lora_targets: default target layers of an adapter.
        references: minimum and maximum number of reference images of a prompt. (0, 0) generates from text only,
            (1, ...) only edits, (0, ...) supports both.
        min_reference_side: minimum of the shorter side of a reference image in pixels.
        max_reference_ratio: maximum ratio of the longer to the shorter side of a reference image.
        true_guidance: whether guidance above 1 needs a second pass of the transformer. Otherwise guidance is an input
            of the transformer.
        condition_size: the text encoder sees references of about this size squared, in pixels, independent of the size
            of their latents. None = at the size of the latents, or not at all.
        groups_texts: whether a batch needs one transformer pass per group of prompts with equal lengths.
        side_tokens: the sides of an image are multiples of this number of tokens.
        text_sees_references: the text encoder reads prompt and references together. Panels that are generated one by
            one then need it until the end of a training.
        reuses_conditions: evaluations compute text and references once for all sampling steps.
        recommended: guidance and sampling steps on the cards of its models, for images outside of a recipe.
        distilled: guidance and sampling steps of its models that are distilled to a few steps.
        parts: "module:function" that raises an error for a folder whose parts belong to different models. None = the
            class of the pipeline is sufficient.
    """

    policy: str
    pipeline: str
    text_encoders: tuple[str, ...]
    lora_targets: tuple[str, ...]
    references: tuple[int, int] = (0, 0)
    min_reference_side: int = 1
    max_reference_ratio: float = math.inf
    true_guidance: bool = False
    condition_size: int | None = None
    groups_texts: bool = False
    side_tokens: int = 1
    text_sees_references: bool = False
    reuses_conditions: bool = False
    recommended: tuple[float, int] = (4.0, 50)
    distilled: tuple[float, int] = (1.0, 4)
    parts: str | None = None

    def edits(self, task: Task | None = None) -> bool:
        """Whether each prompt edits reference images.

        Args:
            task: the task of the policy. None = the only task of the family, or ``sets`` if it supports both.

        Raises:
            DataError: if the family does not support the task.
        """
        fewest, most = self.references
        if task == "edits" and not most:
            raise DataError(f"task: {self.pipeline} generates from text only; choose another family, or task: sets")
        if task == "sets" and fewest:
            raise DataError(f"task: {self.pipeline} only edits; choose another family, or task: edits")
        return fewest > 0 or task == "edits"

    def passes_per_step(self, guidance: float) -> int:
        """Number of transformer passes per sampling step."""
        return 2 if self.true_guidance and guidance > 1 else 1

    def load_class(self) -> Any:
        """Import the class of the family's policies. Imports torch and diffusers, loads no weights."""
        return _import_object(self.policy)


def _import_object(path: str) -> Any:
    module, name = path.split(":")
    return getattr(import_module(module), name)


_FLUX_ENCODERS = ("text_encoder", "text_encoder_2")
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_FLUX_LAYERS = (*_ATTENTION, "net.0.proj", "net.2")  # as released: not proj_mlp and proj_out of the single blocks
#: Includes the fused layers of single blocks. `attn.to_out` is a layer of single blocks, and a list in double blocks.
_FLUX2_LAYERS = (*_ATTENTION, "linear_in", "linear_out", "to_qkv_mlp_proj", "attn.to_out")
_FLUX3_LAYERS = (*_ATTENTION[:4], "linear_in", "linear_out")
_Z_IMAGE_LAYERS = (*(f"attention.{name}" for name in _ATTENTION[:4]), *(f"feed_forward.w{n}" for n in (1, 2, 3)))
_QWEN_21_LAYERS = (*_ATTENTION[:4], "img_mlp.proj", "img_mlp.gate_layer", "img_mlp.out")
_QWEN_LAYERS = (*_ATTENTION, "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2")

ONE_REFERENCE = (1, 1)

FAMILIES = {
    "flux": Family(
        "paco_core.policies.flux:FluxPolicy", "FluxPipeline", _FLUX_ENCODERS, _FLUX_LAYERS, recommended=(3.5, 28)
    ),
    "flux_kontext": Family(
        "paco_core.policies.flux_kontext:FluxKontextPolicy",
        "FluxKontextPipeline",
        _FLUX_ENCODERS,
        _FLUX_LAYERS,
        references=ONE_REFERENCE,
    ),
    "qwen_image_edit": Family(
        "paco_core.policies.qwen_image_edit:QwenImageEditPolicy",
        "QwenImageEditPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        references=ONE_REFERENCE,
        true_guidance=True,
        text_sees_references=True,
    ),
    "qwen_image_edit_plus": Family(
        "paco_core.policies.qwen_image_edit_plus:QwenImageEditPlusPolicy",
        "QwenImageEditPlusPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        references=(1, 3),  # as many as the authors' card of 2509 names
        true_guidance=True,
        condition_size=384,
        text_sees_references=True,
    ),
    "qwen_image": Family(
        "paco_core.policies.qwen_image:QwenImagePolicy",
        "QwenImagePipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        true_guidance=True,
    ),
    "qwen_image_21": Family(
        "paco_core.policies.qwen_image_21:QwenImage21Policy",
        "QwenImage21Pipeline",
        ("text_encoder",),
        _QWEN_21_LAYERS,
        references=(0, 10),  # as many as the authors' card names
        true_guidance=True,
        recommended=(1.0, 40),  # the authors recommend no guidance
        groups_texts=True,
        side_tokens=2,
        text_sees_references=True,
        reuses_conditions=True,
    ),
    "flux2_klein": Family(
        "paco_core.policies.flux2_klein:Flux2KleinPolicy",
        "Flux2KleinPipeline",
        ("text_encoder",),
        _FLUX2_LAYERS,
        references=(0, 4),  # docs.bfl.ai/guides/prompting_editing_overview
        min_reference_side=64,  # the pipeline refuses smaller and longer ones
        max_reference_ratio=8,
        true_guidance=True,
        parts="paco_core.policies.flux2_parts:validate_flux2_parts",
    ),
    "flux3_klein": Family(
        "paco_core.policies.flux3_klein:Flux3KleinPolicy",
        "Flux3ModularPipeline",
        ("text_encoder",),
        _FLUX3_LAYERS,
        references=(0, 10),  # github.com/black-forest-labs/flux-3-image-klein
        min_reference_side=16,  # of several references, the pipeline crops each to tokens of 16 px
        max_reference_ratio=4096,  # after the pipeline has scaled a reference to 1024 x 1024 pixels, its side is 16
        true_guidance=True,
        groups_texts=True,
        distilled=(1.0, 16),
        parts="paco_core.policies.flux3_parts:validate_flux3_parts",
    ),
    "z_image": Family(
        "paco_core.policies.z_image:ZImagePolicy",
        "ZImagePipeline",
        ("text_encoder",),
        _Z_IMAGE_LAYERS,
        true_guidance=True,
        recommended=(5.0, 50),  # guidance_scale=4 of the pipeline
        distilled=(1.0, 8),
    ),
}


def family_of(name: str) -> Family:
    """Return a family by its name in ``params.yaml``.

    Raises:
        DataError: if the family is unknown.
    """
    if name not in FAMILIES:
        raise DataError(f"policy family {name!r} is unknown; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def validate_pipeline_class(model: str, class_name: object, family: str) -> None:
    """Raise DataError if the class of a pipeline is not that of the family."""
    expected = family_of(family).pipeline
    if class_name != expected:
        raise DataError(f"{model}: contains a {class_name}, but the family {family} needs a {expected}")


def validate_pipeline_parts(folder: Path, family: str) -> None:
    """Raise DataError if the parts of a pipeline's folder belong to different models."""
    if (validate := family_of(family).parts) is not None:
        _import_object(validate)(folder)


def validate_pipeline_folder(root: Path, model: str, family: str) -> None:
    """Validate class and parts of a pipeline if it is a folder of the project. The hub is not queried."""
    if find_index(root / model) is not None:
        validate_pipeline_class(model, read_index(root / model).get("_class_name"), family)
        validate_pipeline_parts(root / model, family)


#: Hub ids of models that are distilled to a few steps. For folders, ``model_index.json`` contains this.
DISTILLED = {
    "black-forest-labs/FLUX.2-klein-4B",
    "black-forest-labs/FLUX.2-klein-9B",
    "black-forest-labs/flux-3-image-klein",
    "Tongyi-MAI/Z-Image-Turbo",
}


def is_distilled(root: Path, model: str) -> bool:
    """Whether the weights of a model are distilled to a few steps. The hub is not queried.

    Raises:
        DataError: if the value in the index is neither true nor false.
    """
    index = find_index(root / model)
    if index is None:
        return model in DISTILLED
    distilled = read_index(root / model).get("is_distilled")
    if not isinstance(distilled, bool | None):
        raise DataError(f"{index}: is_distilled is {distilled!r}, expected true or false")
    return bool(distilled)


def validate_sharding(family: str, sharded: bool) -> None:
    """Check that the transformer of a family can be sharded by FSDP2.

    Raises:
        DataError: if it is sharded, and the number of transformer passes of a batch depends on its prompts.
    """
    if sharded and family_of(family).groups_texts:
        raise DataError(
            f"the family {family} runs one pass per group of prompts with equal lengths, but FSDP2 needs the same "
            "number of passes in each process; use launch/ddp.yaml"
        )


class FamilyChoice(Protocol):
    """The family and the task of a recipe."""

    @property
    def family(self) -> str: ...
    @property
    def task(self) -> Task | None: ...


def is_editing(recipe: FamilyChoice) -> bool:
    """Whether each prompt of a recipe edits reference images (:meth:`Family.edits`)."""
    return family_of(recipe.family).edits(recipe.task)


def validate_reference_count(family: str, prompt: str, count: int) -> None:
    """Raise DataError if the number of reference images of a prompt is not supported by a family.

    Args:
        prompt: description of the prompt, for the error.
        count: number of reference images of the prompt.
    """
    most = family_of(family).references[1]
    if not most:
        raise DataError(f"the family {family} generates from text only, but {prompt} has {count} reference images")
    if not 1 <= count <= most:
        expected = "one reference image" if most == 1 else f"1 to {most} reference images"
        several = ", ".join(
            f"{name} ({other.references[1]})" for name, other in FAMILIES.items() if other.references[1] > 1
        )
        raise DataError(
            f"the family {family} needs {expected} per prompt, but {prompt} has {count}; remove some, or "
            f"choose a family that supports several: {several}"
        )


def validate_reference_lists(family: str, *, edits: bool, prompts: int, references: int | None) -> None:
    """Raise DataError if prompts that edit do not have one list of references each, or other prompts have some.

    Args:
        edits: whether each prompt edits reference images.
        prompts: number of prompts.
        references: number of lists of references. None = there are none.
    """
    if not edits and references is not None:
        raise DataError(
            f"the family {family} generates from text only, but there are {references} reference images; choose a "
            "family that edits, or leave them out"
        )
    if edits and references != prompts:
        most = family_of(family).references[1]
        expected = "one reference image" if most == 1 else f"1 to {most} reference images"
        raise DataError(
            f"the family {family} needs {expected} per prompt: there are {prompts} prompts and {references or 0} "
            "references"
        )


class StoryChoice(FamilyChoice, Protocol):
    """The family of a recipe, and how it generates the panels of an image."""

    @property
    def panels(self) -> Panels: ...
    @property
    def predecessors(self) -> int | None: ...


def max_predecessors(recipe: StoryChoice) -> int:
    """Maximum number of earlier panels that a panel has as reference images. 0 = panels are generated together."""
    if recipe.panels == "together":
        return 0
    return recipe.predecessors or family_of(recipe.family).references[1]


def needs_text_encoders(recipe: StoryChoice) -> bool:
    """Whether a training encodes prompts until its end: again with each panel of a story as a reference image."""
    return family_of(recipe.family).text_sees_references and max_predecessors(recipe) > 0


def validate_story_panels(recipe: StoryChoice) -> None:
    """Raise DataError if a recipe generates panels one by one and its family does not support it.

    Raises:
        DataError: if the family accepts no reference images, or too few, or only edits.
    """
    if recipe.panels == "together":
        return
    family = family_of(recipe.family)
    fewest, most = family.references
    if fewest or not most or family.edits(recipe.task):
        supported = ", ".join(
            name for name, other in FAMILIES.items() if other.references[1] and not other.references[0]
        )
        kind = "only edits" if fewest else "has task: edits" if most else "accepts no reference images"
        raise DataError(
            f"panels: one_by_one generates the first panel from text only, and each later panel with earlier panels as "
            f"reference images, but the family {recipe.family} {kind}. Choose panels: together, or task: sets and a "
            f"family that supports both: {supported}"
        )
    if recipe.predecessors is not None and recipe.predecessors > most:
        raise DataError(
            f"predecessors={recipe.predecessors}: the family {recipe.family} accepts at most {most} reference images; "
            "lower it, or leave it null"
        )


class PromptReader(TextWindow, Protocol):
    """The family, model and text window of a recipe or a base editor."""

    @property
    def family(self) -> str: ...


def validate_text_window(key: str, section: PromptReader, root: Path) -> None:
    """:func:`paco_core.policies.windows.validate_window` for a model of a family."""
    validate_window(key, section, root, family_of(section.family).pipeline)
