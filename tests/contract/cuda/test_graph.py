"""The whole graph on the pretended machine: processes as they are, a stand-in for nvidia-smi, two stages at a time."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from tests.support import pretended_cuda
from tests.support.project_copy import smoke_project

pytestmark = [pytest.mark.faults, pytest.mark.timeout(3600)]
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def root(repository: Path, mlflow_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The profile *smoke* with every device a GPU."""
    folder = tmp_path_factory.mktemp("pretended") / "paco"
    smoke_project(repository, mlflow_template, folder)
    file = folder / "params.yaml"
    text, changed = re.subn(r"\bdevice: cpu\b", "device: cuda", file.read_text())
    assert changed == 6
    file.write_text(text)
    return folder


@pytest.fixture
def python(root: Path, monkeypatch: pytest.MonkeyPatch) -> Python:
    """A Python program in the project, which knows nothing of the pretence."""
    monkeypatch.setenv("PYTHONPATH", str(root))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    env = {**os.environ, **pretended_cuda.environment(gpus=2)}
    return lambda *words: subprocess.run([sys.executable, *words], cwd=root, env=env, capture_output=True, text=True)


def test_the_whole_graph_runs_and_its_figures_are_numbers(root: Path, python: Python) -> None:
    result = python("-m", "dvc_project.repro", "--jobs", "2")
    assert result.returncode == 0, result.stdout[-5000:] + result.stderr[-5000:]
    stages = yaml.safe_load((root / "dvc.lock").read_text())["stages"]
    assert {"reward_lora", "reward_merged", "policies@flux_t2is", "policies@qwen_edit", "t2is", "report"} <= set(stages)
    for name in ("reward_lora", "policies-flux_t2is", "policies-kontext_edit", "policies-qwen_edit", "gedit", "report"):
        assert json.loads((root / f"data/metrics/{name}.json").read_text()), name
    assert not re.search(r"\bnan to |to [+-]?nan\b", result.stdout), "intervals of a single value are left out"


def test_doctor_lists_the_gpus_as_the_plan_counts_them(python: Python) -> None:
    result = python("-m", "paco_core", "doctor")
    assert result.returncode == 0, result.stderr
    assert re.search(r"^GPUs: 0 \(86 GB\), 1 \(86 GB\); driver ", result.stdout, re.MULTILINE)
    assert re.search(r"^torch sees: CUDA .* Pretended GPU$", result.stdout, re.MULTILINE)
