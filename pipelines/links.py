"""The pages worth opening first after a run: `make ui` prints them."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from dvc_project.project import stages_of
from paco_core.io import paths
from paco_core.io.files import DataError, read_json
from paco_core.runtime.context import POLICIES_VIEW
from paco_core.runtime.tracking.views import page

LINEAGE = "asset-groups?expanded="  # Dagster's page of the whole graph, and the groups that are open on it


def links(root: Path, dagster: str, mlflow: str) -> dict[str, str]:
    """What a page shows -> its address; pages of what has not run yet are left out."""
    groups = dict.fromkeys(
        str(stage.dagster["group"]) for stage in stages_of(root).values() if "group" in stage.dagster
    )
    found = {"lineage": f"{dagster}/{LINEAGE}{','.join(f'global@global:{group}' for group in groups)}"}
    if compared := _policies(root):
        found["policies compared"] = page(mlflow, compared, POLICIES_VIEW)
    if (report := root / paths.REPORT / "index.html").is_file():
        found["report"] = report.resolve().as_uri()
    return found


def _policies(root: Path) -> str | None:
    """The experiment of the policies that dvc.lock's present versions came from."""
    for file in sorted((root / "data" / "runs").glob("policies@*.json")):
        try:
            parts = urlsplit(read_json(file)["run"]["mlflow_url"]).fragment.split("/")
            return parts[parts.index("experiments") + 1]
        except (DataError, KeyError, TypeError, ValueError, IndexError):
            continue  # a run that was not tracked, or a file that another program wrote
    return None
