"""Published weights instead of a training: an adapter or a merged model, from a folder or a hub."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from huggingface_hub import snapshot_download

from paco_core.adapters.reader import CONFIG, WEIGHTS, read_file
from paco_core.config.references import model_at
from paco_core.io.files import DataError, write_json
from paco_core.models.hub import from_hub
from paco_core.reward_model import lora
from paco_core.reward_model.evaluation import RewardEvaluation, evaluate
from paco_core.reward_model.examples import Example
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer

if TYPE_CHECKING:
    from paco_core.config.params import RewardParams

SOURCE = "source.json"


def copy_adapter(root: Path, params: RewardParams, out: Path) -> Path | None:
    """Copy the adapter of ``reward.weights`` to the folder ``out``, or write a note for a merged model.

    Returns:
        The folder of the adapter. None for a merged model, which the next stage loads.

    Raises:
        DataError: if the adapter is missing or damaged.
    """
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / SOURCE, {"source": params.source, "weights": params.weights})
    if params.source != "adapter":
        return None
    folder = _fetch(root, str(params.weights))
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise DataError(f"reward.weights {params.weights!r}: there is no adapter ({name} is missing)")
    read_file(folder / WEIGHTS)  # validates the file; the layers are validated when the model is loaded
    target = out / "adapter"
    target.mkdir()
    for name in (CONFIG, WEIGHTS, lora.BASE):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, target / name)
    return target


def evaluate_published(
    root: Path,
    params: RewardParams,
    adapter: Path | None,
    validation: Sequence[Example],
    *,
    log: Callable[[str], None],
) -> tuple[RewardEvaluation, RewardEvaluation]:
    """Evaluate the base and the published weights on the validation pairs.

    Args:
        adapter: folder of the adapter. None = ``reward.weights`` is a merged model.
        log: is called with one line of text.

    Raises:
        DataError: if the adapter belongs to another base; see :func:`lora.load_lora`.
    """
    load: dict[str, Any] = {
        "device": params.device,
        "dtype": params.dtype,
        "pixels": (params.min_pixels, params.max_pixels),
    }
    network = Network.load(model_at(root, params.base, "reward.base"), **load)
    before = evaluate(Scorer.from_network(network), validation)
    log(f"base: accuracy {before.accuracy:.3f} on {before.pairs} pairs")
    if adapter is None:
        network = Network.load(model_at(root, str(params.weights), "reward.weights"), **load)
    else:
        lora.load_lora(network.model, adapter)
        network.features.clear()  # the adapter may change the vision tower
    return before, evaluate(Scorer.from_network(network), validation)


def _fetch(root: Path, weights: str) -> Path:
    """The folder of ``weights``. For a hub id, only the adapter files are downloaded."""
    source = model_at(root, weights, "reward.weights")
    if isinstance(source, Path):
        return source

    with from_hub(source):
        return Path(snapshot_download(source, allow_patterns=[CONFIG, WEIGHTS, lora.BASE]))
