"""Reader of LoRA adapters: from a folder, a file or a hub id, in any spelling of :mod:`.names`.

Every tensor, key and setting is used, or the adapter is refused by its name. The result has for each layer A, B and a
number alpha; the layer's weight grows by ``alpha / rank * B A`` (LoRA, arXiv 2106.09685).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HFValidationError

from paco_core.adapters import names
from paco_core.adapters.settings import Settings
from paco_core.io.files import DataError, read_json
from paco_core.models.hub import from_hub
from paco_core.models.weights import read_tensors, reading

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"  # PEFT's
METADATA = "lora_adapter_metadata"  # the key of diffusers' settings in a file's header
#: Of the scale alpha / rank, and of the weights that an adapter adds: the largest number of float16.
LARGEST_UPDATE = torch.finfo(torch.float16).max


@dataclass(frozen=True)
class Lora:
    """The adapter of one layer: ``a`` (rank, in), ``b`` (out, rank); it is scaled by ``alpha / rank``."""

    a: torch.Tensor
    b: torch.Tensor
    alpha: float

    @property
    def rank(self) -> int:
        return self.a.shape[0]

    @property
    def largest_update(self) -> float:
        """An upper bound of |alpha / rank|, and of each entry of |alpha / rank * B A|."""
        entry = self.b.double().norm(dim=1).max() * self.a.double().norm(dim=0).max()
        return abs(self.alpha) / self.rank * max(1.0, float(entry))


Layers = Mapping[str, Lora]  # a layer's name in the model -> its adapter


@dataclass(frozen=True)
class AdaptedModel:
    """A model that an adapter may be for; ``other_names`` of its layers may be in files besides the model's."""

    module: torch.nn.Module
    other_names: Sequence[names.Vocabulary] = ()


@dataclass(frozen=True)
class AdapterFile:
    """A safetensors file with the settings that PEFT wrote next to it, or diffusers into its header, by part."""

    path: Path
    tensors: Mapping[str, torch.Tensor]
    settings: Mapping[str, Mapping[str, Any]]


@dataclass
class _Place:
    """The tensors of one layer of the file, which may contain several layers of the model."""

    name: names.Name
    keys: dict[str, str] = field(default_factory=dict)  # A, B, alpha -> the tensor's key

    @property
    def key(self) -> str:
        return next(iter(self.keys.values()))


def read_adapter(source: str | Path, parts: Mapping[str, AdaptedModel]) -> dict[str, Layers]:
    """Read an adapter for the parts of a pipeline (or for one model).

    Args:
        source: a folder, a safetensors file, or a hub id.
        parts: by the names of :data:`.names.PREFIXES`; keys without a prefix are of the first one.

    Returns:
        For each part that the adapter changes, its layers. Tensors are as stored, in main memory.

    Raises:
        DataError: naming the file, and the tensor, key or setting that cannot be used.
    """
    main = next(iter(parts))
    file = read_file(source, main)
    with reading(file.path):  # settings of any type reach PEFT's functions
        places: dict[str, list[_Place]] = {}
        for place in _places(file, main):
            places.setdefault(place.name.part, []).append(place)
        for part in file.settings.keys() - places.keys():
            raise DataError(f"{file.path}: it has settings of the part {part}, and no tensor of it")
        for part in places.keys() - parts.keys():
            raise DataError(
                f"{file.path}: {places[part][0].key} and {sum(len(place.keys) for place in places[part]) - 1} more are "
                f"of the {part}; here an adapter can change only the {' and the '.join(parts)}: remove these "
                "tensors, or merge them into the model"
            )
        return {part: _layers(file, part_places, parts[part]) for part, part_places in places.items()}


def read_file(source: str | Path, main: str = "transformer") -> AdapterFile:
    """The adapter of a folder, a file or a hub id, which is downloaded if no such path exists.

    Args:
        main: the part of the pipeline that PEFT's settings are of.

    Raises:
        DataError: when there is no adapter, there are several, or the file is damaged.
    """
    path = _path(source)
    tensors, header = read_tensors(path)
    config = path.with_name(CONFIG)
    settings: dict[str, dict[str, Any]] = {}
    if path.name == WEIGHTS and config.is_file():
        settings[main] = read_json(config)
        if not isinstance(settings[main], dict):
            raise DataError(f"{config}: not the settings of an adapter (no mapping)")
    elif METADATA in header:
        try:
            for name, value in json.loads(header[METADATA]).items():
                part, _, setting = name.partition(".")
                settings.setdefault(part, {})[setting] = value
        except (ValueError, AttributeError) as error:
            raise DataError(f"{path}: {METADATA} in its header is not a mapping ({error})") from None
    return AdapterFile(path, tensors, settings)


def _path(source: str | Path) -> Path:
    path = Path(source)
    if not path.exists():
        if isinstance(source, Path) or path.is_absolute():
            raise DataError(
                f"{source}: no LoRA can be loaded from there (no such path); name a folder, a safetensors file, or a "
                "model of the hub"
            )
        path = _downloaded(source)
    if path.is_file():
        if path.suffix != ".safetensors":
            raise DataError(f"{path}: not safetensors; other formats can run code when they are loaded")
        return path
    if (path / CONFIG).is_file() and not (path / WEIGHTS).is_file():
        raise DataError(f"{path}: {CONFIG} is there without {WEIGHTS}; only safetensors are read")
    files = sorted(file for file in path.glob("*.safetensors") if file.is_file())
    if len(files) != 1:
        cause = f"several: {', '.join(file.name for file in files)}" if files else "no safetensors file"
        raise DataError(f"{source}: no LoRA can be loaded from there ({cause}); name the file that is meant")
    return files[0]


def _downloaded(source: str) -> Path:
    try:
        with from_hub(source):
            return Path(snapshot_download(source, allow_patterns=["*.safetensors", CONFIG], ignore_patterns=["*/*"]))
    except HFValidationError:
        raise DataError(f"{source}: no LoRA can be loaded from there (neither a path nor a model of the hub)") from None


def _places(file: AdapterFile, main: str) -> list[_Place]:
    """All tensors of the file, by place."""
    if not file.tensors:
        raise DataError(f"{file.path}: holds no tensor")
    places: dict[tuple[str, str], _Place] = {}
    adapters = set()
    for key in sorted(file.tensors):
        name = names.parse_tensor_name(key, main)
        if name is None:
            raise DataError(
                f"{file.path}: {key} is none of the tensors of a plain LoRA (A and B of a layer, and its alpha) and "
                "would be left out; adapters of this kind are not read"
            )
        place = places.setdefault((name.part, name.place), _Place(name))
        if name.side in place.keys:
            raise DataError(f"{file.path}: {key} and {place.keys[name.side]} name the same tensor")
        place.keys[name.side] = key
        adapters |= set() if name.side == "alpha" else {name.adapter}
    if len(adapters) > 1:
        raise DataError(f"{file.path}: holds several adapters: {', '.join(sorted(map(str, adapters)))}")
    for place in places.values():
        for side in sorted({"A", "B"} - place.keys.keys()):
            raise DataError(f"{file.path}: it lacks the {side} that belongs to {place.key}")
    return list(places.values())


def _layers(file: AdapterFile, places: Sequence[_Place], part: AdaptedModel) -> Layers:
    """The adapters of one part's layers."""
    vocabularies = [names.own_names(part.module), *part.other_names]
    dotted = {place: rows for vocabulary in reversed(vocabularies) for place, rows in vocabulary.items()}
    flat = {place.replace(".", "_"): rows for place, rows in dotted.items()}
    linears = names.linears(part.module)
    part_settings = file.settings.get(places[0].name.part)
    settings = None if part_settings is None else Settings(part_settings, file.path)
    layers: dict[str, Lora] = {}
    for place in places:
        rows = (flat if place.name.flat else dotted).get(place.name.place)
        if rows is None:
            examples = ", ".join(sorted(linears)[:2])
            raise _misfit(file, part, f"it has {place.key}, which no layer takes; layers are {examples} ...")
        # The features of the layers, not the shapes of their weights, which a quantised layer packs.
        out_features = sum(linears[layer].out_features for layer in rows)
        in_features = linears[next(iter(rows))].in_features
        lora = _lora(file, place, part, (out_features, in_features), settings)
        for layer, slices in rows.items():
            if layer in layers:
                raise DataError(f"{file.path}: {place.key}: the layer {layer} is there twice")
            layers[layer] = Lora(lora.a, torch.cat([lora.b[rows_of_b] for rows_of_b in slices]), lora.alpha)
    if settings is not None:
        spelled = [place.name.place for place in places]
        used = [vocabulary for vocabulary in vocabularies if any(place in vocabulary for place in spelled)]
        remaining = [
            place for vocabulary in used for place, rows in vocabulary.items() if not rows.keys() <= layers.keys()
        ]
        settings.check(spelled, remaining)
    return layers


def _misfit(file: AdapterFile, part: AdaptedModel, fault: str) -> DataError:
    base = next((base for values in file.settings.values() if (base := values.get("base_model_name_or_path"))), None)
    return DataError(
        f"{file.path}: the LoRA does not fit this {type(part.module).__name__}: {fault}"
        + (f"; its settings say that it was trained on {base}" if base else "")
    )


def _lora(
    file: AdapterFile, place: _Place, part: AdaptedModel, size: tuple[int, int], settings: Settings | None
) -> Lora:
    """The tensors of a place, whose layer (or layers together) has the size (outputs, inputs)."""
    a, b = (file.tensors[place.keys[side]] for side in ("A", "B"))
    rank = len(a) if a.dim() else 0
    for side, tensor, shape in (("A", a, (rank, size[1])), ("B", b, (size[0], rank))):
        if tuple(tensor.shape) != shape or not rank:
            expected = [rank or "rank", size[1]] if side == "A" else [size[0], rank or "rank"]
            raise _misfit(file, part, f"{place.keys[side]} has the shape {list(tensor.shape)} instead of {expected}")
        if not tensor.is_floating_point():
            raise DataError(f"{file.path}: {place.keys[side]} is of {tensor.dtype}, and not of floating-point numbers")
    lora = Lora(a, b, _alpha(file, place, rank, settings))
    if not lora.largest_update <= LARGEST_UPDATE:
        raise DataError(
            f"{file.path}: the adapter of {place.key} changes weights by up to {lora.largest_update:.3g} (alpha "
            f"{lora.alpha:g}, rank {rank}), expected at most {LARGEST_UPDATE:g}; the model would compute infinity"
        )
    return lora


def _alpha(file: AdapterFile, place: _Place, rank: int, settings: Settings | None) -> float:
    """The alpha of a place: its tensor's, that of the settings, or the rank."""
    stated = None if settings is None else settings.alpha(place.name.place, rank)
    if "alpha" not in place.keys:
        return float(rank) if stated is None else stated
    tensor = file.tensors[place.keys["alpha"]]
    if tensor.numel() != 1:
        raise DataError(f"{file.path}: {place.keys['alpha']} is {list(tensor.shape)}, and not one number")
    alpha = float(tensor)
    if stated is not None and not math.isclose(alpha, stated, rel_tol=1e-3):
        raise DataError(f"{file.path}: {place.keys['alpha']} is {alpha:g}, and its settings say {stated:g}")
    return alpha
