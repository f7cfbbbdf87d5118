"""How tensors of a LoRA are named in the files that are in use, and which layers of a model they mean.

A name is a prefix (of a tool, and of the part of the pipeline), a place (a layer, by the name of the library that
trained it) and a tail (A, B, or the layer's alpha). Anything else in a file has no meaning here: the reader refuses it.
diffusers' own converters are not used: they multiply alpha into A and B, and expect the number of blocks of FLUX.1-dev.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

#: What tools put before all names; it says nothing.
WRAPPERS = ("base_model.model.", "model.diffusion_model.", "module.")
#: Prefixes of the parts of a pipeline, and whether the dots of a layer's name are written as ``_`` after them (kohya's
#: sd-scripts, OneTrainer). Without any, a name is of the first part.
PREFIXES = {
    "transformer.": ("transformer", False),  # diffusers
    "diffusion_model.": ("transformer", False),  # ComfyUI, and trainers for it
    "lora_unet_": ("transformer", True),
    "lora_transformer_": ("transformer", True),
    "text_encoder.": ("text_encoder", False),
    "text_encoders.clip_l.transformer.": ("text_encoder", False),
    "lora_te_": ("text_encoder", True),
    "lora_te1_": ("text_encoder", True),
    "text_encoder_2.": ("text_encoder_2", False),
    "text_encoders.t5xxl.transformer.": ("text_encoder_2", False),
    "lora_te3_": ("text_encoder_2", True),
}
#: A and B as PEFT, kohya, diffusers (now and before its version 0.26) and XLabs write them.
TAIL = re.compile(
    r"(?:\.lora_(?P<peft>[AB])(?:\.(?P<adapter>.+))?\.weight"
    r"|\.lora_(?P<kohya>down|up)\.weight"
    r"|\.lora(?:_linear_layer)?\.(?P<diffusers>down|up)\.weight"
    r"|_lora(?P<stream>[12]?)\.(?P<old>down|up)\.weight"
    r"|\.(?P<alpha>alpha))$"
)
WRITTEN = ("peft", "kohya", "diffusers", "old", "alpha")  # groups of TAIL that say which side it is
SIDES = {"A": "A", "B": "B", "down": "A", "up": "B", "alpha": "alpha"}

Rows = Mapping[str, list[slice]]  # a layer -> which rows of a place's B are its own, in order
Vocabulary = Mapping[str, Rows]  # the places of one library


@dataclass(frozen=True)
class Name:
    """A tensor's name, taken apart."""

    part: str
    place: str
    side: str  # A, B or alpha
    flat: bool  # the place's dots are written as _
    adapter: str | None  # PEFT's name of the adapter, where it is in the key


def parse(key: str, main: str) -> Name | None:
    """A tensor's name, of the part ``main`` where it names none; None for what is no LoRA's."""
    found = TAIL.search(key)
    if found is None:
        return None
    side = next(SIDES[found[name]] for name in WRITTEN if found[name])
    place = key[: found.start()].replace(".processor.", ".")  # of attention, as it was trained before PEFT
    place += f"_lora{found['stream']}" if found["stream"] else ""  # XLabs: of the picture's tokens, and of the text's
    while wrapper := next((wrapper for wrapper in WRAPPERS if place.startswith(wrapper)), None):
        place = place.removeprefix(wrapper)
    prefix = next((prefix for prefix in PREFIXES if place.startswith(prefix)), "")
    part, flat = PREFIXES.get(prefix, (main, False))
    return Name(part, place.removeprefix(prefix), side, flat, found["adapter"])


def linears(module: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """The linear layers of a model by name, as it is without an adapter."""
    found = {}
    for name, layer in module.named_modules():
        if isinstance(layer, torch.nn.Linear) and ".lora_" not in name:
            found[name.removesuffix(".base_layer")] = layer
    return found


def own_names(module: torch.nn.Module) -> Vocabulary:
    """The layers by the names that the model itself gives to them."""
    return {name: {name: [slice(0, layer.out_features)]} for name, layer in linears(module).items()}


def renamed(module: torch.nn.Module, names: Mapping[str, str]) -> Vocabulary:
    """The layers by other names: ``names`` is other name -> own name."""
    own = own_names(module)
    return {other: own[name] for other, name in names.items()}


def with_or_without(module: torch.nn.Module, start: str) -> Vocabulary:
    """The layers by names that begin with ``start`` where the model's own do not, and the other way round.

    transformers 5 took such levels away (``text_model.`` of CLIP's text encoder); files of before have them.
    """
    names = own_names(module)
    return renamed(
        module, {name.removeprefix(start) if name.startswith(start) else start + name: name for name in names}
    )
