"""Trainings in two processes that accelerate really starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml
from safetensors.torch import load_file

from tests.support.listeners import watched

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]


def _aside(root: Path, folder: Path) -> Path:
    """A project that reads what ``root`` made, and has its own trainings, parameters and code files."""
    excluded = {".git", ".dvc", ".paco", "params.yaml", "mlflow.db", "data"}
    trained = {"reward_lora", "policies", "metrics", "runs", "code"}
    (folder / "data").mkdir(parents=True)
    for path in [p for p in root.iterdir() if p.name not in excluded]:
        (folder / path.name).symlink_to(path)
    for path in [p for p in (root / "data").iterdir() if p.name not in trained]:
        (folder / "data" / path.name).symlink_to(path)
    return folder


SHARDED = {"PACO_LAUNCHER": "accelerate", "PACO_ACCELERATE_CONFIG": "launch/fsdp2-cpu.yaml", "PACO_TRACKING": "off"}


def test_accelerate_trains_a_policy_in_two_processes(smoke: Path, tmp_path: Path) -> None:
    root = _aside(smoke, tmp_path / "project")
    tree = yaml.safe_load((smoke / "params.yaml").read_text())
    tree["policies"]["defaults"].update(
        epochs=1, eval_every=1, rollout_batch=4
    )  # eight samples: a batch for each process
    (root / "params.yaml").write_text(yaml.safe_dump(tree))
    environment = {**os.environ, **SHARDED, "PYTHONPATH": str(root)}
    for verb in ("code", "run policies --item flux_t2is"):
        command = [sys.executable, "-m", "paco_core", *verb.split()]
        result = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr[-3000:]
    messages = [line for line in result.stderr.splitlines() if "2 processes share the work" in line]
    assert len(messages) == 1, "the first process speaks for both"
    log = pd.read_csv(root / "data/policies/flux_t2is/training_log.csv")
    assert list(log["epoch"]) == [0, 1] and log["eval/64/gold_consistency"].notna().all()
    single_process = pd.read_csv(smoke / "data/policies/flux_t2is/training_log.csv")
    assert log["eval/64/gold_consistency"][0] == single_process["eval/64/gold_consistency"][0], (
        "every process has every weight"
    )


def test_two_processes_train_the_reward_that_one_trains(smoke: Path, tmp_path: Path) -> None:
    root = _aside(smoke, tmp_path / "project")
    (root / "params.yaml").write_text((smoke / "params.yaml").read_text())
    environment = {**os.environ, **SHARDED, "PYTHONPATH": str(root)}
    command = [sys.executable, "-m", "paco_core", "run", "reward_lora"]
    log = tmp_path / "log"
    with log.open("wb") as written:
        training = subprocess.Popen(command, cwd=root, env=environment, stdout=written, stderr=written)
    with watched(training.pid) as addresses:
        assert training.wait() == 0, log.read_text()[-3000:]
    assert addresses == {"127.0.0.1"}
    single_process, shared = (
        load_file(place / "data/reward_lora/adapter/adapter_model.safetensors") for place in (smoke, root)
    )
    assert single_process.keys() == shared.keys()
    for name, tensor in single_process.items():
        # Adam divides a gradient by its own size. If it is almost zero, the order of a sum decides its sign, and the
        # weight moves the other way by up to the learning rate. Gradients that differ would move most weights.
        difference = shared[name] - tensor
        assert difference.norm() <= 0.01 * tensor.norm() and (difference.abs() > 1e-4).float().mean() <= 0.01, name
    logs = [pd.read_csv(place / "data/reward_lora/training_log.csv") for place in (smoke, root)]
    for column in ("loss", "gradient_norm", "validation_roc_auc"):
        assert logs[1][column].to_list() == pytest.approx(logs[0][column].to_list(), rel=1e-3, nan_ok=True), column
    assert log.read_text().count("epoch 1: accuracy") == 1, "the first process alone reports"
