"""Digests of folders and files: DVC's, read once while nobody touches the files, and never wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from dvc_project import md5s
from dvc_project.hashing import Workspace
from paco_core.config.references import model_content
from paco_core.io.content import file_content, folder_content
from paco_core.io.files import DataError


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A project with a model, the working folder; the files that are read. Each lies untouched for long enough."""
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(md5s, "_SETTLED_NS", -1)
    found: list[str] = []
    read = md5s.file_md5

    def counted(path: str | Path) -> str:
        found.append(str(path))
        return read(path)

    monkeypatch.setattr(md5s, "file_md5", counted)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"one")
    return found


def test_a_folder_counts_by_the_names_and_contents_that_dvc_counts(reads: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    found = [folder_content(folder)]
    assert f"{found[0]}.dir" == Workspace(tmp_path).md5("model")
    (folder / "weights").rename(folder / "others")
    found.append(folder_content(folder))
    (folder / "empty").touch()
    found.append(folder_content(folder))
    assert len({*found}) == 3
    (tmp_path / ".dvcignore").write_text("empty\n")
    assert folder_content(folder) == found[2], "a model is all its files"
    (tmp_path / "nothing").mkdir()
    for missing in ("nothing", "absent"):
        with pytest.raises(DataError, match="no such folder, or it is empty"):
            folder_content(tmp_path / missing)


def test_a_file_is_read_once_until_it_is_touched(reads: list[str], tmp_path: Path) -> None:
    weights = tmp_path / "model/weights"
    known = folder_content(tmp_path / "model")
    assert folder_content(Path("model")) == known and file_content(weights) != known and len(reads) == 1
    md5s._of_file.cache_clear()  # as a process that comes later
    assert folder_content(tmp_path / "model") == known and len(reads) == 1
    state = weights.stat()
    weights.write_bytes(b"two")
    os.utime(weights, ns=(state.st_atime_ns, state.st_mtime_ns))
    assert folder_content(tmp_path / "model") != known and len(reads) == 2


def test_a_file_in_anothers_place_is_read(reads: list[str], tmp_path: Path) -> None:
    weights, other = tmp_path / "model/weights", tmp_path / "other"
    known = folder_content(tmp_path / "model")
    other.write_bytes(b"two")
    state = weights.stat()
    os.utime(other, ns=(state.st_atime_ns, state.st_mtime_ns))
    other.replace(weights)
    assert folder_content(tmp_path / "model") != known and len(reads) == 2


def test_what_was_written_just_now_is_read_again(
    reads: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within one tick of the file system's clock two contents of one size look the same."""
    monkeypatch.setattr(md5s, "_SETTLED_NS", 3600 * 10**9)
    for _ in range(2):
        folder_content(tmp_path / "model")
    assert len(reads) == 2


def test_outside_of_a_project_nothing_is_remembered(reads: list[str], tmp_path: Path) -> None:
    (tmp_path / "dvc.yaml").unlink()
    for _ in range(2):
        folder_content(tmp_path / "model")
    assert len(reads) == 2 and not any((tmp_path / ".dvc").iterdir())


def test_a_digest_that_cannot_be_kept_costs_time_only(reads: list[str], tmp_path: Path) -> None:
    (tmp_path / ".dvc/tmp").write_text("no folder")
    assert f"{folder_content(tmp_path / 'model')}.dir" == Workspace(tmp_path).md5("model")


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
