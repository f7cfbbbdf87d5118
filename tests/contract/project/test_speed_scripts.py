"""The scripts that measure a GPU, at a tiny size."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

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
    assert len(epochs) == len(gpu.EPOCHS) - 1 and all(re.search(r" \| 16 \| 1[2-6] \| ", line) for line in epochs)
    assert {line.split(" | ")[2] for line in epochs} == {"no"}  # compiling takes minutes on a CPU
    phases_run = [tuple(line.split(" | "))[0:3:2] for line in rows if line not in epochs]
    assert phases_run == [(f"| {policy}", phase) for policy in gpu.POLICIES for phase in phases]
    assert re.search(r"\| pairs/s \| peak GB \| tokens a pair \| MFU \|\n.*\n\| [\d.]+ \|", tables)
    assert "| merge |" in tables and "| serving, transformers |" in tables and "pairs/s" in tables


def test_the_page_keeps_what_was_measured_before_a_script_fails_or_time_is_up(
    gpu: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page, calls = tmp_path / "page.md", iter([[{"epoch": 1}], [{"script": "a b", "error": "out of memory"}]])
    clock = iter([0.0, 1.0, 2.0, 61.0, 119.0, 121.0])
    measured = [gpu.Measurement("Epochs", "gpu_epoch", [str(number)]) for number in range(3)]
    monkeypatch.setattr(gpu, "measurements", lambda *_: measured)
    monkeypatch.setattr(gpu.Measurement, "run", lambda _: next(calls))
    monkeypatch.setattr(gpu, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(gpu, "machine", lambda _: "a GPU")
    monkeypatch.setattr(gpu.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu.torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(gpu, "RECORD", tmp_path / "record.json")
    (tmp_path / "record.json").write_text("[]")
    gpu.main(["--engine", "transformers", "--minutes", "2", "--page", str(page)])
    figures = page.read_text().partition(gpu.BEGIN)[2].partition(gpu.END)[0]
    assert [line for line in figures.splitlines() if line.startswith("|")][2:] == [
        "| 1 |  |  |",
        "|  | a b | out of memory |",
    ]
    assert "gpu_epoch 2" in capsys.readouterr().err


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
    for (name, _, profile, *_), _ in gpu.EPOCHS:
        row = gpu_epoch.measure(name, profile, "cuda", repository)
        assert row["error"] == f"skipped: {row['plan GB']:.1f} GB by the plan, 8.0 GB are free on this GPU"
        assert row["plan GB"] > 8 and "sample s" not in row
