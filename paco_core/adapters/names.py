"""Names of a LoRA's tensors in the files of other tools, and the layers of a model that they mean.

A name is a prefix (of a tool, and of the part of the pipeline), a place (a layer, by the name of the library that
trained it) and a tail (A, B, or the layer's alpha). The reader refuses any other name.
diffusers' converters are not used. Of 356 random files that this reader loads, diffusers 0.42 loads 52 with the same
effect: others lose alpha, text encoders or layers without an error, or need the layer sizes of FLUX.1-dev.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import torch

#: Prefixes that tools put before all names.
WRAPPERS = ("base_model.model.", "model.diffusion_model.", "module.")
#: Prefixes of the parts of a pipeline, and whether the dots of a layer's name are written as ``_`` after them (kohya's
#: sd-scripts, OneTrainer). A name without a prefix is of the first part.
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
SIDES = {"A": "A", "B": "B", "down": "A", "up": "B", "alpha": "alpha"}

Rows = Mapping[str, list[slice]]  # a layer -> its rows of a place's B, in order
Vocabulary = Mapping[str, Rows]  # the places of one library


class Name(NamedTuple):
    """The parts of a tensor's name."""

    part: str
    place: str
    side: str  # A, B or alpha
    flat: bool  # the place's dots are written as _
    adapter: str | None  # PEFT's name of the adapter, if the key contains one


def parse_tensor_name(key: str, main: str) -> Name | None:
    """The parts of a tensor's name; None if it is not the name of a LoRA's tensor.

    Args:
        main: the part of the pipeline that names without a prefix belong to.
    """
    tail = TAIL.search(key)
    if tail is None:
        return None
    side = next(SIDES[tail[tool]] for tool in ("peft", "kohya", "diffusers", "old", "alpha") if tail[tool])
    place = key[: tail.start()].replace(".processor.", ".")  # of attention, as it was trained before PEFT
    place += f"_lora{tail['stream']}" if tail["stream"] else ""  # XLabs: 1 for tokens of the image, 2 for the text's
    while wrapper := next((wrapper for wrapper in WRAPPERS if place.startswith(wrapper)), None):
        place = place.removeprefix(wrapper)
    prefix = next((prefix for prefix in PREFIXES if place.startswith(prefix)), "")
    part, flat = PREFIXES.get(prefix, (main, False))
    return Name(part, place.removeprefix(prefix), side, flat, tail["adapter"])


def linears(module: torch.nn.Module) -> dict[str, torch.nn.Linear]:
    """The linear layers of a model by name, as it is without an adapter."""
    return {
        name.removesuffix(".base_layer"): layer
        for name, layer in module.named_modules()
        if isinstance(layer, torch.nn.Linear) and ".lora_" not in name
    }


def own_names(module: torch.nn.Module) -> Vocabulary:
    """The layers by the names that the model itself gives to them."""
    return renamed(module, {name: name for name in linears(module)})


def renamed(module: torch.nn.Module, names: Mapping[str, str]) -> Vocabulary:
    """The layers by other names: ``names`` is other name -> name in the model."""
    layers = linears(module)
    return {other: {name: [slice(0, layers[name].out_features)]} for other, name in names.items()}


def with_or_without(module: torch.nn.Module, start: str) -> Vocabulary:
    """The layers with ``start`` put before their names, or taken away from those that begin with it.

    transformers 5 removed such levels (``text_model.`` of CLIP's text encoder); older files have them.
    """
    names = linears(module)
    return renamed(module, {n.removeprefix(start) if n.startswith(start) else start + n: n for n in names})
