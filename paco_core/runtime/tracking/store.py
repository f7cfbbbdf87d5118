"""The MLflow store in use, the addresses of its pages, and the tags that describe where a run was started."""

from __future__ import annotations

import getpass
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from paco_core.io.files import DataError
from paco_core.io.messages import print_once
from paco_core.io.project import experiment_tags, owner_root
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.git import git_output

URI, USER, PASSWORD = "MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"
STORE, ARTIFACTS = "mlflow.db", "mlartifacts"
ARTIFACTS_URI = "MLFLOW_ARTIFACTS_DESTINATION"  # as of `mlflow server`
PAGES = "http://127.0.0.1:5000"  # where `make ui` shows a local store
DAGSTER_PAGES = "http://127.0.0.1:3000"
SERVERS = ("http://", "https://")
#: MLflow by itself tries seven times within minutes; here the journal waits.
HTTP = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": 1,
    "MLFLOW_HTTP_REQUEST_TIMEOUT": 20,
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": False,
}
GENERATED = (":(exclude)dvc.lock", ":(exclude)data/metrics", ":(exclude)data/runs")  # files that runs write
_RELATIVE_FILE = re.compile(r"(sqlite(?:\+\w+)?:///)(?!/|:memory:|file:)(?=.)")


def tracking_uri(root: Path) -> str:
    """The store in use: ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` at the root of the project.

    An experiment's checkout uses the store of the project that it belongs to. A relative SQLite file is there, too.
    User and password of a server leave the URI (:func:`_move_credentials`); those of a database cannot.
    """
    home = owner_root(root).resolve()
    _move_credentials()
    return _RELATIVE_FILE.sub(lambda start: f"{start[0]}{home}/", os.environ.get(URI) or f"sqlite:///{home / STORE}")


def _move_credentials() -> None:
    """Move user and password of a server from the URI to the variables that MLflow reads them from.

    MLflow quotes the URI in errors and logs, and links contain it.
    """
    uri = os.environ.get(URI, "")
    user, _, password = urlsplit(uri).netloc.rpartition("@")[0].partition(":")
    if uri.startswith(SERVERS) and user and password:
        os.environ[URI] = bare(uri)
        if USER not in os.environ or PASSWORD not in os.environ:  # MLflow prefers them, too
            os.environ[USER], os.environ[PASSWORD] = unquote(user), unquote(password)


def artifact_location(root: Path) -> str | None:
    """Where a new experiment keeps its files; a server decides itself.

    With a database: ``MLFLOW_ARTIFACTS_DESTINATION``, else the folder ``mlartifacts`` of the project.
    """
    if os.environ.get(URI, "").startswith(SERVERS):
        return None
    return os.environ.get(ARTIFACTS_URI) or (owner_root(root) / ARTIFACTS).resolve().as_uri()


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run: on the server; of a local store at ``PACO_MLFLOW_URL``, or where ``make ui`` shows it."""
    base = uri if uri.startswith(SERVERS) else os.environ.get("PACO_MLFLOW_URL", PAGES)
    return f"{bare(base).rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def dagster_url(run_id: str) -> str:
    """The page of a Dagster run, at ``PACO_DAGSTER_URL`` or where ``make ui`` shows it."""
    return f"{bare(os.environ.get('PACO_DAGSTER_URL', DAGSTER_PAGES)).rstrip('/')}/runs/{run_id}"


def short(error: BaseException) -> str:
    """An error of a store in one line: the first of its chain, such as ``ConnectionRefusedError: [Errno 111] ...``.

    A :class:`DataError` is complete: it contains its remedy.
    """
    if isinstance(error, DataError):
        return redacted(" ".join(str(error).split()))
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


def git_state(root: Path) -> dict[str, str]:
    """Commit, and whether the tree is dirty apart from files that runs write; empty outside a git checkout.

    It is also empty if git refuses to read the checkout. A line on standard error then contains git's reason.
    """
    try:
        commit = git_output(root, "rev-parse", "--verify", "--quiet", "HEAD")
        if commit is None:
            return {}
        dirty = bool(git_output(root, "status", "--porcelain", "-uno", "--", ".", *GENERATED))
    except DataError as error:
        print_once(f"runs record no commit: {error}")
        return {}
    return {"git.commit": commit, "git.dirty": str(dirty).lower()}


def run_tags(root: Path, name: str) -> dict[str, str]:
    """The tags of every run: checkout, DVC experiment, and those that MLflow's pages show."""
    tags = {**git_state(root), "mlflow.source.name": name, "mlflow.source.type": "LOCAL"}
    if "git.commit" in tags:
        tags["mlflow.source.git.commit"] = tags["git.commit"]
    with suppress(KeyError, OSError):  # a container without users
        tags["mlflow.user"] = os.environ.get(USER) or getpass.getuser()
    return {**tags, **experiment_tags(os.environ)}


def limit_requests(**changes: int | bool) -> None:
    """Limit the time of MLflow's requests in this process, unless the environment does.

    MLflow reads these settings at each request from the environment, or from defaults, which change here. A process
    that this one starts has the environment only.

    Args:
        changes: MLflow's variables that differ from :data:`HTTP`.
    """
    from mlflow import environment_variables

    for name, value in {**HTTP, **changes}.items():
        getattr(environment_variables, name).default = value
