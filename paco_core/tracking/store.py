"""Which MLflow store is in use, where its pages are, and what of the environment a run is tagged with."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

STORE, ARTIFACTS = "mlflow.db", "mlartifacts"
PAGES = "http://127.0.0.1:5000"  # where `make ui` shows a local store
DAGSTER_PAGES = "http://127.0.0.1:3000"


def tracking_uri(root: Path) -> str:
    """The store in use: ``MLFLOW_TRACKING_URI``, else ``mlflow.db`` at the project root."""
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{(root / STORE).resolve()}"


def artifact_location(root: Path) -> str | None:
    """Where a new experiment keeps its files: beside the local store; a server decides itself."""
    return None if os.environ.get("MLFLOW_TRACKING_URI") else (root / ARTIFACTS).resolve().as_uri()


def without_secrets(uri: str) -> str:
    """A URI that may be shown: user and password are left out."""
    netloc = urlsplit(uri).netloc
    return uri.replace(netloc, netloc.rpartition("@")[2], 1)  # put together again, it would lose slashes


def run_url(uri: str, experiment_id: str, run_id: str) -> str:
    """The page of a run: on the server itself; of a local store ``PACO_MLFLOW_URL``, or where ``make ui`` shows it."""
    served = uri.startswith(("http://", "https://"))
    base = without_secrets(uri) if served else os.environ.get("PACO_MLFLOW_URL", PAGES)
    return f"{base.rstrip('/')}/#/experiments/{experiment_id}/runs/{run_id}"


def dagster_url(run_id: str) -> str:
    """The page of a Dagster run; ``PACO_DAGSTER_URL`` where it is not the one of ``make ui``."""
    return f"{os.environ.get('PACO_DAGSTER_URL', DAGSTER_PAGES).rstrip('/')}/runs/{run_id}"


def flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping to dotted keys: ``{"grpo": {"lr": 1}}`` -> ``{"grpo.lr": 1}``."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        flat.update(flatten(value, f"{name}.") if isinstance(value, Mapping) else {name: value})
    return flat


WRITTEN = (":(exclude)dvc.lock", ":(exclude)data/metrics", ":(exclude)data/runs")


def git_state(root: Path) -> dict[str, str]:
    """Commit and whether the tree is dirty; empty outside a git checkout. What runs write is no change of the code."""

    def git(*args: str) -> str | None:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True)
        return done.stdout.strip() if done.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return {}
    return {
        "git.commit": commit,
        "git.dirty": str(bool(git("status", "--porcelain", "-uno", "--", ".", *WRITTEN))).lower(),
    }
