"""Weights from files: taken whole, or refused by the name of the tensor.

Every model and adapter is loaded through here. What a library only warns of is an error: a tensor that is missing (and
would be filled with random numbers), one that nothing takes, and one that is not finite in the format it is used in.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.messages import sentence
from paco_core.models.hub import explained, from_hub
from paco_core.models.size import numbers_in, refuse_larger

READING = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError)
WITHOUT_WEIGHTS = {"load_weights": False, "pretrained_image": False, "pretrained_text": False, "device": "meta"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
LIBRARIES = ("diffusers", "transformers")  # whose models a pipeline's folder may name
#: The largest weight that is finite in each number format that models compute in; float64 and float32 exceed bfloat16.
LARGEST = torch.finfo(torch.bfloat16).max


@contextmanager
def reading(source: str | Path) -> Iterator[None]:
    """Read a model or an adapter in the block.

    Args:
        source: its folder or file, or its hub id.

    Raises:
        DataError: naming the source, whatever its files make the libraries raise, with what makes it anew; of a hub,
            see :func:`paco_core.models.hub.explained`.
    """
    try:
        yield
    except (DataError, ModuleNotFoundError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # libraries raise what their own code ran into
        raise DataError(explained(source, error) or _of_files(source, error)) from None


def _of_files(source: str | Path, error: Exception) -> str:
    cause = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or "can't allocate memory" in cause:  # PyTorch's, on a processor
        return f"{source}: there is not enough memory to load it ({cause or 'MemoryError'})"
    if isinstance(error, PermissionError):
        return sentence(error)
    if "loading state_dict" in cause:  # PyTorch's, for tensors of other names or shapes
        return f"{source}: its weights are not those of the model ({cause}); {_remedy(source)}"
    if isinstance(error, OSError) and not Path(source).exists() and "pytorch_model.bin" in cause:
        # What transformers says of a repository without safetensors, whatever else it holds.
        return f"{source}: no safetensors there; other formats can run code when they are loaded"
    if missing := re.search(r"no file named ([\w.-]+)", cause, re.IGNORECASE):
        fault = f"{source}: {missing[1]} is missing;"
    elif (fault := _tokenizer_fault(Path(source))) or not isinstance(error, READING):
        fault = fault or (
            f"{source}: no model can be made of it ({type(error).__name__}: {cause}); is one of its files damaged, or "
            "of another model?"
        )
    else:
        fault = f"{source}: cannot be read ({cause}); is one of its files truncated?"
    return f"{fault} {_remedy(source)}"


def _tokenizer_fault(folder: Path) -> str:
    """What is wrong with the files of a tokenizer, if the folder has one; else an empty text."""
    from tokenizers import Tokenizer

    if not any(folder.glob("tokenizer*.json")):
        return ""
    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            return f"{folder}: {name} is missing;"
    try:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain exceptions
        return f"{folder}: tokenizer.json is not a tokenizer ({error});"
    return ""


def _remedy(source: str | Path) -> str:
    stage = paths.producer(source) if isinstance(source, Path) else None
    return f"run `dvc repro {stage}`" if stage else "replace it with a complete copy"


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """The tensors of a safetensors file by name, of any shape, and the metadata of its header.

    Raises:
        DataError: naming the file, when it is missing, cut off or damaged, and the tensor that is not finite.
    """
    with reading(path), safe_open(path, framework="pt") as stored:
        metadata: dict[str, str] = stored.metadata() or {}
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
    refuse_not_finite(tensors, path)
    return tensors, metadata


def refuse_not_finite(tensors: Mapping[str, torch.Tensor], source: str | Path) -> None:
    """Raise DataError naming the tensors, of any shape, that contain NaN or a number beyond :data:`LARGEST`.

    The largest and the smallest number are read at the speed of memory (15 to 28 GB/s on one core).
    """
    broken = [name for name, tensor in tensors.items() if not _finite(tensor)]
    if broken:
        raise DataError(
            f"{source}: NaN or infinity in {_some(broken)}, read as bfloat16; the model would compute nothing; "
            f"{_remedy(source)}"
        )


def _finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    numbers = tensor.detach()
    if type(numbers) is not torch.Tensor and hasattr(numbers, "tensor_data_names"):
        numbers = numbers.dequantize()  # torchao's, which is made of several
    if numbers.element_size() == 1:  # float8 has no minimum
        numbers = numbers.float()
    low, high = (float(number) for number in torch.aminmax(numbers))
    return -low <= LARGEST and high <= LARGEST  # NaN is neither


def numbers_below(folder: Path) -> int:
    """How many numbers the safetensors files of a folder hold, by their headers.

    Raises:
        DataError: naming the file that is damaged.
    """
    held = 0
    for file in sorted(folder.glob("*.safetensors")):
        with reading(file):
            held += numbers_in(file)
    return held


def load_model(kind: Any, source: str | Path, **options: Any) -> Any:
    """A model of transformers or diffusers by its class's ``from_pretrained``, in evaluation mode.

    Args:
        source: its folder or hub id.

    Raises:
        DataError: when it cannot be read, its configuration is none or asks for more than the files hold, or a tensor
            is missing, of another shape, unexpected or not finite.
    """
    folder = Path(source) / options.get("subfolder", "")
    config = folder / "config.json"
    if folder.is_dir() and not config.is_file():  # transformers would take the numbers of its own default
        raise DataError(f"{folder}: config.json is missing; {_remedy(source)}")
    if folder.is_dir():
        held = numbers_below(folder)
        with reading(config):
            refuse_larger(lambda: _built(kind, folder), held, config)
    if kind.__module__.startswith("transformers."):  # it lists them then, and would else raise without their names
        options["ignore_mismatched_sizes"] = True
    with reading(source):
        model, found = kind.from_pretrained(str(source), output_loading_info=True, use_safetensors=True, **options)
    _refuse_other_tensors(found, kind.__name__, source)
    refuse_not_finite(model.state_dict(), source)
    return model.eval()


def _built(kind: Any, folder: Path) -> Any:
    """The model of a folder's configuration, its weights as they are drawn."""
    if hasattr(kind, "load_config"):  # diffusers
        return kind.from_config(kind.load_config(folder))
    if hasattr(kind, "from_config"):  # an AutoModel, which chooses the class
        from transformers import AutoConfig

        return kind.from_config(AutoConfig.from_pretrained(folder))
    return kind(kind.config_class.from_pretrained(folder))


def _refuse_other_tensors(found: Mapping[str, Collection[Any]], kind: str, source: str | Path) -> None:
    faults = [
        ("missing_keys", "lacks", "it would be filled with random numbers"),
        ("unexpected_keys", "holds", "no layer of the model takes it"),
        ("mismatched_keys", "holds another shape of", "it would be filled with random numbers"),
    ]
    for key, verb, meaning in faults:
        if found.get(key):
            names = sorted(name if isinstance(name, str) else name[0] for name in found[key])
            raise DataError(f"{source}: {verb} {_some(names)} of a {kind}: {meaning}; {_remedy(source)}")


def _some(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _kinds(kind: Any, folder: Path) -> dict[str, Any]:
    with reading(folder / "model_index.json"):
        return {name: _named(entry) for name, entry in kind.load_config(folder).items()}


def load_part(kind: Any, folder: Path, name: str, dtype: torch.dtype, **options: Any) -> Any:
    """A model of a diffusers pipeline's folder by :func:`load_model`."""
    return load_model(_kinds(kind, folder)[name], folder / name, dtype=dtype, **options)


def load_pipeline(kind: Any, folder: Path, dtype: torch.dtype, later: Collection[str] = ()) -> Any:
    """A diffusers pipeline from its folder: each part by its own class, models by :func:`load_model`.

    Args:
        later: parts that are left out, None in the pipeline; see :func:`load_part`.

    Raises:
        DataError: as :func:`load_model`, naming the part.
    """
    parts: dict[str, Any] = dict.fromkeys(later)
    for name, part in _kinds(kind, folder).items():
        if name in later:
            continue
        if part is not None and issubclass(part, torch.nn.Module):
            parts[name] = load_model(part, folder / name, dtype=dtype)
        elif part is not None:
            if "Tokenizer" in part.__name__ and not (folder / name / "tokenizer_config.json").is_file():
                raise DataError(f"{folder / name}: tokenizer_config.json is missing; {_remedy(folder)}")
            with reading(folder / name):
                parts[name] = part.from_pretrained(folder / name)
    with reading(folder):
        return kind.from_pretrained(folder, **parts, dtype=dtype)


def _named(entry: Any) -> Any:
    """The class of a part of a pipeline, where the entry of its index names one of :data:`LIBRARIES`."""
    library, name = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (None, None)
    part = getattr(import_module(library), str(name), None) if library in LIBRARIES else None
    return part if isinstance(part, type) and hasattr(part, "from_pretrained") else None


@contextmanager
def _without_the_warning_of_weights() -> Iterator[None]:
    """Where a model is built only to compare its shapes, open_clip must not warn that it is initialized randomly."""

    def other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("No pretrained weights loaded")

    logging.getLogger().addFilter(other)  # open_clip logs to the root logger itself
    try:
        yield
    finally:
        logging.getLogger().removeFilter(other)


def load_open_clip(model: str, device: str) -> tuple[Any, Any, Any]:
    """(the model in evaluation mode, its preprocessing of pictures, its tokenizer) of open_clip.

    Args:
        model: a folder, or an open_clip name (``hf-hub:...``).

    Raises:
        DataError: when the folder holds no open_clip model, or a tensor is missing, unexpected or not finite.
    """
    import open_clip

    folder = Path(model)
    if not model.startswith("hf-hub:") and not (folder / "open_clip_config.json").is_file():
        raise DataError(f"{model}: no open_clip model there (open_clip_config.json is missing)")
    name, source = (model, model) if model.startswith("hf-hub:") else (folder, f"local-dir:{folder}")
    if name == folder:
        if not any(folder.glob("*.safetensors")):
            raise DataError(f"{folder}: no safetensors there; other formats can run code when they are loaded")
        config = folder / "open_clip_config.json"
        held = numbers_below(folder)
        with reading(config), _without_the_warning_of_weights():
            refuse_larger(partial(open_clip.create_model, source, **WITHOUT_WEIGHTS), held, config)
    with reading(name), from_hub(name):
        tower, _, preprocess = open_clip.create_model_and_transforms(source, device=device)
        tokenizer = open_clip.get_tokenizer(source)
        tokenizer(["a"])
    refuse_not_finite(tower.state_dict(), name)
    return tower.eval(), preprocess, tokenizer
