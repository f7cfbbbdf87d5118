"""Published weights instead of training: an adapter or a merged model, from a folder or a model hub."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download
from safetensors import safe_open
from safetensors.torch import save_file

from paco_core.config.references import model_at
from paco_core.io.files import DataError, read_json, write_json
from paco_core.io.hub import from_hub
from paco_core.reward_model import lora
from paco_core.reward_model.evaluation import Evaluation, evaluate
from paco_core.reward_model.examples import Example
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer

if TYPE_CHECKING:
    from paco_core.config.params import RewardParams

SOURCE = "source.json"
#: transformers 5 moved the towers of Qwen2.5-VL; adapters trained before it name the old places.
MOVED = {"model.layers.": "model.language_model.layers.", "visual.": "model.visual."}
PREFIX = "base_model.model."


def keep_adapter(root: Path, params: RewardParams, out: Path) -> Path | None:
    """Write what ``reward.weights`` names to the folder ``out``: the adapter, or a note for a merged model.

    Returns:
        The folder of the adapter; None for a merged model, which the next stage loads itself.

    Raises:
        DataError: when the adapter is not there, or its files are none.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SOURCE, {"source": params.source, "weights": params.weights})
    if params.source != "adapter":
        return None
    folder = _fetch(root, str(params.weights))
    for name in (lora.CONFIG, lora.WEIGHTS):
        if not (folder / name).is_file():
            raise DataError(f"reward.weights {params.weights!r}: no adapter there ({name} is missing)")
    kept = out / "adapter"
    kept.mkdir()
    config = read_json(folder / lora.CONFIG)
    tensors = _renamed(folder / lora.WEIGHTS)
    if any(new != old for old, new in tensors.items()):
        names = {new.removeprefix(PREFIX).rsplit(".lora_", 1)[0] for new in tensors.values()}
        config["target_modules"] = sorted(names)
    (kept / lora.CONFIG).write_text(json.dumps(config, indent=2) + "\n")
    _copy_tensors(folder / lora.WEIGHTS, kept / lora.WEIGHTS, tensors)
    if (folder / lora.BASE).is_file():
        write_json(kept / lora.BASE, read_json(folder / lora.BASE))
    return kept


def evaluate_published(
    root: Path,
    params: RewardParams,
    adapter: Path | None,
    validation: Sequence[Example],
    *,
    say: Callable[[str], None],
) -> tuple[Evaluation, Evaluation]:
    """(the base, the published weights) on the validation pairs.

    Raises:
        DataError: when the adapter was made for another base; see :func:`lora.load`.
    """
    load: dict[str, Any] = {
        "device": params.device,
        "dtype": params.dtype,
        "pixels": (params.min_pixels, params.max_pixels),
    }
    network = Network.load(model_at(root, params.base, "reward.base"), **load)
    before = evaluate(Scorer.of(network), validation)
    say(f"base: accuracy {before.accuracy:.3f} on {before.pairs} pairs")
    if adapter is None:
        network = Network.load(model_at(root, str(params.weights), "reward.weights"), **load)
    else:
        lora.load(network.model, adapter)
        network.features.clear()  # the adapter may hold parts of the vision tower
    return before, evaluate(Scorer.of(network), validation)


def _fetch(root: Path, weights: str) -> Path:
    """The folder that ``weights`` names; a hub id is downloaded, its adapter files only."""
    found = model_at(root, weights, "reward.weights")
    if isinstance(found, Path):
        return found

    with from_hub(found):
        return Path(snapshot_download(found, allow_patterns=[lora.CONFIG, lora.WEIGHTS, lora.BASE]))


def _renamed(weights: Path) -> dict[str, str]:
    """Tensor names as stored -> as this version of transformers names them."""
    with safe_open(weights, framework="pt") as stored:
        names = list(stored.keys())
    renamed = {}
    for name in names:
        place = name.removeprefix(PREFIX)
        old = next((old for old in MOVED if place.startswith(old)), None)
        renamed[name] = name if old is None else PREFIX + MOVED[old] + place.removeprefix(old)
    return renamed


def _copy_tensors(source_file: Path, target: Path, names: dict[str, str]) -> None:
    with safe_open(source_file, framework="pt") as stored:
        save_file({new: stored.get_tensor(old) for old, new in names.items()}, target, metadata={"format": "pt"})
