"""The model families: what is known of each before its code or weights are loaded.

A family is one file with a class that follows :class:`paco_core.policies.base.Policy`, and one entry here.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, Protocol

from paco_core.io.files import DataError, read_json
from paco_core.policies.windows import Reader, refuse_window

Task = Literal["sets", "edits"]
Panels = Literal["together", "one_by_one"]


@dataclass(frozen=True)
class Family:
    """One kind of image generator.

    Attributes:
        policy: "module:class"; the module is imported when a policy of the family is loaded.
        pipeline: class of the diffusers pipeline.
        text_encoders: parts of the pipeline that are freed once prompts are encoded.
        lora_targets: layers that an adapter sits on, unless the recipe names others.
        references: fewest and most reference pictures of a prompt; (0, 0) paints from text alone, (1, ...) only edits,
            (0, ...) does both.
        least_reference: pixels that the shorter side of a reference picture has at least.
        longest_reference: its longer side over its shorter one, at most.
        true_guidance: guidance above 1 takes a second pass of the transformer; else it is a number among its inputs.
        condition_size: the text encoder sees a reference at about this size squared, in pixels, whatever size its
            latents have; None where it sees it at the size of its latents, or not at all.
        parts: "module:function" that refuses a folder whose parts do not belong together, from its configurations;
            None where the class of the pipeline says enough.
    """

    policy: str
    pipeline: str
    text_encoders: tuple[str, ...]
    lora_targets: tuple[str, ...]
    references: tuple[int, int] = (0, 0)
    least_reference: int = 1
    longest_reference: float = math.inf
    true_guidance: bool = False
    condition_size: int | None = None
    parts: str | None = None

    def edits(self, task: Task | None = None) -> bool:
        """Whether each prompt changes reference pictures, where policies are loaded for a task.

        Args:
            task: None = what the family does, and ``sets`` where it does both.

        Raises:
            DataError: when the family does not do it.
        """
        fewest, most = self.references
        if task == "edits" and not most:
            raise DataError(f"task: {self.pipeline} paints from text alone; choose a family that edits, or task sets")
        if task == "sets" and fewest:
            raise DataError(f"task: {self.pipeline} only edits; choose a family that paints from text, or task edits")
        return fewest > 0 or task == "edits"

    def passes_a_step(self, guidance: float) -> int:
        """Transformer passes of one prediction."""
        return 2 if self.true_guidance and guidance > 1 else 1

    def load_class(self) -> Any:
        """The class of the family's policies; loads torch and diffusers, no weights."""
        return _named(self.policy)


def _named(place: str) -> Any:
    module, name = place.split(":")
    return getattr(import_module(module), name)


_FLUX_ENCODERS = ("text_encoder", "text_encoder_2")
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_FLUX_LAYERS = (*_ATTENTION, "net.0.proj", "net.2")  # as released: not proj_mlp and proj_out of the single blocks
#: Of the single blocks the fused layers as well. `attn.to_out` is theirs alone: in the double blocks it is a list.
_FLUX2_LAYERS = (*_ATTENTION, "linear_in", "linear_out", "to_qkv_mlp_proj", "attn.to_out")
_QWEN_LAYERS = (*_ATTENTION, "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2")

ONE = (1, 1)

FAMILIES = {
    "flux": Family("paco_core.policies.flux:FluxPolicy", "FluxPipeline", _FLUX_ENCODERS, _FLUX_LAYERS),
    "flux_kontext": Family(
        "paco_core.policies.flux_kontext:FluxKontextPolicy",
        "FluxKontextPipeline",
        _FLUX_ENCODERS,
        _FLUX_LAYERS,
        references=ONE,
    ),
    "qwen_image_edit": Family(
        "paco_core.policies.qwen_image_edit:QwenImageEditPolicy",
        "QwenImageEditPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        references=ONE,
        true_guidance=True,
    ),
    "qwen_image_edit_plus": Family(
        "paco_core.policies.qwen_image_edit_plus:QwenImageEditPlusPolicy",
        "QwenImageEditPlusPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        references=(1, 3),  # as many as the authors' card of 2509 names
        true_guidance=True,
        condition_size=384,
    ),
    "qwen_image": Family(
        "paco_core.policies.qwen_image:QwenImagePolicy",
        "QwenImagePipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        true_guidance=True,
    ),
    "flux2_klein": Family(
        "paco_core.policies.flux2_klein:Flux2KleinPolicy",
        "Flux2KleinPipeline",
        ("text_encoder",),
        _FLUX2_LAYERS,
        references=(0, 4),  # docs.bfl.ai/guides/prompting_editing_overview
        least_reference=64,  # the pipeline refuses smaller and longer ones
        longest_reference=8,
        true_guidance=True,
        parts="paco_core.policies.flux2_parts:refuse_parts",
    ),
}


def family_of(name: str) -> Family:
    """A family by its name in ``params.yaml``.

    Raises:
        DataError: when it is unknown.
    """
    if name not in FAMILIES:
        raise DataError(f"policy family {name!r} is unknown; choose one of {', '.join(FAMILIES)}")
    return FAMILIES[name]


def refuse_class(model: str, found: object, family: str) -> None:
    """Raise DataError when a pipeline is of another class than the family's."""
    wanted = family_of(family).pipeline
    if found != wanted:
        raise DataError(f"{model}: holds a {found}, the family {family} needs a {wanted}")


def refuse_parts(folder: Path, family: str) -> None:
    """Raise DataError when the parts of a pipeline's folder do not belong together."""
    if (check := family_of(family).parts) is not None:
        _named(check)(folder)


def refuse_other_pipeline(root: Path, model: str, family: str) -> None:
    """:func:`refuse_class` and :func:`refuse_parts` for a folder of the project; a hub is not asked."""
    index = root / model / "model_index.json"
    if index.is_file():
        refuse_class(model, read_json(index).get("_class_name"), family)
        refuse_parts(root / model, family)


#: Public models of few steps, by heart; of a folder ``model_index.json`` says it.
DISTILLED = {"black-forest-labs/FLUX.2-klein-4B", "black-forest-labs/FLUX.2-klein-9B"}


def is_distilled(root: Path, model: str) -> bool:
    """Whether a model's weights are distilled to a few steps, as far as that is known without asking a hub.

    Raises:
        DataError: when its index says neither true nor false.
    """
    index = root / model / "model_index.json"
    if not index.is_file():
        return model in DISTILLED
    distilled = read_json(index).get("is_distilled")
    if not isinstance(distilled, bool | None):
        raise DataError(f"{index}: is_distilled is {distilled!r}, expected true or false")
    return bool(distilled)


class FamilyChoice(Protocol):
    """A recipe: its family, and what it is trained for."""

    @property
    def family(self) -> str: ...
    @property
    def task(self) -> Task | None: ...


def edits(recipe: FamilyChoice) -> bool:
    """Whether each prompt of a recipe changes reference pictures; see :meth:`Family.edits`."""
    return family_of(recipe.family).edits(recipe.task)


def refuse_references(family: str, prompt: str, count: int) -> None:
    """Raise DataError where a prompt comes with more reference pictures than a family takes, or with none to edit."""
    most = family_of(family).references[1]
    if not most:
        raise DataError(
            f"the family {family} paints from text alone, and {prompt} came with {count} reference pictures"
        )
    if not 1 <= count <= most:
        taken = "one reference picture" if most == 1 else f"1 to {most} reference pictures"
        several = ", ".join(
            f"{name} ({known.references[1]})" for name, known in FAMILIES.items() if known.references[1] > 1
        )
        raise DataError(
            f"the family {family} changes {taken} per prompt, and {prompt} came with {count}; leave some out, or "
            f"choose a family that takes several: {several}"
        )


class StoryChoice(FamilyChoice, Protocol):
    """A recipe: also how the panels of a picture are painted."""

    @property
    def panels(self) -> Panels: ...
    @property
    def predecessors(self) -> int | None: ...


def predecessors_of(recipe: StoryChoice) -> int:
    """How many of the panels before it stand beside a panel as reference pictures, at most; 0 = painted together."""
    if recipe.panels == "together":
        return 0
    return recipe.predecessors or family_of(recipe.family).references[1]


def refuse_stories(recipe: StoryChoice) -> None:
    """Refuse panels that are to be painted one by one and cannot.

    Raises:
        DataError: for a family that takes no reference pictures, or too few of them, or only edits.
    """
    if recipe.panels == "together":
        return
    family = family_of(recipe.family)
    fewest, most = family.references
    if fewest or not most or family.edits(recipe.task):
        able = ", ".join(name for name, known in FAMILIES.items() if known.references[1] and not known.references[0])
        kind = "only edits" if fewest else "is to edit" if most else "takes no reference pictures"
        raise DataError(
            f"panels: one_by_one paints the first panel from text alone, and each other one with those before it as "
            f"reference pictures; the family {recipe.family} {kind}. Choose panels: together, or task sets of a family "
            f"that does both: {able}"
        )
    if recipe.predecessors is not None and recipe.predecessors > most:
        raise DataError(
            f"predecessors={recipe.predecessors}: the family {recipe.family} takes {most} reference pictures at most; "
            "lower it, or leave it null"
        )


class PromptReader(Reader, Protocol):
    """A recipe, or a base editor: its family is settled beside its model and text window."""

    @property
    def family(self) -> str: ...


def refuse_text_window(key: str, section: PromptReader, root: Path) -> None:
    """:func:`paco_core.policies.windows.refuse_window` for a model of a family."""
    refuse_window(key, section, root, family_of(section.family).pipeline)
