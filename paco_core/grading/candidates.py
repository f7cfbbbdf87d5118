"""Adapters to compare: files and folders of trainers, trained recipes and their checkpoints, with the training step."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file, save_file

from paco_core.adapters.attach import unwrapped
from paco_core.adapters.reader import CONFIG, WEIGHTS
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.text import natural_key
from paco_core.policies.adapters import TRAINED
from paco_core.runtime.checkpoints import list_checkpoints
from paco_core.training.checkpoint import STATE, TENSORS, unpack

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe

BASE_NAME = "base"
#: OneTrainer writes step, epoch and step of the epoch: ``2026-01-31-save-400-8-0``. Other names end in the step or the
#: epoch: ``fox-000010`` (kohya), ``fox_000002000`` (ai-toolkit), ``checkpoint-500`` (diffusers, SimpleTuner).
STEP = re.compile(r"-save-(\d+)-\d+-\d+$|(?:^|[-_. ]|step|epoch)(\d+)$")
LEVELS = 2  # of folders in which adapters are searched, as in run/checkpoint-500
UNITS = ("", "checkpoint", "epoch", "step")  # not names of a training
SHARED_NAMES = ("adapter", "adapter_model", "pytorch_lora_weights")  # of all adapters of paco, PEFT and diffusers


@dataclass(frozen=True)
class Candidate:
    """An adapter that is compared.

    Attributes:
        source: a file, a folder or a hub id.
        series: the training that it comes from, by the name without its step.
        step: training step or epoch in its name; None for a name without a number, such as that of the last file.
    """

    name: str
    source: Path | str
    series: str
    step: int | None = None

    @classmethod
    def from_source(cls, source: Path | str) -> Candidate:
        """The name, series and step by the name of a file or folder; by its folder, if the name is the same for all."""
        path = Path(source)
        name = path.name.removesuffix(".safetensors")
        while name in SHARED_NAMES and path.parent.name:
            path = path.parent
            name = path.name
        match = STEP.search(name)
        if match is None:
            return cls(name, source, name)
        series = name[: match.start()].rstrip("-_. ")
        return cls(name, source, path.parent.name if series in UNITS else series, int(match[1] or match[2]))


def find_candidates(sources: Sequence[str | Path]) -> list[Candidate]:
    """The adapters that files, folders and hub ids name, each once, in the order of their steps.

    Args:
        sources: a safetensors file; the folder of an adapter; a folder of several files, or of such folders; or a hub
            id (OWNER/NAME), if no such path exists.

    Raises:
        DataError: when a path does not exist, or a folder has no adapter.
    """
    places = list(dict.fromkeys(place for source in sources for place in _places(source)))
    return unique_names([Candidate.from_source(place) for place in places])


def _places(source: str | Path) -> Iterator[Path | str]:
    path = Path(source)
    if not path.exists():
        if (
            isinstance(source, str)
            and source.count("/") == 1
            and source[0] not in "./~"
            and path.suffix != ".safetensors"
        ):
            yield source  # of the hub
            return
        raise DataError(f"{source}: no such file or folder; name adapters, or an adapter of the hub as OWNER/NAME")
    if path.is_file():
        has_config = path.name == WEIGHTS and path.with_name(CONFIG).is_file()
        yield path.parent if has_config else path  # the settings of PEFT belong to it
        return
    places = list(_below(path, LEVELS))
    if not places:
        raise DataError(f"{path}: no adapter in this folder (.safetensors), nor up to {LEVELS} levels below it")
    yield from places


def _below(folder: Path, levels: int) -> Iterator[Path]:
    """The adapters in a folder, and in those below it."""
    if (folder / CONFIG).is_file():
        yield folder  # of PEFT
        return
    if levels:
        for inner in sorted(folder.iterdir(), key=_natural):
            if inner.is_dir() and not inner.name.startswith("."):
                yield from _below(inner, levels - 1)
    yield from _files(folder)


def _files(folder: Path) -> list[Path]:
    return sorted((path for path in folder.glob("*.safetensors") if path.is_file()), key=_natural)


def _natural(path: Path) -> list[int | str]:
    return natural_key(path.name)


def unique_names(candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates under different names: those that share one get the folders in which they differ."""
    counts = Counter([BASE_NAME, *(candidate.name for candidate in candidates)])
    clashes = {c.source: Path(c.source).absolute() for c in candidates if counts[c.name] > 1}
    if not clashes:
        return list(candidates)
    common = Path(os.path.commonpath([path.parent for path in clashes.values()]))
    if len(clashes) == 1:  # an adapter that is called as the base
        common = common.parent
    places = {source: path.relative_to(common).with_suffix("") for source, path in clashes.items()}
    return [
        replace(c, name=str(place), series=str(place.parent / c.series)) if (place := places.get(c.source)) else c
        for c in candidates
    ]


def project_candidates(root: Path, recipes: Mapping[str, PolicyRecipe], folder: Path) -> list[Candidate]:
    """The trained adapters of recipes, and the checkpoints of their newest training.

    Args:
        folder: checkpoints are written here as LoRA files. They contain the averaged weights, as the trained adapter.
    """
    newest: dict[str, Path] = {}
    for run in list_checkpoints(root):
        newest.setdefault(run.stage, run.folder)
    candidates = []
    for name, recipe in recipes.items():
        training = newest.get(f"policies@{name}")
        for place in sorted(training.glob("checkpoint-*"), key=_natural) if training is not None else ():
            if (place / STATE).is_file():
                step = int(place.name.rpartition("-")[2])
                file = folder / f"{name}-{step:05d}.safetensors"
                _write_checkpoint(place / TENSORS, file, recipe)
                candidates.append(Candidate(f"{name}-{step}", file, name, step))
        if (adapter := root / paths.POLICIES / name / "adapter").is_dir():
            candidates.append(Candidate(name, adapter, name))
    return candidates


def _write_checkpoint(tensors: Path, target: Path, recipe: PolicyRecipe) -> None:
    """Write the averaged weights of a training's checkpoint as a LoRA file."""
    averages = unpack(load_file(tensors), "ema")
    weights = {unwrapped(key).replace(f".{TRAINED}.", "."): value.contiguous() for key, value in averages.items()}
    layers = {key.rpartition(".lora_")[0] for key in weights}
    alphas = {f"{layer}.alpha": torch.tensor(float(recipe.lora.alpha)) for layer in layers}
    with atomic(target) as part:
        save_file({**weights, **alphas}, part)
