"""The model families: what is known of each before its code or weights are loaded.

A family is one file with a class that follows :class:`paco_core.policies.base.Policy`, and one entry here.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from paco_core.io.files import DataError, read_json
from paco_core.policies.windows import Reader, refuse_window


@dataclass(frozen=True)
class Family:
    """One kind of image generator.

    Attributes:
        policy: "module:class"; the module is imported when a policy of the family is loaded.
        pipeline: class of the diffusers pipeline.
        text_encoders: parts of the pipeline that are freed once prompts are encoded.
        lora_targets: layers that an adapter sits on, unless the recipe names others.
        edits: each prompt changes a reference picture.
        true_guidance: guidance above 1 takes a second pass of the transformer; else it is a number among its inputs.
        condition_size: the text encoder sees a reference at about this size squared, in pixels, whatever size its
            latents have; None where it sees it at the size of its latents, or not at all.
    """

    policy: str
    pipeline: str
    text_encoders: tuple[str, ...]
    lora_targets: tuple[str, ...]
    edits: bool = False
    true_guidance: bool = False
    condition_size: int | None = None

    def passes_a_step(self, guidance: float) -> int:
        """Transformer passes of one prediction."""
        return 2 if self.true_guidance and guidance > 1 else 1

    def load_class(self) -> Any:
        """The class of the family's policies; loads torch and diffusers, no weights."""
        module, name = self.policy.split(":")
        return getattr(import_module(module), name)


_FLUX_ENCODERS = ("text_encoder", "text_encoder_2")
_ATTENTION = ("to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out")
_FLUX_LAYERS = (*_ATTENTION, "net.0.proj", "net.2")  # as released: not proj_mlp and proj_out of the single blocks
_QWEN_LAYERS = (*_ATTENTION, "img_mlp.net.0.proj", "img_mlp.net.2", "txt_mlp.net.0.proj", "txt_mlp.net.2")

FAMILIES = {
    "flux": Family("paco_core.policies.flux:FluxPolicy", "FluxPipeline", _FLUX_ENCODERS, _FLUX_LAYERS),
    "flux_kontext": Family(
        "paco_core.policies.flux_kontext:FluxKontextPolicy",
        "FluxKontextPipeline",
        _FLUX_ENCODERS,
        _FLUX_LAYERS,
        edits=True,
    ),
    "qwen_image_edit": Family(
        "paco_core.policies.qwen_image_edit:QwenImageEditPolicy",
        "QwenImageEditPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        edits=True,
        true_guidance=True,
    ),
    "qwen_image_edit_plus": Family(
        "paco_core.policies.qwen_image_edit_plus:QwenImageEditPlusPolicy",
        "QwenImageEditPlusPipeline",
        ("text_encoder",),
        _QWEN_LAYERS,
        edits=True,
        true_guidance=True,
        condition_size=384,
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


def refuse_other_pipeline(root: Path, model: str, family: str) -> None:
    """:func:`refuse_class` for a folder of the project, before it is loaded; a hub is not asked."""
    index = root / model / "model_index.json"
    if index.is_file():
        refuse_class(model, read_json(index).get("_class_name"), family)


class PromptReader(Reader, Protocol):
    """A recipe, or a base editor: its family is settled beside its model and text window."""

    @property
    def family(self) -> str: ...


def refuse_text_window(key: str, section: PromptReader, root: Path) -> None:
    """:func:`paco_core.policies.windows.refuse_window` for a model of a family."""
    refuse_window(key, section, root, family_of(section.family).pipeline)
