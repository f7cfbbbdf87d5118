"""The scripts that measure a GPU, at a tiny size."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.pretended_cuda import pretended


@pytest.fixture
def gpu(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository))
    return importlib.import_module("speed.gpu")


@pytest.mark.thorough
@pytest.mark.timeout(600)
def test_every_line_of_the_gpu_suite_runs_with_small_weights(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    gpu.main(["--tiny", "--device", "cpu", "--engine", "transformers"])
    tables = capsys.readouterr().out
    phases = ["rollout", "trained pass", "decoding", "evaluation"]
    trained = [line for line in tables.splitlines() if line.startswith("| flux | ")]
    assert [line.split(" | ")[1] for line in trained] == ["ppo", "nft"] and all("| yes |" in line for line in trained)
    rows = [line for line in tables.splitlines() if "| 64 |" in line]
    epochs = [line for line in rows if line.startswith("| data/zoo/")]
    assert len(epochs) == len(gpu.EPOCHS) and all(re.search(r" \| 16 \| 1[2-6] \| ", line) for line in epochs)
    phases_run = [tuple(line.split(" | "))[0:3:2] for line in rows if line not in epochs]
    assert phases_run == [(f"| {policy}", phase) for policy in gpu.POLICIES for phase in phases]
    assert re.search(r"\| pairs/s \| peak GB \| tokens a pair \| MFU \|\n.*\n\| [\d.]+ \|", tables)
    assert "| merge |" in tables and "| serving, transformers |" in tables and "pairs/s" in tables


@pytest.fixture
def gpu_epoch(gpu: ModuleType) -> ModuleType:
    return importlib.import_module("speed.gpu_epoch")


@pytest.mark.thorough
def test_an_epoch_of_the_trainer_is_measured_part_by_part(gpu_epoch: ModuleType, repository: Path) -> None:
    with pretended():
        row = gpu_epoch.measure("flux_t2is", "klein_storybook", "cuda", repository)
    assert "error" not in row, row
    parts = [row[f"{part} s"] for part in ("sample", "decode", "optimise", "evaluate")]
    assert 12 <= row["trained"] <= row["pictures"] == 16 and row["ratio gap"] < 1e-4 and row["plan GB"] > 0
    assert all(seconds > 0 for seconds in parts) and sum(parts) < row["all s"]


def test_a_gpu_that_is_too_small_for_an_epoch_is_a_row_with_the_planned_number(
    gpu: ModuleType, gpu_epoch: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_epoch, "free_gb", lambda _device: 8.0)
    for name, profile, _ in gpu.EPOCHS:
        row = gpu_epoch.measure(name, profile, "cuda", repository)
        assert row["error"] == f"skipped: {row['plan GB']:.1f} GB by the plan, 8.0 GB are free on this GPU"
        assert row["plan GB"] > 8 and "sample s" not in row
