"""Reads a LoRA for a model: from a folder, a file or a hub id, in any spelling of :mod:`.names`.

Every tensor, key and setting is taken into account, or the adapter is refused by its name. What comes out is plain: for
each layer A, B and a number alpha; the layer's weight grows by ``alpha / rank * B A`` (LoRA, arXiv 2106.09685).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from paco_core.adapters import names
from paco_core.adapters.files import METADATA, Stored, stored
from paco_core.adapters.settings import Settings
from paco_core.io.files import DataError
from paco_core.models.weights import reading


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


#: Of the scale alpha / rank, and of the weights that an adapter adds: the largest number of float16.
LARGEST_UPDATE = torch.finfo(torch.float16).max

Layers = Mapping[str, Lora]  # a layer's name in the model -> its adapter


@dataclass(frozen=True)
class AdaptedModel:
    """A model that an adapter may be for, and by which names files may call its layers."""

    module: torch.nn.Module
    others: Sequence[names.Vocabulary] = ()  # beside the model's own

    @property
    def vocabularies(self) -> list[names.Vocabulary]:
        return [names.own_names(self.module), *self.others]


@dataclass
class _Place:
    """The tensors of one layer of the file, or of several that it holds as one."""

    name: names.Name
    keys: dict[str, str] = field(default_factory=dict)  # A, B, alpha -> the tensor's key

    @property
    def key(self) -> str:
        return next(iter(self.keys.values()))


def read(source: str | Path, parts: Mapping[str, AdaptedModel]) -> dict[str, Layers]:
    """The adapter that lies there, for the parts of a pipeline (or for one model).

    Args:
        source: a folder, a safetensors file, or a hub id.
        parts: by the names of :data:`.names.PREFIXES`; keys that name none are of the first one.

    Returns:
        For each part that the adapter changes, its layers. Tensors are as stored, in main memory.

    Raises:
        DataError: naming the file, and the tensor, key or setting that cannot be taken into account.
    """
    found = stored(source)
    with reading(found.file):  # settings of any type reach PEFT's own functions
        return _fitted(found, parts)


def _fitted(found: Stored, parts: Mapping[str, AdaptedModel]) -> dict[str, Layers]:
    main = next(iter(parts))
    settings = _settings(found, main)
    places: dict[str, list[_Place]] = {}
    for place in _places(found, main):
        places.setdefault(place.name.part, []).append(place)
    if unused := sorted(settings.keys() - places.keys()):
        raise DataError(f"{found.file}: it has settings of the part {unused[0]}, and no tensor of it")
    for part in places.keys() - parts.keys():
        raise DataError(
            f"{found.file}: {places[part][0].key} and {sum(len(place.keys) for place in places[part]) - 1} more are "
            f"of the {part}; here an adapter can change the {' and the '.join(parts)} alone: remove these tensors, or "
            "merge them into the model"
        )
    return {part: _layers(found, own, parts[part], settings.get(part)) for part, own in places.items()}


def _places(found: Stored, main: str) -> list[_Place]:
    """All tensors of the file, by place."""
    if not found.tensors:
        raise DataError(f"{found.file}: holds no tensor")
    places: dict[tuple[str, str], _Place] = {}
    adapters = set()
    for key in sorted(found.tensors):
        name = names.parse(key, main)
        if name is None:
            raise DataError(
                f"{found.file}: {key} is none of the tensors of a plain LoRA (A and B of a layer, and its alpha) and "
                "would be left out; adapters of this kind are not read"
            )
        place = places.setdefault((name.part, name.place), _Place(name))
        if name.side in place.keys:
            raise DataError(f"{found.file}: {key} and {place.keys[name.side]} name the same tensor")
        place.keys[name.side] = key
        adapters |= set() if name.side == "alpha" else {name.adapter}
    if len(adapters) > 1:
        raise DataError(f"{found.file}: holds several adapters: {', '.join(sorted(map(str, adapters)))}")
    for place in places.values():
        for side in sorted({"A", "B"} - place.keys.keys()):
            raise DataError(f"{found.file}: it lacks the {side} that belongs to {place.key}")
    return list(places.values())


def _settings(found: Stored, main: str) -> dict[str, Settings]:
    """What PEFT wrote beside the file, or diffusers into its header, by part."""
    given: dict[str, dict[str, Any]] = {}
    if found.config is not None:
        given[main] = dict(found.config)
    elif METADATA in found.metadata:
        try:
            for name, value in json.loads(found.metadata[METADATA]).items():
                part, _, setting = name.partition(".")
                given.setdefault(part, {})[setting] = value
        except (ValueError, AttributeError) as error:
            raise DataError(f"{found.file}: {METADATA} in its header is not a mapping ({error})") from None
    return {part: Settings(values, found.file) for part, values in given.items()}


def _layers(found: Stored, places: Sequence[_Place], part: AdaptedModel, settings: Settings | None) -> Layers:
    """The adapters of one part's layers."""
    vocabularies = part.vocabularies
    dotted = {place: rows for vocabulary in reversed(vocabularies) for place, rows in vocabulary.items()}
    flat = {place.replace(".", "_"): rows for place, rows in dotted.items()}
    # Not of the weight, which a quantised layer packs.
    sizes = {name: (layer.out_features, layer.in_features) for name, layer in names.linears(part.module).items()}
    layers: dict[str, Lora] = {}
    for place in places:
        rows = (flat if place.name.flat else dotted).get(place.name.place)
        if rows is None:
            raise _misfit(
                found, part, f"it has {place.key}, which no layer takes; layers are {', '.join(sorted(sizes)[:2])} ..."
            )
        whole = _lora(
            found, place, part, (sum(sizes[layer][0] for layer in rows), sizes[next(iter(rows))][1]), settings
        )
        for layer, own in rows.items():
            if layer in layers:
                raise DataError(f"{found.file}: {place.key}: the layer {layer} is there twice")
            layers[layer] = Lora(whole.a, torch.cat([whole.b[part] for part in own]), whole.alpha)
    if settings is not None:
        spelled = [place.name.place for place in places]
        used = [vocabulary for vocabulary in vocabularies if any(place in vocabulary for place in spelled)]
        rest = [place for vocabulary in used for place, rows in vocabulary.items() if not rows.keys() <= layers.keys()]
        settings.check(spelled, rest)
    return layers


def _misfit(found: Stored, part: AdaptedModel, what: str) -> DataError:
    owner = (found.config or {}).get("base_model_name_or_path")
    return DataError(
        f"{found.file}: the LoRA does not fit this {type(part.module).__name__}: {what}"
        + (f"; its settings say that it was trained on {owner}" if owner else "")
    )


def _lora(found: Stored, place: _Place, part: AdaptedModel, size: tuple[int, int], settings: Settings | None) -> Lora:
    """The tensors of a place, whose layer (or layers together) has the size (outputs, inputs)."""
    a, b = (found.tensors[place.keys[side]] for side in ("A", "B"))
    rank = len(a) if a.dim() else 0
    for side, tensor, shape in (("A", a, (rank, size[1])), ("B", b, (size[0], rank))):
        if tuple(tensor.shape) != shape or not rank:
            wanted = [rank or "rank", size[1]] if side == "A" else [size[0], rank or "rank"]
            raise _misfit(found, part, f"{place.keys[side]} has the shape {list(tensor.shape)} instead of {wanted}")
        if not tensor.is_floating_point():
            raise DataError(f"{found.file}: {place.keys[side]} is of {tensor.dtype}, and not of floating-point numbers")
    stated = None if settings is None else settings.alpha(place.name.place, rank)
    lora = Lora(a, b, _alpha(found, place, rank, stated))
    largest = lora.largest_update
    if not largest <= LARGEST_UPDATE:
        raise DataError(
            f"{found.file}: the adapter of {place.key} changes weights by up to {largest:.3g} (alpha {lora.alpha:g}, "
            f"rank {rank}), expected at most {LARGEST_UPDATE:g}; the model would compute infinity"
        )
    return lora


def _alpha(found: Stored, place: _Place, rank: int, stated: float | None) -> float:
    """The alpha of a place: its tensor's, that of the settings, or the rank."""
    if "alpha" not in place.keys:
        return float(rank) if stated is None else stated
    tensor = found.tensors[place.keys["alpha"]]
    if tensor.numel() != 1:
        raise DataError(f"{found.file}: {place.keys['alpha']} is {list(tensor.shape)}, and not one number")
    alpha = float(tensor)
    if stated is not None and not math.isclose(alpha, stated, rel_tol=1e-3):
        raise DataError(f"{found.file}: {place.keys['alpha']} is {alpha:g}, and its settings say {stated:g}")
    return alpha
