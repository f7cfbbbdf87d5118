"""Published weights instead of training: an adapter or a merged model, from a folder or a model hub."""

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
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise DataError(f"reward.weights {params.weights!r}: no adapter there ({name} is missing)")
    read_file(folder / WEIGHTS)  # cut and broken files are refused here, the rest where its model is loaded
    kept = out / "adapter"
    kept.mkdir()
    for name in (CONFIG, WEIGHTS, lora.BASE):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, kept / name)
    return kept


def evaluate_published(
    root: Path,
    params: RewardParams,
    adapter: Path | None,
    validation: Sequence[Example],
    *,
    say: Callable[[str], None],
) -> tuple[RewardEvaluation, RewardEvaluation]:
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
    before = evaluate(Scorer.from_network(network), validation)
    say(f"base: accuracy {before.accuracy:.3f} on {before.pairs} pairs")
    if adapter is None:
        network = Network.load(model_at(root, str(params.weights), "reward.weights"), **load)
    else:
        lora.load(network.model, adapter)
        network.features.clear()  # the adapter may hold parts of the vision tower
    return before, evaluate(Scorer.from_network(network), validation)


def _fetch(root: Path, weights: str) -> Path:
    """The folder that ``weights`` names; a hub id is downloaded, its adapter files only."""
    found = model_at(root, weights, "reward.weights")
    if isinstance(found, Path):
        return found

    with from_hub(found):
        return Path(snapshot_download(found, allow_patterns=[CONFIG, WEIGHTS, lora.BASE]))
