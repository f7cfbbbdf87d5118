"""Merging of an adapter into its base: a complete folder that `from_pretrained` and vLLM load."""

from __future__ import annotations

import gc
import math
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from peft.tuners.lora import LoraLayer
from safetensors.torch import save_file
from scipy.stats import spearmanr
from transformers import PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_utils import remove_tied_weights_from_state_dict

from paco_core.adapters.attach import hosts as lora_layers
from paco_core.io.files import DataError, read_json, write_json
from paco_core.reward_model import lora
from paco_core.reward_model.golden import MERGED, MarginAgreement, compare_margins
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import PairQuery, Score

SHARD = "2GB"  # of weights per file: the memory that a merge needs
LORA_NAME = re.compile(r"\.lora_[A-Za-z_]+\.")
BASE_ONLY = ("README.md", "card.json")  # they describe the base


@dataclass(frozen=True)
class MergeReport:
    """Comparison of the merged folder with base and adapter on the same pairs.

    ``rank_agreement`` is Spearman's correlation of their scores, NaN where all are equal.
    """

    margins: MarginAgreement
    rank_agreement: float
    scores: list[Score]  # of the merged folder, in the order of the queries

    def metrics(self) -> dict[str, float]:
        """Figures of the merge."""
        return {
            "margin.worst": self.margins.worst,
            "margin.worst_allowed": self.margins.bounds.worst,
            "margin.mean": self.margins.mean,
            "margin.mean_allowed": self.margins.bounds.mean,
            "rank_agreement": self.rank_agreement,
        }


def merge_adapter(
    base: str | Path,
    adapter: Path | None,
    out: Path,
    queries: Sequence[PairQuery],
    *,
    device: str = "cpu",
    dtype: str = "float32",
    pixels: tuple[int, int] | None = None,
) -> MergeReport:
    """Write base + adapter as one model to the folder ``out``, and compare both on ``queries``.

    The weights of an already merged ``base`` are written unchanged. The written folder is loaded again for the
    comparison, after the first model is freed. On a CPU, weights that are stored in ``dtype`` stay memory-mapped, so
    the merge needs about the size of a shard besides the page cache.

    Args:
        adapter: folder of the adapter. None = ``base`` is already merged.
        pixels: minimum and maximum number of pixels of an image after resizing.

    Raises:
        DataError: if there is no query, the adapter belongs to another base, or the scores of the merged model differ
            from those of base + adapter by more than the bounds of the number format.
    """
    if not queries:
        raise DataError(f"{out}: there is no pair to compare the merged model on; at least one is needed")
    network = Network.load(base, device=device, dtype=dtype, pixels=pixels)
    wrapped = None if adapter is None else lora.load_lora(network.model, adapter)
    expected = Scorer.from_network(network).score(queries)
    write_model(network, base, out)
    del network, wrapped
    gc.collect()  # the model is part of reference cycles
    scores = Scorer(out, device, dtype).score(queries)
    before, after = ([score.value for score in of_model] for of_model in (expected, scores))
    margins = compare_margins(before, after, MERGED[dtype])
    if not margins.holds:
        raise DataError(
            f"{out}: the merged model and base + adapter answer {len(queries)} pairs differently in {dtype}: "
            f"{margins}; the adapter was not merged faithfully"
        )
    tied = min(len(set(before)), len(set(after))) < 2
    return MergeReport(margins, math.nan if tied else float(spearmanr(before, after).statistic), scores)


def write_model(network: Network, base: str | Path, out: Path) -> None:
    """Write a network as a complete folder: weights, configs, tokenizer, processor with its pixel bounds.

    LoRA layers are merged into their base layers while they are written.
    """
    out.mkdir(parents=True, exist_ok=True)
    network.model.config.dtype = network.model.dtype
    network.model.config.architectures = [type(network.model).__name__]
    network.model.config.save_pretrained(out)
    network.model.generation_config.save_pretrained(out)
    write_weights(network.model, out)
    network.processor.save_pretrained(out)
    network.processor.tokenizer.save_pretrained(out)
    image_processor: dict[str, Any] = network.processor.image_processor.to_dict()
    write_json(out / "preprocessor_config.json", image_processor)
    if isinstance(base, Path):  # further files of the base, for example the chat template
        for path in sorted(base.iterdir()):
            weights = path.name.endswith((".safetensors", ".index.json"))
            if path.is_file() and not weights and path.name not in BASE_ONLY and not (out / path.name).exists():
                shutil.copy(path, out / path.name)
    _add_settings_of_transformers_4(out)


def write_weights(model: PreTrainedModel, out: Path, shard_size: str = SHARD) -> None:
    """Write the weights as safetensors, one shard at a time, each LoRA layer merged into its base.

    ``save_pretrained`` needs the complete merged model in memory. Names of tensors are those of the base's files.
    """
    layers = {id(layer.get_base_layer().weight): layer for layer in lora_layers(model).values()}
    weights = {
        name.replace(".base_layer.", "."): tensor
        for name, tensor in model.state_dict(keep_vars=True).items()
        if not LORA_NAME.search(name)
    }
    weights = revert_weight_conversion(model, remove_tied_weights_from_state_dict(weights, model))
    split = split_torch_state_dict_into_shards(weights, max_shard_size=shard_size)
    for file, names in split.filename_to_tensors.items():
        shard = {name: _merged_weight(weights[name], layers.get(id(weights[name]))) for name in names}
        save_file(shard, out / file, metadata={"format": "pt"})
    if split.is_sharded:
        index = {"metadata": split.metadata, "weight_map": split.tensor_to_filename}
        write_json(out / "model.safetensors.index.json", index)


def _merged_weight(weight: torch.Tensor, layer: LoraLayer | None) -> torch.Tensor:
    """A weight in its own number format, with the LoRA of ``layer`` added as PEFT merges it."""
    weight = weight.detach()
    if layer is not None:
        for name in layer.active_adapters:
            weight = (weight + layer.get_delta_weight(name)).to(weight.dtype)
    return weight.cpu().contiguous()


def _add_settings_of_transformers_4(out: Path) -> None:
    """Add settings that transformers 4.57 reads under other names (LLaMA-Factory needs this version)."""
    settings = read_json(out / "tokenizer_config.json")
    if isinstance(settings.get("extra_special_tokens"), list):  # a mapping is expected there
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
        write_json(out / "tokenizer_config.json", settings)
    config = read_json(out / "config.json")
    for part in (config, config.get("text_config", {})):
        if rope := part.get("rope_parameters"):
            part["rope_scaling"] = {name: value for name, value in rope.items() if name != "rope_theta"}
            part["rope_theta"] = rope["rope_theta"]
    write_json(out / "config.json", config)
