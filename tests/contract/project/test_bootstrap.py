"""Setting up: what is in the way is told before anything is fetched, and what was interrupted heals."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

PREREQUISITES = (
    "locks/dev.txt", "pyproject.toml", "packages/dvc-project/pyproject.toml", "packages/dagster-dvc/pyproject.toml",
    "tools/bootstrap.py", "tools/cuda-only.txt", "tools/cuda_stubs.py",
)  # fmt: skip


@pytest.fixture
def bootstrap(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script, as if it lay in an empty project on a roomy disk; nothing that it starts is run."""
    spec = importlib.util.spec_from_file_location("bootstrap", repository / "tools/bootstrap.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "tools").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "__file__", str(tmp_path / "tools/bootstrap.py"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=50e9))
    monkeypatch.setattr(module.sys, "platform", "linux")
    monkeypatch.setattr(module.platform, "machine", lambda: "x86_64")
    return module


class Started(list[str]):
    """Commands that would have been run; those with ``broken`` among their words fail."""

    def __init__(self, module: Any, monkeypatch: pytest.MonkeyPatch, *broken: str) -> None:
        super().__init__()
        self._broken = broken
        monkeypatch.setattr(module.subprocess, "run", self._run)

    def _run(self, command: tuple[str, ...], **_kwargs: Any) -> SimpleNamespace:
        self.append(" ".join(command))
        if "venv" in command:
            Path(command[-1]).mkdir(exist_ok=True)
        return SimpleNamespace(returncode=int(any(words in self[-1] for words in self._broken)))


def test_an_old_python_is_told_before_anything_is_started(bootstrap: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(bootstrap, monkeypatch)
    monkeypatch.setattr(bootstrap.sys, "version_info", (3, 9, 1))
    with pytest.raises(SystemExit, match=r"Python 3\.9 found, 3\.11, 3\.12 or 3\.13 needed; .*PYTHON=python3\.12"):
        bootstrap.main(gpu=False)
    assert not started


EXCLUDING = "--require-hashes -r locks/dev.txt --excludes tools/cuda-only.txt"


@pytest.mark.parametrize(
    ("gpu", "machine", "cuda"), [(False, "x86_64", False), (True, "x86_64", True), (False, "aarch64", True)]
)
def test_cuda_is_left_out_where_no_gpu_is(
    bootstrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, machine: str, cuda: bool
) -> None:
    (tmp_path / ".venv").mkdir()
    monkeypatch.setattr(bootstrap.platform, "machine", lambda: machine)
    started = Started(bootstrap, monkeypatch)
    bootstrap.main(gpu=gpu)
    assert any(EXCLUDING in command for command in started) is not cuda
    assert f"{bootstrap.PYTHON} tools/cuda_stubs.py" in started
    assert (tmp_path / ".venv/.ready").is_file() and (tmp_path / ".venv/.ready-gpu").is_file() is cuda


def test_an_environment_with_cuda_keeps_it_up_to_date(
    bootstrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's login node without a GPU must not leave its nodes with half of a newer PyTorch."""
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready-gpu").write_text(str(tmp_path))
    started = Started(bootstrap, monkeypatch)
    bootstrap.main(gpu=False)
    assert not any("--excludes" in command for command in started)


def test_cuda_is_added_where_pytorch_does_not_load_without(
    bootstrap: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".venv").mkdir()
    started = Started(bootstrap, monkeypatch, "tools/cuda_stubs.py")
    with pytest.raises(SystemExit, match=r"tools/cuda_stubs\.py` failed"):
        bootstrap.main(gpu=False)  # nothing helps this PyTorch
    installs = ["--excludes" in command for command in started if "uv pip install" in command]
    assert installs == [True, False] and "PyTorch does not load without CUDA here" in capsys.readouterr().out
    assert not (tmp_path / ".venv/.ready").exists()


@pytest.mark.thorough
def test_a_real_environment_that_lost_its_pip_heals(bootstrap: Any, tmp_path: Path) -> None:
    python = ".venv/bin/python"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", ".venv"], check=True)  # an interrupted one is so
    (tmp_path / ".venv/left-over").write_text("")
    bootstrap.make_environment(python, str(tmp_path))
    assert subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0
    assert not (tmp_path / ".venv/left-over").exists()
    (tmp_path / ".venv/kept").write_text("")
    (tmp_path / ".venv/.ready").write_text(str(tmp_path))
    bootstrap.make_environment(python, str(tmp_path))
    assert (tmp_path / ".venv/kept").exists()
    (tmp_path / ".venv/.ready").write_text("/elsewhere")  # of a folder that was copied, or moved here
    bootstrap.make_environment(python, str(tmp_path))
    assert not (tmp_path / ".venv/kept").exists()


def test_make_runs_nothing_when_nothing_changed(repository: Path, tmp_path: Path) -> None:
    for name in ("Makefile", *PREREQUISITES):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(repository / name, tmp_path / name)

    def up_to_date(gpu: str = "") -> bool:
        return subprocess.run(["make", "-q", "setup", f"GPU={gpu}"], cwd=tmp_path, capture_output=True).returncode == 0

    assert not up_to_date()
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv/.ready").write_text("/elsewhere")
    assert not up_to_date(), "the folder was copied, or moved"
    (tmp_path / ".venv/.ready").write_text(str(tmp_path))
    assert up_to_date()
    for name in PREREQUISITES:
        later = (tmp_path / ".venv/.ready").stat().st_mtime + 5
        os.utime(tmp_path / name, (later, later))
        assert not up_to_date(), name
        os.utime(tmp_path / ".venv/.ready", (later + 1, later + 1))
        assert up_to_date()
    assert not up_to_date(gpu="1"), "a GPU came"
    (tmp_path / ".venv/.ready-gpu").write_text(str(tmp_path))
    os.utime(tmp_path / ".venv/.ready-gpu", (later + 1, later + 1))
    assert up_to_date(gpu="1")


@pytest.mark.parametrize("lock", ["run", "dev", "gpu", "score"])
def test_every_package_is_pinned_once_by_version_and_hash(repository: Path, lock: str) -> None:
    text = (repository / f"locks/{lock}.txt").read_text()
    assert not re.search(r"^\s*(-i|--(extra-)?index-url|--find-links|-f)\b", text, re.MULTILINE), (
        "an index is a machine's"
    )
    entries = [entry for entry in re.split(r"\n(?=\S)", text) if entry and not entry.startswith("#")]
    names = Counter[str]()
    for entry in entries:
        pinned = re.match(r"([A-Za-z0-9._-]+)(\[[^\]]+\])?==[^\s;]+", entry)
        assert pinned, f"no version: {entry.splitlines()[0]}"
        assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"no hash: {pinned[0]}"
        names[re.sub(r"[-_.]+", "-", pinned[1].lower())] += 1
    assert len(names) > 30 and not [name for name, times in names.items() if times > 1]
