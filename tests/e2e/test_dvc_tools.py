"""DVC's own commands on the graph: plots, diffs, and an experiment with other parameters."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

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


def test_the_page_of_plots_draws_every_measured_value_without_internet(smoke: Path, dvc: Dvc) -> None:
    """DVC's own page links to Vega on a public server, and draws an empty cell of a log as 0."""
    assert dvc("plots", "show").returncode == 0
    with chromium() as browser:
        page = browser.new_context(offline=True).new_page()
        page.add_init_script(KEEP)
        page.goto((smoke / "dvc_plots" / "index.html").as_uri())
        page.wait_for_function(f"window.charts.length == {len(declared_plots(smoke))}")
        points = page.evaluate("window.charts.at(-1).data('data_0')")
    log = pd.read_csv(smoke / "data" / "policies" / "flux_t2is" / "training_log.csv")
    for column in ("reward/consistency", "reward/clip_t"):
        rows = [row for row in points if row["filename::field"] == f"flux_t2is/training_log.csv::{column}"]
        assert [float(row["dvc_inferred_y_value"]) for row in rows] == pytest.approx(list(log[column].dropna()))
