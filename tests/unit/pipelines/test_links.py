"""The pages that `make ui` names: of what is there, and of nothing that did not run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from paco_pipelines.links import links

DAGSTER, MLFLOW = "http://127.0.0.1:3100", "http://127.0.0.1:5100"


def ran(root: Path, policy: str, run: str | None, experiment: str) -> None:
    place = root / "data" / "runs" / f"policies@{policy}.json"
    place.parent.mkdir(parents=True, exist_ok=True)
    url = f"http://127.0.0.1:5000/#/experiments/{experiment}/runs/{run}" if run else None
    place.write_text(json.dumps({"recipe": "0", "run": {"mlflow_run": run, "mlflow_url": url}}))


def test_before_anything_ran_there_is_the_graph(tmp_path: Path, repository: Path) -> None:
    shutil.copy(repository / "dvc.yaml", tmp_path)
    shutil.copy(repository / "params.yaml", tmp_path)
    found = links(tmp_path, DAGSTER, MLFLOW)
    assert list(found) == ["lineage"]
    address = urlsplit(found["lineage"])
    assert address.netloc == "127.0.0.1:3100" and address.path == "/asset-groups"
    groups = parse_qs(address.query)["expanded"][0].split(",")
    assert {"global@global:data", "global@global:reward", "global@global:policies"} <= set(groups)


def test_policies_are_compared_and_the_report_is_named(tmp_path: Path) -> None:
    ran(tmp_path, "flux_t2is", "aaa", "12")
    ran(tmp_path, "kontext_edit", "bbb", "12")
    ran(tmp_path, "absent", None, "14")
    (tmp_path / "data/runs/policies@cut.json").write_text('{"run": {"mlfl')
    report = tmp_path / "data/report/index.html"
    report.parent.mkdir(parents=True)
    report.write_text("")
    found = links(tmp_path, DAGSTER, MLFLOW)
    page = urlsplit(urlsplit(found["policies compared"]).fragment)
    asked = parse_qs(page.query)
    assert page.path == "/experiments/12/runs" and found["policies compared"].startswith(MLFLOW)
    view = {"viewStateShareKey": ["policies"], "compareRunsMode": ["CHART"]}
    assert asked == {**view, "workflowType": ["machine_learning"]}
    assert found["report"] == report.as_uri()
