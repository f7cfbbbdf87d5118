"""Runs side by side: what differs is shown, what is equal is not, and axes are common."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from PIL import Image

from paco_core.comparison import page
from paco_core.comparison.collect import Runs
from paco_core.comparison.command import compare
from paco_core.files import DataError
from paco_core.tracking import open_run


@pytest.fixture
def runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two trainings of one family: the second takes twice the updates for the same samples."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    ids = []
    for name, updates, colour in (("policies/a/smoke/seed0", 1, "red"), ("policies/b/smoke/seed0", 2, "blue")):
        with open_run(project, "paco/policies/flux", name, {"git.commit": "c" * 40}) as tracker:
            tracker.params({"policies": {"updates_per_epoch": updates, "loss": "ppo"}})
            tracker.dataset("reward_merged", "data/reward_merged", f"{updates}.dir")
            for epoch in range(4):
                tracker.metrics(
                    {"eval/64/consistency": 0.1 * epoch * updates, "samples_seen": epoch * 96}, epoch * updates
                )
                if epoch in (0, 3):
                    tracker.image(Image.new("RGB", (16, 16), colour), "unseen_64px", epoch * updates)
            ids.append(str(tracker.run_id))
    return ids


def test_table_and_page(project: Path, runs: list[str]) -> None:
    text = compare(project, [runs[0][:12], "policies/b/smoke/seed0"], project / "out.html")
    (figure,) = [line for line in text.splitlines() if line.startswith("eval/64/consistency")]
    assert figure.split() == ["eval/64/consistency", "0.3", "0.6", "+0.3"]
    assert "policies.updates_per_epoch" in text and "policies.loss" not in text
    assert re.search(r"reward_merged +1\.dir +2\.dir", text)
    html = (project / "out.html").read_text()
    assert html.count("data:image/") == 4 and "samples seen" in html and "policies/b/smoke/seed0" in html
    assert "http" not in re.sub(r"https?://127\.0\.0\.1:5000/#/[^\"]*", "", html), "the page needs nothing from outside"


def test_pictures_meet_at_equal_samples_though_their_steps_differ(project: Path, runs: list[str]) -> None:
    store = Runs(project)
    found = [store.find(run) for run in runs]
    assert page.axis(found) == "samples seen"
    rows = page.picture_rows(found, store.picture)["unseen_64px"]
    assert [row.moment for row in rows] == ["0 samples seen", "288 samples seen"]
    assert all(cell is not None for row in rows for cell in row.cells)
    (drawn,) = [c for c in page.curve_charts(page.columns(found)) if c["title"] == "eval/64/consistency"]
    assert "[0]: 0 at 0, 0.3 at 288; [1]: 0 at 0, 0.6 at 288" in drawn["svg"]


def test_runs_that_are_not_there_or_are_meant_twice(project: Path, runs: list[str]) -> None:
    with pytest.raises(DataError, match=r"no run is called 'policies/c'.*policies/b/smoke/seed0"):
        compare(project, ["policies/c"], project / "out.html")
    with pytest.raises(DataError, match="named twice"):
        compare(project, [runs[0], "policies/a/smoke/seed0"], project / "out.html")
    with pytest.raises(DataError, match="has no run"):
        compare(project, ["0" * 32], project / "out.html")
    assert not (project / "out.html").exists()


def test_names_from_outside_are_escaped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    with open_run(project, "paco/x", "<script>alert(1)</script>", {}) as tracker:
        tracker.params({"<b>": "<i>"})
    compare(project, [str(tracker.run_id)], project / "out.html")
    assert "<script>" not in (project / "out.html").read_text()
