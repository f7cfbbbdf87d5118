"""Identity of a model: its bytes, or the commit of a hub."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from huggingface_hub import constants

from dvc_project import md5s
from paco_core.config.references import model_content
from paco_core.io.files import folder_digest
from paco_core.models import content
from paco_core.models.content import content_of


@pytest.fixture
def reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The files and folders that are read in a project with a model, in which every file counts as settled."""
    for name in ("dvc.yaml", "params.yaml"):
        (tmp_path / name).touch()
    (tmp_path / ".dvc").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(md5s, "_SETTLED_NS", -1)
    paths: list[object] = []
    for module, name in ((md5s, "file_md5"), (content, "folder_digest")):
        read = getattr(module, name)
        monkeypatch.setattr(module, name, lambda path, read=read: (paths.append(path), read(path))[1])
    (tmp_path / "model").mkdir()
    (tmp_path / "model/weights").write_bytes(b"one")
    return paths


def test_the_digest_of_a_folder_stays_the_same_in_each_version(tmp_path: Path) -> None:
    """Ids of grids contain it, and answers of people refer to grids by their ids."""
    (tmp_path / "b").mkdir()
    (tmp_path / "b/weights").write_bytes(b"one")
    (tmp_path / "a.json").write_bytes(b"{}")
    assert content_of(tmp_path) == hashlib.md5(b"a.json{}b/weightsone").hexdigest()


def test_weights_are_read_once_until_they_are_touched(reads: list[object], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    digest_before = content_of(folder)
    assert content_of(folder) == digest_before == folder_digest(folder) and len(reads) == 1
    md5s._of_file.cache_clear()  # as in another process
    assert content_of(folder) == digest_before and len(reads) == 1
    state = (folder / "weights").stat()
    (folder / "weights").write_bytes(b"two")
    os.utime(folder / "weights", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert content_of(folder) == folder_digest(folder) != digest_before and len(reads) == 2
    (folder / "more").touch()
    assert content_of(folder) == folder_digest(folder) and len(reads) == 3


def test_a_file_counts_by_content_and_a_hubs_model_by_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    adapter = tmp_path / "adapter.safetensors"
    adapter.write_bytes(b"one")
    content_before = model_content(tmp_path, adapter.name)
    adapter.write_bytes(b"two")
    assert model_content(tmp_path, adapter.name) != content_before
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    repository = tmp_path / "hub/models--org--name"
    contents = [model_content(tmp_path, "org/name")]
    for commit in ("a" * 40, "b" * 40):
        (repository / "snapshots" / commit).mkdir(parents=True)
        (repository / "refs").mkdir(exist_ok=True)
        (repository / "refs/main").write_text(commit)
        contents.append(model_content(tmp_path, "org/name"))
    assert contents == ["org/name", f"org/name@{'a' * 40}", f"org/name@{'b' * 40}"]
