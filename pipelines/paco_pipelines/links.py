"""The pages worth opening first after a run: `make ui` prints them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from dvc_project.project import stages_of
from paco_core.io import paths
from paco_core.io.files import DataError, read_json
from paco_core.runtime.tracking.views import view_url
from paco_core.stages import declaration, names

LINEAGE = "asset-groups?expanded="  # Dagster's page of the whole graph, and the groups that are open on it


def links(root: Path, dagster: str, mlflow: str) -> dict[str, str]:
    """What a page shows -> its address; pages of what has not run yet are left out."""
    groups = dict.fromkeys(
        str(stage.dagster["group"]) for stage in stages_of(root).values() if "group" in stage.dagster
    )
    urls = {"lineage": f"{dagster}/{LINEAGE}{','.join(f'global@global:{group}' for group in groups)}"}
    for name in names():
        if declaration(name).view and (experiment := _experiment(root, name)):
            urls[f"{name} compared"] = view_url(mlflow, experiment, name)
    if (report := root / paths.REPORT / "index.html").is_file():
        urls["report"] = report.resolve().as_uri()
    return urls


def _experiment(root: Path, stage: str) -> str | None:
    """The experiment that the present versions of a stage's outs came from."""
    runs = root / paths.DATA / "runs"
    for file in (runs / f"{stage}.json", *sorted(runs.glob(f"{stage}@*.json"))):
        try:
            parts = urlsplit(read_json(file)["run"]["mlflow_url"]).fragment.split("/")
            return parts[parts.index("experiments") + 1]
        except (DataError, KeyError, TypeError, ValueError, IndexError):
            continue  # a run that was not tracked, or a file that another program wrote
    return None
