"""What loading from a model hub can end in, as one clear error that names the repository and what to do."""

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
    """Load a model in the block that may be one of a hub; errors about a folder pass through.

    Raises:
        DataError: naming the repository and what to do, when it is gated or missing, is out of reach, lacks a file, or
            its download was interrupted.
    """
    try:
        yield
    except Exception as error:  # the clients of the hub raise many types, and libraries wrap them
        message = explained(name, error)
        if message is None:
            raise
        raise DataError(message) from None


def revision(name: str) -> str:
    """The commit of a hub's repository that would be loaded now; empty where neither hub nor cache knows one.

    As in loading, the hub is asked, and the cache where it is out of reach.
    """
    try:
        return Path(snapshot_download(name.removeprefix("hf-hub:"), allow_patterns=["model_index.json"])).name
    except (OSError, ValueError, errors.HfHubHTTPError):  # to load it fails, too, and says why
        return ""


def explained(name: str | Path, error: BaseException) -> str | None:
    """What an error means for a repository of a hub; None for a folder, and for an error of another kind."""
    if isinstance(name, Path) or Path(name).is_dir():
        return None
    repository = str(name).removeprefix("hf-hub:")
    return next((message for cause in _causes(error) if (message := _message(repository, cause))), None)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and those that it was raised from or beside."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
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
