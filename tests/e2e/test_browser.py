"""`make ui` over a graph that has run: what is announced, and what another page can do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dagster_dvc import DvcProject
from tests.support.chromium import chromium
from tests.support.dagster_page import PATIENCE, Ui, answers, until
from tests.support.ranks import free_port

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(1200)]
Dvc = Callable[..., subprocess.CompletedProcess[str]]
SKIPPED = {"vistory"}  # the profile names no stories


@pytest.fixture(scope="module")
def ui(smoke: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ui]:
    """`make ui`, for the first time, in the project that `dvc repro` has run."""
    home = tmp_path_factory.mktemp("dagster")
    env = {
        **os.environ,
        "DAGSTER_HOME": str(home),
        "PYTHONPATH": str(smoke),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    ports = free_port(), free_port()
    command = ["-m", "paco_pipelines.ui", "--dagster-port", str(ports[0]), "--mlflow-port", str(ports[1])]
    log = (home / "ui.log").open("wb")
    servers = subprocess.Popen([sys.executable, *command], cwd=smoke, env=env, stdout=log, stderr=log)
    ui = Ui(smoke, *(f"http://127.0.0.1:{port}" for port in ports))
    try:
        until(lambda: servers.poll() is not None or "Dagster on" in (home / "ui.log").read_text())
        assert servers.poll() is None, (home / "ui.log").read_text()[-3000:]
        assert answers(f"{ui.dagster}/server_info") and answers(ui.mlflow), "a page is announced when it answers"
        yield ui
    finally:
        servers.send_signal(signal.SIGINT)
        servers.wait(timeout=PATIENCE)
        log.close()


@pytest.fixture(scope="module")
def page(ui: Ui) -> Iterator[Any]:
    """A page of the system's Chromium."""
    with chromium() as browser:
        tab = browser.new_page(viewport={"width": 1500, "height": 1900})
        tab.set_default_timeout(PATIENCE * 1000)
        yield tab


def test_all_is_there_when_the_page_is_announced(ui: Ui) -> None:
    """Nothing was switched on: every stage is materialised with its figures and the results of all its checks."""
    stages = DvcProject(ui.root).assets
    nodes = ui.ask(
        "{ assetNodes { assetKey { path } isPartitioned"
        " partitionStats { numPartitions numMaterialized }"
        " assetMaterializations(limit: 1) { metadataEntries { label } }"
        " assetChecksOrError { ... on AssetChecks { checks { name"
        " executionForLatestMaterialization { status evaluation { description } } } } } } }"
    )["assetNodes"]
    nodes_by_name = {node["assetKey"]["path"][-1]: node for node in nodes if len(node["assetKey"]["path"]) == 1}
    for name in stages:
        node = nodes_by_name[name]
        (latest,) = node["assetMaterializations"]
        labels = {entry["label"] for entry in latest["metadataEntries"]}
        assert "dvc/md5" in labels and ("dvc/figures" in labels) == (name not in SKIPPED), name
        stats = node["partitionStats"]
        assert stats is None or stats["numMaterialized"] == stats["numPartitions"], name
        for check in node["assetChecksOrError"]["checks"]:
            execution = check["executionForLatestMaterialization"]
            assert execution is not None and execution["status"] in ("SUCCEEDED", "FAILED"), (name, check["name"])
            assert "the check itself failed" not in (execution["evaluation"]["description"] or ""), (
                name,
                check["name"],
            )


def test_another_page_can_do_nothing(ui: Ui, page: Any) -> None:
    """From a page of another origin, in the browser: an image, a form and a websocket."""
    runs = "{ runsOrError { ... on Runs { results { runId } } } }"
    before = ui.ask(runs)
    page.goto(ui.mlflow.replace("127.0.0.1", "localhost"), wait_until="domcontentloaded")
    mutation = "mutation { reloadWorkspace { __typename } }"
    status = page.evaluate(
        """async ([dagster, mutation]) => {
            const image = new Image();
            const drawn = new Promise(done => {
                image.onload = () => done(true); image.onerror = () => done(false);
            });
            image.src = `${dagster}/graphql?query=${encodeURIComponent(mutation)}`;
            const socket = new WebSocket(dagster.replace('http', 'ws') + '/graphql', 'graphql-ws');
            const opened = new Promise(done => {
                socket.onopen = () => done(true);
                socket.onclose = () => done(false);
            });
            const read = await fetch(`${dagster}/server_info`).then(() => true, () => false);
            return [await drawn, await opened, read];
        }""",
        [ui.dagster, mutation],
    )
    assert status == [False, False, False] and ui.ask(runs) == before
