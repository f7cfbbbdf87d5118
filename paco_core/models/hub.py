"""Errors of a model hub, each as one message with the repository and the remedy."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, errors, snapshot_download
from safetensors import SafetensorError

from paco_core.io.files import DataError
from paco_core.models.pipeline_index import INDEXES, find_index, read_index

MODEL_CONFIGS = ("config.json", "open_clip_config.json", "adapter_config.json")
LOGIN = "log in with `hf auth login`, or put a token into HF_TOKEN"


@contextmanager
def from_hub(name: str | Path) -> Iterator[None]:
    """Context that loads a model, possibly from a hub. Errors about a local folder are not changed.

    Raises:
        DataError: if the repository is gated or missing, cannot be reached, lacks a file, or its download was
            interrupted.
    """
    try:
        yield
    except Exception as error:  # the clients of the hub raise many types, and libraries wrap them
        message = explain_hub_error(name, error)
        if message is None:
            raise
        raise DataError(message) from None


def revision(name: str) -> str:
    """The commit of a hub repository that would be loaded now. Empty if neither hub nor cache contains it.

    As in loading, the cache is used if the hub cannot be reached.
    """
    try:
        return Path(snapshot_download(name.removeprefix("hf-hub:"), allow_patterns=list(INDEXES))).name
    except (OSError, ValueError, errors.HfHubHTTPError):  # loading it fails too, with the cause
        return ""


def cached_snapshot(name: str, skipped: Collection[str] = ()) -> Path | None:
    """The folder of a hub repository in the hub's cache; None if it is not there, or not complete.

    Complete means: each part that a pipeline lists is there, and each model has all its safetensors files.

    Args:
        skipped: parts of a pipeline that are not needed.
    """
    try:
        folder = Path(snapshot_download(name.removeprefix("hf-hub:"), local_files_only=True))
    except (OSError, ValueError, errors.HfHubHTTPError):
        return None
    try:
        return folder if _is_complete(folder, skipped) else None
    except (DataError, LookupError, TypeError, ValueError):  # a damaged index
        return None


def _is_complete(folder: Path, skipped: Collection[str]) -> bool:
    models = [folder]
    if find_index(folder) is not None:
        entries = read_index(folder).items()
        part_names = {name for name, entry in entries if isinstance(entry, list) and entry[0] is not None}
        models = [folder / name for name in part_names - set(skipped)]
    return all(model.is_dir() and _has_weights(model) for model in models)


def _has_weights(folder: Path) -> bool:
    """Whether the safetensors files of a model are there. A folder without ``config.json`` has none, as a tokenizer."""
    for shards in folder.glob("*.safetensors.index.json"):
        names = json.loads(shards.read_text(encoding="utf-8"))["weight_map"].values()
        if not all((folder / name).is_file() for name in names):
            return False
    is_model = any((folder / name).is_file() for name in MODEL_CONFIGS)
    return not is_model or any(file.is_file() for file in folder.glob("*.safetensors"))


def is_offline() -> bool:
    """Whether the hub's client is forbidden to use the network (``HF_HUB_OFFLINE``)."""
    return bool(constants.HF_HUB_OFFLINE)


def explain_hub_error(name: str | Path, error: BaseException) -> str | None:
    """The message for an error about a hub repository. None for a local folder, and for other kinds of errors."""
    if isinstance(name, Path) or Path(name).is_dir():
        return None
    repository = str(name).removeprefix("hf-hub:")
    return next((message for cause in _causes(error) if (message := _message(repository, cause))), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and the errors from which or during which it was raised."""
    visited: set[int] = set()
    while error is not None and id(error) not in visited:
        visited.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def _message(name: str, error: BaseException) -> str | None:
    page, cache = f"{constants.ENDPOINT}/{name}", _cache(name)
    match error:
        case errors.GatedRepoError():
            message = f"the repository is gated; accept its licence at {page}, then {LOGIN}"
        case errors.RepositoryNotFoundError():
            message = (
                f"neither a folder of the project nor a repository of {constants.ENDPOINT}; correct the name, or if "
                f"the repository is private, {LOGIN}"
            )
        case errors.LocalEntryNotFoundError() | errors.OfflineModeIsEnabled():
            message = (
                f"not, or not wholly, in the cache {cache}, and the hub cannot be reached (HF_HUB_OFFLINE, or no "
                f"network); run again with a network, which continues the download, or copy that folder from a machine "
                f"where `hf download {name}` has run"
            )
        case errors.EntryNotFoundError():
            message = f"the repository lacks a file that is needed ({_first_line(error)}); see {page}/tree/main"
        case errors.HfHubHTTPError():
            cure = LOGIN if error.response.status_code in (401, 403) else "run again, which continues the download"
            message = f"the hub answered {error.response.status_code}; {cure}"
        case SafetensorError():
            message = f"a file in the cache is cut off or damaged ({error}); remove {cache} and run again"
        case errors.XetDownloadError() | ConnectionError():
            message = f"the download was interrupted ({_first_line(error)}); run again, which continues it"
        case _:
            return None
    return f"{name}: {message}"


def _cache(name: str) -> Path:
    return Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
