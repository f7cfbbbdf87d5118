"""Errors of a model hub, each as one message with the repository and the remedy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import constants, errors, snapshot_download
from safetensors import SafetensorError

from paco_core.io.files import DataError

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
        return Path(snapshot_download(name.removeprefix("hf-hub:"), allow_patterns=["model_index.json"])).name
    except (OSError, ValueError, errors.HfHubHTTPError):  # loading it fails too, with the cause
        return ""


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
