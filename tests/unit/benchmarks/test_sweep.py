"""The sweep over alpha: what a point means, and tables of its experiments. The experiments of DVC are stood in for."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from paco_core.benchmarks.ranking_metrics import METRICS
from paco_core.config.changes import changed
from paco_core.config.params import PARAMS_FILE, load
from paco_core.experiments.grid import Cell, Grid
from paco_core.experiments.reward_sweep import VALIDATION, run_reward_sweep, variant
from paco_core.io import paths
from paco_core.io.files import DataError
from tests.support.reproduced import commit, finish, stand_in


@pytest.fixture
def trained(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, int]]:
    """A project with pairs; loss, alpha and seed of each reward model that was trained since."""
    (project / paths.PAIRS).mkdir(parents=True)
    (project / paths.PAIRS / "benchmark.parquet").touch()
    commit(project)
    cells: list[tuple[str, float, int]] = []

    def run(grid: Grid, name: str, cell: Cell) -> None:
        reward = changed(load(grid.root / PARAMS_FILE), cell.changes).reward
        cells.append((reward.loss, reward.alpha, reward.seed))
        out = grid.root / "experiments" / name
        levels = {"reward": 0.5 + reward.seed / 10 + reward.alpha / 10, "base": 0.4, "random": 0.25}
        rows = [
            {
                "instance_id": f"i{n}",
                "prompt_id": f"p{n // 2}",
                "method": method,
                **dict.fromkeys(METRICS, level + n / 100),
            }
            for method, level in levels.items()
            for n in range(12)
        ]
        (out / paths.CONSISTENCY_RANK).mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(out / paths.CONSISTENCY_RANK / "per_instance.parquet")
        metrics = out / paths.metrics_file(paths.REWARD_LORA.name)
        metrics.parent.mkdir(parents=True)
        metrics.write_text(json.dumps(dict.fromkeys(VALIDATION, reward.seed + 1.0)))
        finish(grid, name)

    stand_in(monkeypatch, run)
    return cells


def test_a_sweep_trains_each_cell_once_and_compares_with_the_base(
    project: Path, trained: list[tuple[str, float, int]]
) -> None:
    small = ["consistency_rank.bootstrap=50"]
    text = run_reward_sweep(project, ["0.3", "fast"], [0, 1], small, "try")
    alpha = load(project / PARAMS_FILE).reward.alpha
    assert trained == [("weighted", 0.3, 0), ("weighted", 0.3, 1), ("plain", alpha, 0), ("plain", alpha, 1)]
    assert "\n| 0.3 | " in text
    out = project / "data" / "sweeps" / "try"
    results = json.loads((out / "results.json").read_text())
    assert results["0.3"]["seeds"] == 2 and results["base"]["gain"] is None
    assert results["0.3"]["metrics"]["accuracy"]["mean"] == pytest.approx(0.5 + 0.05 + 0.03 + 0.055)
    assert results["0.3"]["metrics"]["accuracy"]["groups"] == 6, "prompts are drawn"
    assert results["0.3"]["gain"]["accuracy"]["mean"] == pytest.approx(0.1 + 0.05 + 0.03)
    assert results["0.3"]["seed_standard_deviation"]["accuracy"] == pytest.approx(np.std([0.5, 0.6], ddof=1))
    assert results["0.3"]["validation"]["roc_auc"] == 1.5 and results["base"]["validation"] == {}
    assert run_reward_sweep(project, ["0.3", "fast"], [0, 1], small, "try") == text and len(trained) == 4


def test_points_of_a_sweep() -> None:
    assert variant("1/n").changes == {"reward.loss": "plain", "reward.answers": "reasons"}
    assert variant("0.01").changes["reward.alpha"] == 0.01 and variant("default").changes == {}
    for wrong in ("1.5", "half"):
        with pytest.raises(DataError):
            variant(wrong)


def test_a_sweep_names_each_point_once_and_needs_the_benchmark(project: Path) -> None:
    for points in (["0.1", "0.1"], ["0.1"]):
        with pytest.raises(DataError):
            run_reward_sweep(project, points, [0], [], "x")
