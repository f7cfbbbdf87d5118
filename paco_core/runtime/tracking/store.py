"""Which MLflow store is in use, where its pages are, and what of the environment a run is tagged with."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paco_core.io.files import DataError
from paco_core.io.messages import say_once
from paco_core.io.project import experiment_tags, owner_root
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.git import git_output

URI, USER, PASSWORD = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
STORE, ARTIFACTS = "mlflow.db", "mlartifacts"
ARTIFACTS_URI = "MLFLOW_ARTIFACTS_DESTINATION"  # as of `mlflow server`
PAGES = "http://127.0.0.1:5000"  # where `make ui` shows a local store
DAGSTER_PAGES = "http://127.0.0.1:3000"
SERVERS = ("http://", "https://")
#: MLflow asks seven times over minutes by itself; here the journal does the waiting.
HTTP = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 1,
    "MLFLOW_HTTP_REQUEST_TIMEOUT": 20,
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": False,
}
_RELATIVE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(?=.)")


def tracking_uri(root: Path) -> str:
    """The store in use: ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` at the root of the project.

    An experiment's checkout uses the store of the project that it belongs to; a relative SQLite file lies there, too.
    User and password of a server leave the URI (:func:`_set_credentials_aside`); those of a database cannot.
    """
    home = owner_root(root).resolve()
    _set_credentials_aside()
    return _RELATIVE_FILE.sub(lambda start: f"{start[0]}{home}/", os.environ.get(URI) or f"sqlite:///{home / STORE}")


def _set_credentials_aside() -> None:
    """Move user and password of a server from the URI to the variables that MLflow reads them from.

    MLflow quotes the URI in what it raises and logs, and links are made of it.
    """
    uri = os.environ.get(URI, "")
    user, _, password = urlsplit(uri).netloc.rpartition("@")[0].partition(":")
    if uri.startswith(SERVERS) and user and password:
        os.environ[URI] = bare(uri)
        if USER not in os.environ or PASSWORD not in os.environ:  # MLflow prefers them, too
            os.environ[USER], os.environ[PASSWORD] = unquote(user), unquote(password)


def artifact_location(root: Path) -> str | None:
    """Where a new experiment keeps its files: a server decides itself.

    Of a database, ``MLFLOW_ARTIFACTS_DESTINATION``, else the folder ``mlartifacts`` of the project.
    """
    if os.environ.get(URI, "").startswith(SERVERS):
        return None
    return os.environ.get(ARTIFACTS_URI) or (owner_root(root) / ARTIFACTS).resolve().as_uri()


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run: on the server itself; of a local store ``PACO_MLFLOW_URL``, or where ``make ui`` shows it."""
    base = uri if uri.startswith(SERVERS) else os.environ.get("PACO_MLFLOW_URL", PAGES)
    return f"{bare(base).rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def dagster_url(run_id: str) -> str:
    """The page of a Dagster run; ``PACO_DAGSTER_URL`` where it is not the one of ``make ui``."""
    return f"{bare(os.environ.get('PACO_DAGSTER_URL', DAGSTER_PAGES)).rstrip('/')}/runs/{run_id}"


def short(error: Exception) -> str:
    """What a store answered, in one line; what names its remedy is given in full."""
    text = redacted(" ".join(str(error).split()))
    return text if isinstance(error, DataError) else f"{type(error).__name__}: {text[:200]}"


def cause(error: BaseException) -> str:
    """The first failure of a chain of exceptions, in one line: ``ConnectionRefusedError: [Errno 111] ...``."""
    while (earlier := error.__cause__ or error.__context__) is not None:
        error = earlier
    return f"{type(error).__name__}: {redacted(' '.join(str(error).split()))[:200]}"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping to dotted keys: ``{"grpo": {"lr": 1}}`` -> ``{"grpo.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


WRITTEN = (":(exclude)dvc.lock", ":(exclude)data/metrics", ":(exclude)data/runs")


def git_state(root: Path) -> dict[str, str]:
    """Commit and whether the tree is dirty; empty outside a git checkout. What runs write is no change of the code.

    It is empty, too, if git refuses to read the checkout. A line on standard error then gives git's reason.
    """
    try:
        commit = git_output(root, "rev-parse", "--verify", "--quiet", "HEAD")
        if commit is None:
            return {}
        dirty = bool(git_output(root, "status", "--porcelain", "-uno", "--", ".", *WRITTEN))
    except DataError as error:
        say_once(f"runs record no commit: {error}")
        return {}
    return {"git.commit": commit, "git.dirty": str(dirty).lower()}


def surroundings(root: Path, name: str) -> dict[str, str]:
    """The tags of every run: checkout, experiment of DVC, and those that MLflow's own pages show."""
    git = git_state(root)
    commit = {"mlflow.source.git.commit": git["git.commit"]} if git else {}
    source = {"mlflow.source.name": name, "mlflow.source.type": "LOCAL"}
    return {**git, **commit, **source, **_user(), **experiment_tags(os.environ)}


def _user() -> dict[str, str]:
    """As MLflow does: the one that a server knows, else the one of this machine; none in a container without any."""
    try:
        return {"mlflow.user": os.environ.get(USER) or getpass.getuser()}
    except (KeyError, OSError):
        return {}


def limit_requests(**changes: int | bool) -> None:
    """Have MLflow's requests give up soon in this process, unless the environment says how long to try.

    MLflow reads these settings at each request, from the environment or from its own defaults, which change here: what
    a process starts has its environment, and not these.

    Args:
        changes: MLflow's variables that are to differ from :data:`HTTP`.
    """
    from mlflow import environment_variables

    for name, value in {**HTTP, **changes}.items():
        getattr(environment_variables, name).default = value
