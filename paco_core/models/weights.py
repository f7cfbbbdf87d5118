"""Loading of weights: complete, or an error with the name of the tensor.

Every model and adapter is loaded by this module. Warnings of the libraries are errors here: missing tensors (which
would be initialized randomly), unexpected tensors, and tensors that are not finite in their number format.
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
from paco_core.models.hub import explain_hub_error, from_hub
from paco_core.models.modular import OPTIONAL, build_modular, component_classes, download_modular, is_modular
from paco_core.models.pipeline_index import read_index
from paco_core.models.size import numbers_in, validate_model_size

READING = (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError)
WITHOUT_WEIGHTS = {"load_weights": False, "pretrained_image": False, "pretrained_text": False, "device": "meta"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")
LIBRARIES = ("diffusers", "transformers")  # libraries of the models in a pipeline's folder
#: The largest weight that is finite in every supported number format, which is that of bfloat16.
LARGEST = torch.finfo(torch.bfloat16).max


@contextmanager
def reading(source: str | Path) -> Iterator[None]:
    """Context that reads a model or an adapter.

    Args:
        source: its folder, file or hub id.

    Raises:
        DataError: for every exception of the libraries, with the source and the remedy. For hub ids, see
            :func:`paco_core.models.hub.explain_hub_error`.
    """
    try:
        yield
    except (DataError, ModuleNotFoundError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # libraries raise many types  # noqa: BLE001
        raise DataError(explain_hub_error(source, error) or _explain_file_error(source, error)) from None


def _explain_file_error(source: str | Path, error: Exception) -> str:
    cause = " ".join(str(error).split())[:300]
    if isinstance(error, MemoryError) or "can't allocate memory" in cause:  # PyTorch's, on a processor
        return f"{source}: there is not enough memory to load it ({cause or 'MemoryError'})"
    if isinstance(error, PermissionError):
        return sentence(error)
    if "loading state_dict" in cause:  # PyTorch's, for tensors of other names or shapes
        return f"{source}: its weights are not those of the model ({cause}); {_remedy(source)}"
    if isinstance(error, OSError) and not Path(source).exists() and "pytorch_model.bin" in cause:
        # The message of transformers for a repository without safetensors.
        return f"{source}: there are no safetensors files; other formats can run code when they are loaded"
    if missing := re.search(r"no file named ([\w.-]+)", cause, re.IGNORECASE):
        problem = f"{source}: {missing[1]} is missing;"
    elif (problem := _tokenizer_error(Path(source))) or not isinstance(error, READING):
        problem = problem or (
            f"{source}: the model cannot be loaded ({type(error).__name__}: {cause}); is one of its files damaged, or "
            "from another model?"
        )
    else:
        problem = f"{source}: cannot be read ({cause}); is one of its files truncated?"
    return f"{problem} {_remedy(source)}"


def _tokenizer_error(folder: Path) -> str:
    """The error in the files of a tokenizer. Empty if there is none, or the folder has no tokenizer."""
    from tokenizers import Tokenizer

    if not any(folder.glob("tokenizer*.json")):
        return ""
    for name in TOKENIZER_FILES:
        if not (folder / name).is_file():
            return f"{folder}: {name} is missing;"
    try:
        Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises plain exceptions  # noqa: BLE001
        return f"{folder}: tokenizer.json is not a tokenizer ({error});"
    return ""


def _remedy(source: str | Path) -> str:
    stage = paths.producer(source) if isinstance(source, Path) else None
    return f"run `dvc repro {stage}`" if stage else "replace it with a complete copy"


def read_tensors(path: Path) -> tuple[dict[str, torch.Tensor], dict[str, str]]:
    """Read the tensors of a safetensors file by name, of any shape, and the metadata of its header.

    Raises:
        DataError: if the file is missing, truncated or damaged, or a tensor is not finite.
    """
    with reading(path), safe_open(path, framework="pt") as stored:
        metadata: dict[str, str] = stored.metadata() or {}
        tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
    validate_finite(tensors, path)
    return tensors, metadata


def validate_finite(tensors: Mapping[str, torch.Tensor], source: str | Path) -> None:
    """Raise DataError if tensors, of any shape, contain NaN or a number beyond :data:`LARGEST`.

    Minimum and maximum are computed at memory speed (15 to 28 GB/s on one core).
    """
    broken = [name for name, tensor in tensors.items() if not _finite(tensor)]
    if broken:
        raise DataError(
            f"{source}: NaN or infinity in {_first_of(broken)}, read as bfloat16; the model would return NaN; "
            f"{_remedy(source)}"
        )


def _finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or not tensor.numel():
        return True
    numbers = tensor.detach()
    if type(numbers) is not torch.Tensor and hasattr(numbers, "tensor_data_names"):
        numbers = numbers.dequantize()  # a tensor of torchao consists of several tensors
    if numbers.element_size() == 1:  # float8 has no minimum
        numbers = numbers.float()
    low, high = (float(number) for number in torch.aminmax(numbers))
    return -low <= LARGEST and high <= LARGEST  # NaN is neither


def numbers_below(folder: Path) -> int:
    """Count the numbers in the safetensors files of a folder, from their headers.

    Raises:
        DataError: if a file is damaged.
    """
    total = 0
    for file in sorted(folder.glob("*.safetensors")):
        with reading(file):
            total += numbers_in(file)
    return total


def load_model(model_class: Any, source: str | Path, **options: Any) -> Any:
    """Load a model of transformers or diffusers by ``from_pretrained``, in evaluation mode.

    Args:
        model_class: class of the model.
        source: its folder or hub id.
        options: of ``from_pretrained``.

    Raises:
        DataError: if it cannot be read, its configuration is invalid or does not match the size of the files, or a
            tensor is missing, unexpected, not finite, or has another shape.
    """
    folder = Path(source) / options.get("subfolder", "")
    config = folder / "config.json"
    if folder.is_dir() and not config.is_file():  # transformers would use its defaults
        raise DataError(f"{folder}: config.json is missing; {_remedy(source)}")
    if folder.is_dir():
        stored_numbers = numbers_below(folder)
        with reading(config):
            validate_model_size(lambda: _build_from_config(model_class, folder), stored_numbers, config)
    if model_class.__module__.startswith("transformers."):  # otherwise it would raise without their names
        options["ignore_mismatched_sizes"] = True
    with reading(source):
        model, loading_info = model_class.from_pretrained(
            str(source), output_loading_info=True, use_safetensors=True, **options
        )
    _validate_tensor_names(loading_info, model_class.__name__, source)
    validate_finite(model.state_dict(), source)
    return model.eval()


def load_single_file(model_class: Any, file: Path, config: str | Path, subfolder: str, **options: Any) -> Any:
    """Load a model of diffusers from one safetensors file, with the tensor names of its authors or of diffusers.

    Args:
        model_class: class of the model.
        file: its weights, as image tools ship them.
        config: folder or hub id of the pipeline whose ``subfolder`` contains the configuration.
        options: of ``from_single_file``.

    Raises:
        DataError: if diffusers does not support this for the class, the file cannot be read, or it does not contain
            exactly the tensors of the model.
    """
    validate_single_file_class(model_class)
    with reading(config), torch.device("meta"):
        built = model_class.from_config(model_class.load_config(str(config), subfolder=subfolder))
    expected = sum(tensor.numel() for tensor in built.state_dict().values())
    with reading(file):
        stored = numbers_in(file)
    if stored != expected:
        raise DataError(
            f"{file}: contains {stored:,} numbers, and the {model_class.__name__} of {config} has {expected:,}; use a "
            "file of this transformer only, without other parts and not quantized"
        )
    with reading(file):
        model = model_class.from_single_file(str(file), config=str(config), subfolder=subfolder, **options)
    missing = sorted(name for name, tensor in model.state_dict().items() if tensor.is_meta)
    _validate_tensor_names({"missing_keys": missing}, model_class.__name__, file)
    validate_finite(model.state_dict(), file)
    return model.eval()


def validate_single_file_class(model_class: Any) -> None:
    """Raise DataError if diffusers does not load a class from one file."""
    if not hasattr(model_class, "from_single_file"):
        raise DataError(
            f"diffusers loads no {model_class.__name__} from one file; use a folder in the layout of diffusers"
        )


def _build_from_config(model_class: Any, folder: Path) -> Any:
    """The model of a folder's configuration, with random weights."""
    if hasattr(model_class, "load_config"):  # diffusers
        return model_class.from_config(model_class.load_config(folder))
    if hasattr(model_class, "from_config"):  # an AutoModel, which chooses the class
        from transformers import AutoConfig

        return model_class.from_config(AutoConfig.from_pretrained(folder))
    return model_class(model_class.config_class.from_pretrained(folder))


def _validate_tensor_names(loading_info: Mapping[str, Collection[Any]], class_name: str, source: str | Path) -> None:
    problems = [
        ("missing_keys", "lacks", "it would be initialized randomly"),
        ("unexpected_keys", "contains", "no layer of the model uses it"),
        ("mismatched_keys", "contains another shape of", "it would be initialized randomly"),
    ]
    for key, verb, meaning in problems:
        if loading_info.get(key):
            names = sorted(name if isinstance(name, str) else name[0] for name in loading_info[key])
            raise DataError(f"{source}: {verb} {_first_of(names)} of a {class_name}: {meaning}; {_remedy(source)}")


def _first_of(names: list[str]) -> str:
    return names[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")


def _part_classes(pipeline_class: Any, folder: Path) -> dict[str, Any]:
    with reading(folder / pipeline_class.config_name):
        classes = {name: _import_class(entry) for name, entry in read_index(folder).items()}
    if not is_modular(pipeline_class):
        return classes
    parts = {name: classes.get(name) or component for name, component in component_classes(pipeline_class).items()}
    return parts | {name: classes[name] for name in OPTIONAL & classes.keys()}


def _validate_part(pipeline_class: Any, folder: Path, name: str) -> None:
    """Raise DataError if a folder lacks a part, which the index of a modular pipeline may load from elsewhere."""
    if is_modular(pipeline_class) and not (folder / name).is_dir():
        raise DataError(
            f"{folder}: the folder has no part {name}, which a {pipeline_class.__name__} needs; if its "
            f"{pipeline_class.config_name} loads it from another repository, download it into {folder / name}"
        )


def load_part(pipeline_class: Any, folder: Path, name: str, dtype: torch.dtype, **options: Any) -> Any:
    """Load one model of a diffusers pipeline's folder by :func:`load_model`."""
    _validate_part(pipeline_class, folder, name)
    return load_model(_part_classes(pipeline_class, folder)[name], folder / name, dtype=dtype, **options)


def load_pipeline(pipeline_class: Any, folder: Path, dtype: torch.dtype, deferred: Collection[str] = ()) -> Any:
    """Load a diffusers pipeline from its folder. Its models are loaded by :func:`load_model`.

    Args:
        deferred: parts that are not loaded, None in the pipeline; see :func:`load_part`.

    Raises:
        DataError: as :func:`load_model`, with the part.
    """
    parts: dict[str, Any] = dict.fromkeys(deferred)
    for name, part in _part_classes(pipeline_class, folder).items():
        if name in deferred:
            continue
        _validate_part(pipeline_class, folder, name)
        if part is not None and issubclass(part, torch.nn.Module):
            parts[name] = load_model(part, folder / name, dtype=dtype)
        elif part is not None:
            if "Tokenizer" in part.__name__ and not (folder / name / "tokenizer_config.json").is_file():
                raise DataError(f"{folder / name}: tokenizer_config.json is missing; {_remedy(folder)}")
            with reading(folder / name):
                parts[name] = part.from_pretrained(folder / name)
    with reading(folder):
        if is_modular(pipeline_class):
            return build_modular(pipeline_class, parts)
        return pipeline_class.from_pretrained(folder, **parts, dtype=dtype)


def download_pipeline(pipeline_class: Any, model: str, skipped: Collection[str] = ()) -> Path:
    """Download the folder of a pipeline from its hub repository.

    Args:
        skipped: parts that are not needed.
    """
    if is_modular(pipeline_class):
        return Path(download_modular(pipeline_class, model, skipped))
    return Path(pipeline_class.download(model, **dict.fromkeys(skipped)))


def _import_class(entry: Any) -> Any:
    """The class of a part of a pipeline, or None if its library is not one of :data:`LIBRARIES`."""
    library, name = entry if isinstance(entry, list | tuple) and len(entry) == 2 else (None, None)
    part = getattr(import_module(library), str(name), None) if library in LIBRARIES else None
    return part if isinstance(part, type) and hasattr(part, "from_pretrained") else None


@contextmanager
def _without_weights_warning() -> Iterator[None]:
    """Context without open_clip's warning about random weights, because the model is built for its shapes only."""

    def is_other(record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith("No pretrained weights loaded")

    logging.getLogger().addFilter(is_other)  # open_clip logs to the root logger itself
    try:
        yield
    finally:
        logging.getLogger().removeFilter(is_other)


def load_open_clip(model: str, device: str) -> tuple[Any, Any, Any]:
    """Load a model of open_clip: (the model in evaluation mode, its image preprocessing, its tokenizer).

    Args:
        model: a folder, or an open_clip name (``hf-hub:...``).

    Raises:
        DataError: if the folder contains no open_clip model, or a tensor is missing, unexpected or not finite.
    """
    import open_clip

    folder = Path(model)
    if not model.startswith("hf-hub:") and not (folder / "open_clip_config.json").is_file():
        raise DataError(f"{model}: there is no open_clip model (open_clip_config.json is missing)")
    name, source = (model, model) if model.startswith("hf-hub:") else (folder, f"local-dir:{folder}")
    if name == folder:
        if not any(folder.glob("*.safetensors")):
            raise DataError(
                f"{folder}: there are no safetensors files; other formats can run code when they are loaded"
            )
        config = folder / "open_clip_config.json"
        stored_numbers = numbers_below(folder)
        build = partial(open_clip.create_model, source, **WITHOUT_WEIGHTS)
        with reading(config), _without_weights_warning():
            validate_model_size(build, stored_numbers, config)
    with reading(name), from_hub(name):
        tower, _, preprocess = open_clip.create_model_and_transforms(source, device=device)
        tokenizer = open_clip.get_tokenizer(source)
        tokenizer(["a"])
    validate_finite(tower.state_dict(), name)
    return tower.eval(), preprocess, tokenizer
