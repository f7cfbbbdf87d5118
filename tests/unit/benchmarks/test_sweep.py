"""The sweep over alpha on a miniature: cells once, one parent, honest tables."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import mlflow
import numpy as np
import pytest

from paco_core.cli.sweep import sweep
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import ParamsError, RewardParams, load
from paco_core.experiments import reward_sweep
from paco_core.experiments.reward_sweep import variant
from paco_core.io.file_locks import hold
from paco_core.io.files import DataError
from paco_core.runtime.tracking import Tracker, tracking_uri
from tests.support.reward_project import fill, fill_benchmark

pytestmark = pytest.mark.slow

SMALL = [
    "reward.epochs=1", "reward.batch_size=4", "reward.lora.rank=2", "consistency_rank.clip=null",
    "consistency_rank.bootstrap=50",
]  # fmt: skip


def test_a_sweep_trains_each_cell_once_and_tells_one_parent(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(project)
    fill_benchmark(project)
    trained: list[tuple[str, float, int]] = []
    train = reward_sweep.Sweep._train

    def counted(self: reward_sweep.Sweep, reward: RewardParams, folder: Path, tracker: Tracker) -> dict[str, Any]:
        trained.append((reward.loss, reward.answers, reward.seed))
        return train(self, reward, folder, tracker)

    monkeypatch.setattr(reward_sweep.Sweep, "_train", counted)
    text = sweep(project, ["0.3", "fast"], [0, 1], SMALL, "try")
    assert trained == [
        (loss, answers, seed) for loss, answers in (("weighted", "reasons"), ("plain", "decision")) for seed in (0, 1)
    ]
    for name in ("0.3", "fast", "base", "random"):
        assert f"\n| {name} | " in text
    out = project / "data" / "sweeps" / "try"
    results = json.loads((out / "results.json").read_text())
    assert results["fast"]["seeds"] == 2 and results["base"]["gain"] is None
    assert results["fast"]["metrics"]["accuracy"]["groups"] == 6
    assert results["random"]["metrics"]["accuracy"]["mean"] == 0.25, "what a random order is expected to reach"
    cells = [json.loads((out / "cells" / f"fast-seed-{seed}" / "result.json").read_text()) for seed in (0, 1)]
    mean = np.mean([cell["validation"]["calibration_error"] for cell in cells])
    assert results["fast"]["validation"]["calibration_error"] == pytest.approx(mean)
    assert "<table>" in (out / "results.html").read_text()

    shutil.rmtree(out / "cells" / "fast-seed-1")  # as if it had been stopped before the last one
    again = sweep(project, ["0.3", "fast"], [0, 1], SMALL, "try")
    assert len(trained) == 5 and again == text

    client = mlflow.MlflowClient(tracking_uri(project))
    experiment = client.get_experiment_by_name("paco/sweep")
    runs = client.search_runs([experiment.experiment_id], order_by=["attributes.start_time DESC"])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    assert len(parents) == 2 and all(run.info.status == "FINISHED" for run in runs)
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert sorted(run.info.run_name for run in children) == ["0.3/seed-0", "0.3/seed-1", "fast/seed-0", "fast/seed-1"]
    assert all("accuracy" in run.data.metrics for run in children)
    assert any("train/loss" in run.data.metrics for run in children)


def test_cells_that_another_command_trains_are_left_out(project: Path) -> None:
    fill(project)
    fill_benchmark(project)
    with hold(project / "data" / "sweeps" / "try" / "cells" / ".1-over-n-seed-0.lock"):
        text = sweep(project, ["1/n"], [0], SMALL, "try")
    assert "\n| base | 1 |" in text and "\n| 1/n | " not in text


def test_points_of_a_sweep() -> None:
    assert variant("1/n").changes == {"reward.loss": "plain", "reward.answers": "reasons"}
    assert variant("0.01").changes["reward.alpha"] == 0.01 and variant("default").changes == {}
    for wrong in ("1.5", "half"):
        with pytest.raises(DataError, match="number from 0 to 1, 1/n, fast or default"):
            variant(wrong)


def test_what_is_wrong_with_a_sweep_is_said(project: Path) -> None:
    params = load(project / "params.yaml")
    assert changed(params, changes_of(["reward.epochs=5"])).reward.epochs == 5
    with pytest.raises(DataError, match="expected key=value"):
        changes_of(["reward.epochs"])
    with pytest.raises(ParamsError, match="did you mean 'epochs'"):
        changed(params, {"reward.epoch": 5})
    with pytest.raises(DataError, match="is given twice"):
        sweep(project, ["0.1", "0.1"], [0], [], "x")
    with pytest.raises(DataError, match="no such folder|missing; run `dvc repro"):
        sweep(project, ["0.1"], [0], [], "x")
