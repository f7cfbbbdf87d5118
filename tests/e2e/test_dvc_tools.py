"""What people do with plain DVC around the graph: curves, differences, an experiment with other parameters."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from tests.e2e.conftest import changed_stages
from tests.support.chromium import chromium

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]
Dvc = Callable[..., subprocess.CompletedProcess[str]]
#: Keeps the charts that the page makes, for their data.
KEEP = """window.charts = []; Object.defineProperty(window, "vegaEmbed", {
    set(embed) { this.keep = (place, spec) => embed(place, spec).then(chart => window.charts.push(chart.view)); },
    get() { return this.keep; },
})"""


def declared_plots(project: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load((project / "dvc.yaml").read_text())["plots"])


def test_plots_draw_every_declared_curve(smoke: Path, dvc: Dvc, tmp_path: Path) -> None:
    done = dvc("plots", "show", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    html = (tmp_path / "index.html").read_text()
    for plot in declared_plots(smoke):
        (shown,) = plot.values()
        assert shown["title"] in html
    data = json.loads(dvc("plots", "show", "--json").stdout)
    assert {"reward_loss", "reward_accuracy", "policy_rewards"} <= set(data.get("data", data))


def test_the_page_of_plots_draws_every_measured_value_without_internet(smoke: Path, dvc: Dvc) -> None:
    """DVC's own page links to Vega on a public server, and draws an empty cell of a log as 0."""
    assert dvc("plots", "show").returncode == 0
    with chromium() as browser:
        page = browser.new_context(offline=True).new_page()
        page.add_init_script(KEEP)
        page.goto((smoke / "dvc_plots" / "index.html").as_uri())
        page.wait_for_function(f"window.charts.length == {len(declared_plots(smoke))}")
        drawn = page.evaluate("window.charts.at(-1).data('data_0')")
    log = pd.read_csv(smoke / "data" / "policies" / "flux_t2is" / "training_log.csv")
    for column in ("reward/consistency", "reward/clip_t"):
        rows = [row for row in drawn if row["filename::field"] == f"flux_t2is/training_log.csv::{column}"]
        assert [float(row["dvc_inferred_y_value"]) for row in rows] == pytest.approx(list(log[column].dropna()))


def test_an_experiment_with_other_parameters_is_told_apart(smoke: Path, dvc: Dvc) -> None:
    """`dvc exp run -S` edits parameters through hydra, whose ANTLR is not the one that DVC asks for."""
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@t"]
    subprocess.run([*git, "add", "-A"], cwd=smoke, check=True)
    subprocess.run([*git, "commit", "--allow-empty", "-qm", "a run"], cwd=smoke, check=True)
    params = (smoke / "params.yaml").read_text()
    before = yaml.safe_load(params)["pairs"]["validation_share"]
    try:
        done = dvc("exp", "run", "--single-item", "-S", f"pairs.validation_share={before * 2}", "pairs")
        assert done.returncode == 0, done.stderr[-3000:]
        changed = json.loads(dvc("params", "diff", "--json").stdout)["params.yaml"]
        share = changed["pairs.validation_share"]
        assert (share["old"], share["new"]) == (before, before * 2)
        figures = json.loads(dvc("metrics", "diff", "--all", "--json").stdout)
        assert "train" in figures["data/metrics/pairs.json"]
        assert "pairs.validation_share" in dvc("exp", "show", "--json").stdout or dvc("exp", "list").stdout.strip()
    finally:
        subprocess.run(["git", "checkout", "-q", "--", "."], cwd=smoke, check=True)
        dvc("checkout", "-q")
    assert changed_stages(dvc) == set()
