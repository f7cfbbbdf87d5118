"""LoRA on the language model of a Qwen2.5-VL: attach, save, load onto its base."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError

if TYPE_CHECKING:
    import torch

    from paco_core.params import LoraParams

LANGUAGE = "model.language_model."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def target_pattern(model: torch.nn.Module, targets: Sequence[str]) -> str:
    """Regular expression of the language model's linear layers whose names end in one of ``targets``.

    The vision tower has layers of the same names; they are left out, for the tower stays frozen.

    Raises:
        DataError: naming a target that matches no linear layer of the language model, and those there are.
    """
    import torch

    names = [
        name
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and name.startswith(LANGUAGE)
    ]
    for target in targets:
        if not any(name.endswith(f".{target}") for name in names):
            known = sorted({name.rsplit(".", 1)[-1] for name in names})
            raise DataError(
                f"reward.lora.targets: {target!r} matches no linear layer of the language model; "
                f"there are {', '.join(known)}"
            )
    return rf"{re.escape(LANGUAGE)}.*\.({'|'.join(re.escape(target) for target in targets)})"


def attach(model: Any, lora: LoraParams, base: str, seed: int) -> Any:
    """Wrap ``model`` in a fresh adapter drawn from ``seed``; adapter weights are float32 and alone trainable.

    ``base`` is recorded in the adapter's config as the model it belongs to.

    Raises:
        DataError: see :func:`target_pattern`.
    """
    import torch
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=target_pattern(model, lora.targets),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wrapped = get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = base
    return wrapped


def save(wrapped: Any, folder: Path) -> None:
    """Write the adapter (config and safetensors) to ``folder``."""
    wrapped.save_pretrained(folder, safe_serialization=True)
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card


def tensors(wrapped: Any) -> dict[str, torch.Tensor]:
    """The adapter's trainable tensors by name."""
    return {name: value for name, value in wrapped.named_parameters() if value.requires_grad}


def load(model: Any, adapter: Path) -> Any:
    """Put a saved adapter onto ``model``.

    Raises:
        DataError: when the folder is no adapter, or was made for another base (names or shapes differ).
    """
    from peft import LoraConfig, PeftModel
    from safetensors import safe_open

    for name in (CONFIG, WEIGHTS):
        if not (adapter / name).is_file():
            raise DataError(f"{adapter}: no adapter there ({name} is missing); run `dvc repro reward_lora`")
    linears = {name: module for name, module in model.named_modules() if hasattr(module, "in_features")}
    owner = LoraConfig.from_pretrained(str(adapter)).base_model_name_or_path
    with safe_open(adapter / WEIGHTS, framework="pt") as stored:
        for key in stored.keys():  # noqa: SIM118 - no mapping
            name = key.removeprefix("base_model.model.").rsplit(".lora_", 1)[0]
            shape = list(stored.get_slice(key).get_shape())
            layer = linears.get(name)
            want = None if layer is None else layer.in_features if ".lora_A." in key else layer.out_features
            if want != (shape[1] if ".lora_A." in key else shape[0]):
                found = "no such layer" if layer is None else f"a layer of {layer.in_features} -> {layer.out_features}"
                raise DataError(
                    f"{adapter}: made for base {owner!r}, not for this model: {key} has shape {shape}, "
                    f"the model has {found}"
                )
    return PeftModel.from_pretrained(model, str(adapter))
