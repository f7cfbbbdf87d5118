"""LoRA adapters in PEFT's own layout, as the released PaCo-GRPO trainer writes them.

``adapter_config.json`` and ``adapter_model.safetensors``, whose names begin with ``base_model.model.``; a folder
``old`` beside them, the adapter that rollouts were painted with, is left alone. diffusers writes and reads another one:
``pytorch_lora_weights.safetensors`` with names that begin with ``transformer.``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError
from peft import LoraConfig, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file

from paco_core.io.files import DataError, read_json

CONFIG, WEIGHTS, PREFIX = "adapter_config.json", "adapter_model.safetensors", "base_model.model."
TAKEN = ("r", "lora_alpha", "target_modules", "rank_pattern", "alpha_pattern", "use_rslora")


def find(source: str) -> Path | None:
    """The folder of an adapter in this layout, downloaded for a hub id; None where there is none in this layout."""
    folder = Path(source)
    if not folder.exists():
        try:
            folder = Path(snapshot_download(source, allow_patterns=[CONFIG, WEIGHTS]))
        except (HFValidationError, OSError):
            return None  # diffusers looks for its own layout next, and says what is wrong
    return folder if (folder / CONFIG).is_file() else None


def attach(transformer: Any, folder: Path, name: str) -> None:
    """Put the adapter in ``folder`` on a transformer.

    Raises:
        DataError: when a file is missing or damaged, the adapter is no plain LoRA, or does not fit the transformer.
    """
    config = _config(folder / CONFIG)
    try:
        weights = load_file(folder / WEIGHTS)
    except (OSError, SafetensorError) as error:
        raise DataError(f"{folder / WEIGHTS}: no weights can be read ({error}); only safetensors are") from None
    weights = {key.removeprefix(PREFIX): value for key, value in weights.items()}
    try:
        transformer.add_adapter(config, adapter_name=name)
    except ValueError as error:
        raise misfit(transformer, folder, str(error).splitlines()[0]) from None
    own = get_peft_model_state_dict(transformer, adapter_name=name)
    for key in sorted(own.keys() | weights.keys()):
        if key not in weights:
            raise misfit(transformer, folder, f"it lacks {key}")
        if key not in own:
            raise misfit(transformer, folder, f"it has {key}, which no layer takes")
        if own[key].shape != weights[key].shape:
            shapes = f"{list(weights[key].shape)} instead of {list(own[key].shape)}"
            raise misfit(transformer, folder, f"{key} has the shape {shapes}")
    set_peft_model_state_dict(transformer, weights, adapter_name=name)


def _config(path: Path) -> LoraConfig:
    given = read_json(path)
    if not isinstance(given, dict) or given.get("peft_type") != "LORA":
        raise DataError(f"{path}: peft_type is not LORA")
    extra = [key for key in ("use_dora", "modules_to_save", "layers_to_transform") if given.get(key)]
    if extra or given.get("bias", "none") != "none":
        raise DataError(f"{path}: {', '.join(extra) or 'bias'}: only a plain LoRA can be trained here")
    return LoraConfig(**{key: given[key] for key in TAKEN if given.get(key) is not None})


def misfit(transformer: torch.nn.Module, source: str | Path, what: str) -> DataError:
    """The error of a LoRA whose layers are not those of the transformer."""
    return DataError(
        f"{source}: the LoRA does not fit {type(transformer).__name__}: {what}. Two layouts are read: PEFT's, "
        f"{CONFIG} and {WEIGHTS} with names {PREFIX}<layer>.lora_A.weight, and diffusers', "
        "pytorch_lora_weights.safetensors with names transformer.<layer>.lora_A.weight"
    )
