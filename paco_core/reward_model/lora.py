"""LoRA adapters on the language model of a reward model: attach, save and load."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors import safe_open

from paco_core.adapters.attach import fill, settings_of
from paco_core.adapters.names import Vocabulary, own_names, renamed
from paco_core.adapters.reader import CONFIG, WEIGHTS, AdaptedModel, read_adapter
from paco_core.io.files import DataError, read_json, write_json

if TYPE_CHECKING:
    from paco_core.config.params import LoraParams

LANGUAGE, VISION = "model.language_model.", "model.visual.blocks."
BASE = "base.json"  # digest of the base, in adapters that this project trains
SAMPLED_ROWS = 16
#: transformers 5 moved the towers of Qwen2.5-VL; older adapters contain the old names.
MOVED = {"model.layers.": "model.language_model.layers.", "visual.": "model.visual."}


def target_pattern(model: torch.nn.Module, targets: Sequence[str], *, trained_vision: bool = False) -> str:
    """Regular expression of the language model's linear layers whose names end in one of ``targets``.

    The vision tower has layers of the same names, which are excluded. With ``trained_vision``, all linear layers of the
    tower's blocks match too.

    Raises:
        DataError: if a target matches no linear layer of the language model. The error lists the layers.
    """
    names = linear_names(model, LANGUAGE)
    for target in targets:
        if not any(name.endswith(f".{target}") for name in names):
            tails = sorted({name.rsplit(".", 1)[-1] for name in names})
            raise DataError(
                f"reward.lora.targets: {target!r} matches no linear layer of the language model; "
                f"there are {', '.join(tails)}"
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


def attach_lora(model: Any, lora: LoraParams, base: str, seed: int, *, trained_vision: bool = False) -> Any:
    """Attach a new adapter to ``model``, initialized from ``seed``. Only its weights, in float32, are trainable.

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
    """Digest of a sample of the weights. It identifies a base for every number format."""
    layers = model.model.language_model.layers
    sampled = (model.lm_head, layers[0].self_attn.q_proj, layers[-1].self_attn.v_proj, layers[-1].mlp.down_proj)
    digest = hashlib.md5(usedforsecurity=False)
    for layer in sampled:
        rows = layer.weight[:SAMPLED_ROWS].detach().to(torch.bfloat16).float()
        digest.update(rows.cpu().numpy().tobytes())
    return digest.hexdigest()


def save_lora(wrapped: Any, folder: Path, base: str) -> None:
    """Write the adapter (config and safetensors) to ``folder``. ``base``: :func:`base_digest` of its base.

    Raises:
        RuntimeError: if the file does not contain every trained tensor.
    """
    wrapped.save_pretrained(folder, safe_serialization=True)
    with safe_open(folder / WEIGHTS, framework="pt") as stored:
        written, trained = len(list(stored.keys())), len(lora_tensors(wrapped))
    if written != trained:
        raise RuntimeError(f"{folder / WEIGHTS}: {written} of {trained} trained tensors were saved")
    write_json(folder / BASE, {"weights": base})
    (folder / "README.md").unlink(missing_ok=True)  # peft's empty model card


def lora_tensors(wrapped: Any) -> dict[str, torch.Tensor]:
    """The adapter's trainable tensors by name, (rank, in) and (out, rank)."""
    return {name: value for name, value in wrapped.named_parameters() if value.requires_grad}


def load_lora(model: Any, adapter: Path) -> Any:
    """Load an adapter onto ``model``, frozen, by :func:`paco_core.adapters.reader.read_adapter`.

    Raises:
        DataError: if the folder is not a valid adapter, or belongs to another model: its layers or shapes differ, or
            the digest of its base does.
    """
    for name in (CONFIG, WEIGHTS):
        if not (adapter / name).is_file():
            raise DataError(f"{adapter}: there is no adapter ({name} is missing); run `dvc repro reward_lora`")
    layers = read_adapter(adapter / WEIGHTS, {"model": AdaptedModel(model, [_older_names(model)])})["model"]
    _validate_base_digest(model, adapter)
    wrapped = get_peft_model(model, settings_of(layers))
    fill(model, layers, "default")
    return wrapped.eval()


def _older_names(model: torch.nn.Module) -> Vocabulary:
    """Names of the layers before transformers 5, which published adapters use."""
    names = {}
    for name in own_names(model):
        for older, place in MOVED.items():
            if name.startswith(place):
                names[older + name.removeprefix(place)] = name
    return renamed(model, names)


def _validate_base_digest(model: Any, adapter: Path) -> None:
    if (adapter / BASE).is_file() and read_json(adapter / BASE)["weights"] != base_digest(model):
        owner = read_json(adapter / CONFIG).get("base_model_name_or_path")
        raise DataError(
            f"{adapter}: trained on other weights of the same shape: those of {owner} at that time; set "
            "reward.base to that base, or train again"
        )
