"""LoRA on the language model of a Qwen2.5-VL: attach, save, load onto its base."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors import safe_open

from paco_core.io.files import DataError, read_json, write_json
from paco_core.reward_model.damaged import reading

if TYPE_CHECKING:
    from paco_core.config.params import LoraParams

LANGUAGE, VISION = "model.language_model.", "model.visual.blocks."
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
BASE = "base.json"  # what an adapter that was trained here knows of its base
SAMPLED_ROWS = 16


def target_pattern(model: torch.nn.Module, targets: Sequence[str], *, trained_vision: bool = False) -> str:
    """Regular expression of the language model's linear layers whose names end in one of ``targets``.

    The vision tower has layers of the same names; they are left out, unless ``trained_vision``: then all
    linear layers of the tower's blocks are meant too, whatever their names.

    Raises:
        DataError: naming a target that matches no linear layer of the language model, and those there are.
    """
    names = linear_names(model, LANGUAGE)
    for target in targets:
        if not any(name.endswith(f".{target}") for name in names):
            known = sorted({name.rsplit(".", 1)[-1] for name in names})
            raise DataError(
                f"reward.lora.targets: {target!r} matches no linear layer of the language model; "
                f"there are {', '.join(known)}"
            )
    pattern = rf"{re.escape(LANGUAGE)}.*\.({'|'.join(re.escape(target) for target in targets)})"
    if not trained_vision:
        return pattern
    tails = sorted({name.rsplit(".", 1)[-1] for name in linear_names(model, VISION)})
    return rf"{pattern}|{re.escape(VISION)}.*\.({'|'.join(map(re.escape, tails))})"


def linear_names(model: torch.nn.Module, prefix: str) -> list[str]:
    """Names of the linear layers below ``prefix``."""
    modules = model.named_modules()
    return [name for name, module in modules if isinstance(module, torch.nn.Linear) and name.startswith(prefix)]


def attach(model: Any, lora: LoraParams, base: str, seed: int, *, trained_vision: bool = False) -> Any:
    """Wrap ``model`` in a fresh adapter drawn from ``seed``; adapter weights are float32 and alone trainable.

    ``base`` is recorded in the adapter's config as the model it belongs to.

    Raises:
        DataError: see :func:`target_pattern`.
    """
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        target_modules=target_pattern(model, lora.targets, trained_vision=trained_vision),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        wrapped = get_peft_model(model, config)
    wrapped.peft_config["default"].base_model_name_or_path = base
    return wrapped


def base_digest(model: Any) -> str:
    """Tells bases of one shape apart, whatever number format they are loaded in: from a sample of the weights."""
    layers = model.model.language_model.layers
    sampled = (model.lm_head, layers[0].self_attn.q_proj, layers[-1].self_attn.v_proj, layers[-1].mlp.down_proj)
    digest = hashlib.md5(usedforsecurity=False)
    for layer in sampled:
        rows = layer.weight[:SAMPLED_ROWS].detach().to(torch.bfloat16).float()
        digest.update(rows.cpu().numpy().tobytes())
    return digest.hexdigest()


def save(wrapped: Any, folder: Path, base: str) -> None:
    """Write the adapter (config and safetensors) to ``folder``, and the :func:`base_digest` of its base."""
    wrapped.save_pretrained(folder, safe_serialization=True)
    write_json(folder / BASE, {"weights": base})
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card


def tensors(wrapped: Any) -> dict[str, torch.Tensor]:
    """The adapter's trainable tensors by name."""
    return {name: value for name, value in wrapped.named_parameters() if value.requires_grad}


def load(model: Any, adapter: Path) -> Any:
    """Put a saved adapter onto ``model``.

    Raises:
        DataError: when the folder is no adapter or is damaged, or was made for another base (names or shapes differ,
            or the weights, where the adapter knows those of its base).
    """
    for name in (CONFIG, WEIGHTS):
        if not (adapter / name).is_file():
            raise DataError(f"{adapter}: no adapter there ({name} is missing); run `dvc repro reward_lora`")
    with reading(adapter):
        _refuse_other_base(model, adapter)
        return PeftModel.from_pretrained(model, str(adapter))


def _refuse_other_base(model: Any, adapter: Path) -> None:
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
    if (adapter / BASE).is_file() and read_json(adapter / BASE)["weights"] != base_digest(model):
        raise DataError(
            f"{adapter}: made for base {owner!r}, not for this model: of the same shape, but with other weights; "
            "name that base in reward.base"
        )
