"""What ran, when and how long: the graph of ``dvc.yaml`` joined with the tracked runs of its stages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from paco_core import files, graph
from paco_core.files import DataError
from paco_core.imports import uncollected


@dataclass(frozen=True)
class StageRun:
    """A stage of the graph with its last finished run.

    ``seconds`` is the sum over the items of a matrix stage, None when no finished run is known; ``pages`` are the
    addresses of their runs in MLflow.
    """

    name: str
    about: str
    group: str
    parts: int
    seconds: float | None
    recorded: bool  # dvc.lock knows its outs
    commit: str | None
    pages: tuple[str, ...]
    needs: tuple[int, ...]  # positions of the stages whose outs it reads


@dataclass(frozen=True)
class FoundRun:
    """The last finished run of one stage or item."""

    seconds: float
    commit: str | None
    page: str = ""  # its address in MLflow


def finished_runs(uri: str, profile: str) -> dict[str, FoundRun]:
    """The last finished run of each ``dvc.stage`` label (``grids@0``) under a profile.

    Empty where the store does not answer or cannot be used: the page then says that times are unknown.
    """
    from paco_core.tracking import brief_requests

    with uncollected():
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

    try:
        with brief_requests():
            return _finished_runs(uri, profile)
    except (MlflowException, SQLAlchemyError, DataError, OSError):  # a damaged or locked file, a full disk
        return {}


def _finished_runs(uri: str, profile: str) -> dict[str, FoundRun]:
    from paco_core.tracking import connect, run_url

    client = connect(uri)
    experiments = [e.experiment_id for e in client.search_experiments() if e.name.startswith("paco/")]
    if not experiments:
        return {}
    runs = client.search_runs(
        experiments,
        filter_string=f"attributes.status = 'FINISHED' and tags.profile = '{profile}'",
        order_by=["attributes.start_time DESC"],
        max_results=1000,
    )
    found: dict[str, FoundRun] = {}
    for run in runs:
        label = run.data.tags.get("dvc.stage")
        if label is not None and run.info.end_time is not None:
            seconds = (run.info.end_time - run.info.start_time) / 1000
            page = run_url(uri, run.info.experiment_id, run.info.run_id)
            found.setdefault(label, FoundRun(seconds, run.data.tags.get("git.commit"), page))
    return found


def _recorded(root: Path) -> set[str]:
    lock = root / "dvc.lock"
    if not lock.is_file():
        return set()
    return set((yaml.safe_load(lock.read_text()) or {}).get("stages") or {})


def stage_runs(root: Path, found: Mapping[str, FoundRun]) -> list[StageRun]:
    """The stages in the order of ``dvc.yaml``.

    Raises:
        DataError: when there is no ``dvc.yaml`` at the root.
    """
    if not (root / "dvc.yaml").is_file():
        raise DataError(f"{root / 'dvc.yaml'}: no such file; the report is made inside the project")
    stages: dict[str, Any] = yaml.safe_load((root / "dvc.yaml").read_text())["stages"]
    names = list(stages)
    needs = {name: tuple(names.index(a) for a, b in graph.edges(stages) if b == name) for name in names}
    lock = _recorded(root)
    rows = []
    for name, stage in stages.items():
        runs = [run for label, run in sorted(found.items()) if label.split("@")[0] == name]
        rows.append(
            StageRun(
                name=name,
                about=str(stage.get("desc", "")),
                group=str(stage.get("meta", {}).get("dagster", {}).get("group", "")),
                parts=max(1, len(runs)),
                seconds=sum(run.seconds for run in runs) if runs else None,
                recorded=any(entry.split("@")[0] == name for entry in lock),
                commit=next((run.commit for run in runs if run.commit), None),
                pages=tuple(run.page for run in runs if run.page),
                needs=needs[name],
            )
        )
    return rows


def recorded_outs(root: Path) -> list[tuple[str, str]]:
    """(path, md5) of every out that ``dvc.lock`` records: the exact data behind the page."""
    lock = root / "dvc.lock"
    if not lock.is_file():
        return []
    stages = (yaml.safe_load(lock.read_text()) or {}).get("stages") or {}
    outs = {str(o["path"]): str(o.get("md5", "")) for s in stages.values() for o in s.get("outs", [])}
    return sorted((path, md5) for path, md5 in outs.items() if path != "data/report" and md5)


def versions() -> dict[str, str]:
    """Versions of what computed the figures."""
    import platform
    from importlib import metadata

    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in (
        "paco",
        "torch",
        "diffusers",
        "transformers",
        "peft",
        "open_clip_torch",
        "dvc",
        "dagster",
        "mlflow",
    ):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found


def notes_of(root: Path, stage: str) -> dict[str, Any]:
    """The metrics file of a stage, empty where there is none."""
    path = root / "data" / "metrics" / f"{stage}.json"
    if not path.is_file():
        return {}
    content: dict[str, Any] = files.read_json(path)
    return content
