"""A training under `PACO_LAUNCHER=accelerate`: two processes that accelerate really starts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]


def _aside(root: Path, folder: Path) -> Path:
    """A project that reads what ``root`` made, and keeps its own policies and parameters."""
    own = {".git", ".dvc", ".paco", "params.yaml", "mlflow.db", "data"}
    (folder / "data").mkdir(parents=True)
    for path in [p for p in root.iterdir() if p.name not in own]:
        (folder / path.name).symlink_to(path)
    for path in [p for p in (root / "data").iterdir() if p.name not in {"policies", "metrics", "runs"}]:
        (folder / "data" / path.name).symlink_to(path)
    return folder


def test_accelerate_trains_a_policy_in_two_processes(smoke: Path, tmp_path: Path) -> None:
    root = _aside(smoke, tmp_path / "project")
    tree = yaml.safe_load((smoke / "params.yaml").read_text())
    tree["policies"].update(epochs=1, eval_every=1, rollout_batch=4)  # eight samples: a batch for each process
    (root / "params.yaml").write_text(yaml.safe_dump(tree))
    environment = {**os.environ, "PYTHONPATH": str(root), "PACO_LAUNCHER": "accelerate", "PACO_TRACKING": "off"}
    command = [sys.executable, "-m", "paco_core", "run", "policies", "--item", "flux_t2is"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    told = [line for line in done.stderr.splitlines() if "2 processes share the work" in line]
    assert len(told) == 1, "the first process speaks for both"
    log = pd.read_csv(root / "data/policies/flux_t2is/training_log.csv")
    assert list(log["epoch"]) == [0, 1] and log["eval/64/gold_consistency"].notna().all()
    assert (root / "data/policies/flux_t2is/adapter/pytorch_lora_weights.safetensors").is_file()
    assert (root / "data/metrics/policies-flux_t2is.json").is_file()
