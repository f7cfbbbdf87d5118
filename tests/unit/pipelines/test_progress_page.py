"""The page that fills while the graph runs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from dagster_dvc import DvcProject
from pipelines import repro
from pipelines.progress.page import PAGE, ProgressPage, Sheet, figures_of, sheets_of
from tests.support import dvc_graphs as graphs
from tests.support import waiting

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0
CODE = str(Path(repro.__file__).parent.parent)
RELOADS = '<meta http-equiv="refresh"'
#: Says something and waits for a file; `after` needs what it makes.
TALKING = """
import pathlib, time
print("3 of 7 & <more>", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
assert pathlib.Path("go").read_text() == "on"
pathlib.Path("said.out").touch()
"""
GRAPH = """
stages:
  talking:
    cmd: python talking.py
    outs: [said.out]
  after:
    cmd: python put.py after.out said.out
    deps: [said.out]
    outs: [after.out]
"""
#: A stage of the project's, by its name, whose outs are made by hand.
JUDGE = """
stages:
  reward_merged:
    cmd: python put.py data/reward_merged/x y
    outs: [data/reward_merged]
    metrics: [data/metrics/reward_merged.json: {cache: false}]
"""


until = partial(waiting.until, seconds=DEADLINE_S)


def start(root: Path) -> subprocess.Popen[bytes]:
    env = {**os.environ, "PYTHONPATH": CODE}
    return subprocess.Popen(
        [sys.executable, "-m", "pipelines.repro"], cwd=root, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )


def test_it_shows_what_runs_and_what_it_said_and_in_the_end_that_all_is_done(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", GRAPH, talking__py=TALKING)
    page = root / PAGE
    run = start(root)
    until(lambda: page.is_file() and "3 of 7" in page.read_text())
    shown = page.read_text()
    assert "3 of 7 &amp; &lt;more&gt;" in shown and RELOADS in shown and "0 of 2 stages done" in shown
    assert (
        '<li class="runs"><span class="name">talking' in shown and '<li class="waits"><span class="name">after' in shown
    )
    (root / "go").write_text("on")
    said = run.communicate(timeout=DEADLINE_S)[0].decode()
    assert run.returncode == 0 and said.splitlines()[0] == f"watch: {page.resolve().as_uri()}"
    shown = page.read_text()
    assert "All stages done" in shown and RELOADS not in shown and shown.count('<li class="done">') == 2


def test_a_failure_is_on_it_with_the_last_line(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", GRAPH, talking__py="raise SystemExit('no ink')")
    assert repro.reproduce(root, jobs=2) == 1
    shown = (root / PAGE).read_text()
    assert "A stage failed" in shown and "no ink" in shown and RELOADS not in shown
    assert '<li class="failed">' in shown and '<li class="waits"><span class="name">after' in shown


def test_a_stopped_run_leaves_no_page_that_goes_on_reloading(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", GRAPH, talking__py=TALKING)
    run = start(root)
    until(lambda: (root / PAGE).is_file() and "3 of 7" in (root / PAGE).read_text())
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=DEADLINE_S)
    shown = (root / PAGE).read_text()
    assert "Stopped after 0 of 2 stages" in shown and RELOADS not in shown
    assert '<li class="stopped"><span class="name">talking' in shown


def test_nothing_to_do_writes_no_page(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    root = graphs.make_chain(tmp_path / "project")
    graphs.dvc(root, "repro", "-q")
    assert repro.reproduce(root, jobs=2) == 0
    assert not (root / PAGE).exists() and "watch:" not in capfd.readouterr().out


def test_a_page_that_cannot_be_written_stops_no_stage(tmp_path: Path) -> None:
    root = graphs.make_chain(tmp_path / "project")
    (root / ".paco").write_text("a file where a folder should be")
    assert repro.reproduce(root, jobs=2) == 0


def test_pictures_and_figures_are_those_of_the_assets(tmp_path: Path) -> None:
    root = graphs.make(tmp_path / "project", JUDGE)
    stage = DvcProject(root).stages["reward_merged"]
    assert figures_of(root, stage) == ""
    (broken,) = sheets_of(root, stage)
    assert broken.url == "" and broken.alt.startswith("no picture: ") and "golden.json" in broken.alt
    folder = root / "data/reward_merged"
    folder.mkdir(parents=True)
    Image.new("RGB", (8, 8), "red").save(folder / "a.png")
    pair = {"first": "a.png", "second": "a.png", "score": 0.5, "instruction": "?"}
    (folder / "golden.json").write_text(json.dumps({"pairs": [pair]}))
    (root / "data/metrics").mkdir()
    (root / "data/metrics/reward_merged.json").write_text('{"margin.worst": 0.25, "margin.mean": null, "pairs": 32}')
    assert figures_of(root, stage) == "margin.worst 0.25"
    (sheet,) = sheets_of(root, stage)
    assert sheet == Sheet("reward_merged", "golden pairs, first and second", sheet.url)
    assert sheet.url.startswith("data:image/webp;base64,")
    project = DvcProject(root)
    with ProgressPage(project, {"reward_merged"}) as page:
        assert "Pictures appear here" in (root / PAGE).read_text()
        page.done("reward_merged", 61.0, failed=False)
    shown = (root / PAGE).read_text()
    assert sheet.url in shown and "margin.worst 0.25" in shown and "1:01" in shown
