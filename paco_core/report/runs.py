"""What ran, when and how long: the graph of ``dvc.yaml`` joined with the runs that its stages recorded."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from dvc_project.lockfile import Lock
from dvc_project.project import GRAPH_FILE, stages_of
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.runtime import graph
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Run


@dataclass(frozen=True)
class StageRun:
    """A stage of the graph with the run that made its outs.

    ``seconds`` is the sum over the items of a matrix stage, None when none is known; ``pages`` are the addresses of
    their runs in MLflow.
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


def recorded_runs(root: Path, lock: Lock) -> dict[str, Run]:
    """The run that made the present outs of each stage or item (``grids@0``), where a record of it lies here.

    Raises:
        DataError: when a record is damaged.
    """
    found = {}
    for label, entry in lock.entries.items():
        if run := records.recorded(root, label, entry.inputs.digest):
            found[label] = run
    return found


def stage_runs(root: Path, lock: Lock, found: Mapping[str, Run]) -> list[StageRun]:
    """The stages in the order of ``dvc.yaml``, bookkeeping left out; ``lock`` knows which have outs.

    Raises:
        DataError: when there is no ``dvc.yaml`` at the root.
    """
    if not (declared := stages_of(root)):
        raise DataError(f"{root / GRAPH_FILE}: no stages there")
    stages = {stage.group: stage for stage in declared.values() if stage.dagster.get("group")}
    names, edges = list(stages), graph.edges(declared.values())
    needs = {name: tuple(names.index(a) for a, b in edges if b == name and a in stages) for name in names}
    rows = []
    for name, stage in stages.items():
        runs = [run for label, run in sorted(found.items()) if label.split("@")[0] == name]
        rows.append(
            StageRun(
                name=name,
                about=(stage.desc or "").partition(". ")[0],
                group=str(stage.dagster["group"]),
                parts=max(1, len(runs)),
                seconds=sum(known) if (known := [run.seconds for run in runs if run.seconds is not None]) else None,
                recorded=any(entry.split("@")[0] == name for entry in lock.entries),
                commit=next((run.git_commit for run in runs if run.git_commit), None),
                pages=tuple(run.mlflow_url for run in runs if run.mlflow_url),
                needs=needs[name],
            )
        )
    return rows


def recorded_outs(lock: Lock) -> list[tuple[str, str]]:
    """(path, md5) of every out that ``dvc.lock`` records: the exact data behind the page."""
    outs = [out for entry in lock.entries.values() for out in entry.outs.items()]
    return sorted((path, md5) for path, md5 in outs if path != paths.REPORT.as_posix() and md5)


def versions() -> dict[str, str]:
    """Versions of what computed the figures."""
    found = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in (
        "paco-rl",
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
