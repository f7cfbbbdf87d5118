"""Digests of large files: read once while nobody touches them, and never wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from paco_core.config.references import model_content
from paco_core.io import content
from paco_core.io.files import folder_digest


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """A project in which every file is large; what is read of it."""
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(content, "LARGE_BYTES", 0)
    monkeypatch.setattr(content, "SETTLED_S", -1.0)
    found: list[Path] = []

    def counted(folder: Path) -> str:
        found.append(folder)
        return folder_digest(folder)

    monkeypatch.setattr(content, "folder_digest", counted)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"one")
    return found


def test_a_folder_is_read_once_until_it_is_touched(reads: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    known = content.folder_content(folder)
    assert content.folder_content(folder) == known == folder_digest(folder) and len(reads) == 1
    state = (folder / "weights").stat()
    (folder / "weights").write_bytes(b"two")
    os.utime(folder / "weights", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content.folder_content(folder) == folder_digest(folder) != known
    (folder / "more").touch()
    assert content.folder_content(folder) == folder_digest(folder) and len(reads) == 3


def test_a_file_in_anothers_place_is_read(reads: list[Path], tmp_path: Path) -> None:
    folder, other = tmp_path / "model", tmp_path / "other"
    known = content.folder_content(folder)
    other.write_bytes(b"two")
    state = (folder / "weights").stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(folder / "weights")
    assert content.folder_content(folder) == folder_digest(folder) != known and len(reads) == 2


def test_what_was_written_just_now_is_read_again(
    reads: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the file system's clock two contents of one size look the same."""
    monkeypatch.setattr(content, "SETTLED_S", 3600.0)
    for _ in range(2):
        content.folder_content(tmp_path / "model")
    assert len(reads) == 2


def test_without_a_project_nothing_is_remembered(
    reads: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").unlink()
    for _ in range(2):
        content.folder_content(tmp_path / "model")
    assert len(reads) == 2 and not (tmp_path / ".paco").exists()


def test_a_digest_that_cannot_be_kept_costs_time_only(reads: list[Path], tmp_path: Path) -> None:
    (tmp_path / ".paco").write_text("no folder")
    assert content.folder_content(tmp_path / "model") == folder_digest(tmp_path / "model")


def test_a_file_counts_by_content_and_a_hubs_model_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"one")
    known = model_content(tmp_path, adapter.name)
    adapter.write_bytes(b"two")
    assert model_content(tmp_path, adapter.name) != known
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub/models--org--name"
    found = [model_content(tmp_path, "org/name")]
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs/main").write_text(commit)
        found.append(model_content(tmp_path, "org/name"))
    assert found == ["org/name", f"org/name@{'a' * 40}", f"org/name@{'b' * 40}"]
