"""Bytes in the workspace and in the cache that are not the recorded ones: as ``dvc status`` says, and why."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from dagster_dvc.checks import in_sync
from dvc_project.hashing import Workspace
from dvc_project.md5s import MEMORY, Md5s
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState
from tests.support import dvc_itself

GRAPH = """
stages:
  a: {cmd: "echo 1 > a", outs: [a]}
  b: {cmd: "mkdir -p d/e; cp a d/x; cp a d/e/y", deps: [a], outs: [d]}
  c: {cmd: "cat d/e/y > c", deps: [d/e/y], outs: [c: {cache: false}]}
  e: {cmd: "cat d/x c > e", deps: [d, c], outs: [e]}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = dvc_itself.lay_out(tmp_path / "project", {"dvc.yaml": GRAPH})
    dvc_itself.reproduce(root)
    assert dvc_itself.agreed(root) == set()
    return root


def reason_of(root: Path, group: str) -> str:
    return str(in_sync(DvcProject(root), group).description)


@pytest.mark.slow
def test_an_out_that_was_edited_or_is_missing_or_hidden(root: Path) -> None:
    (root / "a").unlink()
    assert dvc_itself.agreed(root) == {"a", "b"}
    dvc_itself.write(root, {"a": "9\n"})
    assert dvc_itself.agreed(root) == {"a", "b"}
    assert reason_of(root, "a") == "a: a is not as recorded" and reason_of(root, "b") == "b: a changed"
    dvc_itself.write(root, {"a": "1\n", "c": "7\n"})
    assert dvc_itself.agreed(root) == {"c", "e"}
    dvc_itself.write(root, {"c": "1\n", ".dvcignore": "/c\n"})
    assert "c" in dvc_itself.ours(root)


def test_a_folder_in_which_files_came_and_went(root: Path) -> None:
    dvc_itself.write(root, {"d/new": "n\n"})
    assert dvc_itself.agreed(root) == {"b", "e"}
    (root / "d/new").unlink()
    (root / "d/e/y").rename(root / "y")
    assert dvc_itself.agreed(root) == {"b", "c", "e"}
    (root / "y").rename(root / "d/e/y")
    (root / ".dvcignore").write_text("y\n")
    assert dvc_itself.agreed(root) == {"b", "e"}


def test_another_commit_whose_data_were_not_checked_out(root: Path) -> None:
    before = {name: (root / name).read_bytes() for name in ("dvc.yaml", "dvc.lock")}
    (root / "dvc.yaml").write_text(GRAPH.replace("echo 1", "echo 2"))
    dvc_itself.reproduce(root)
    dvc_itself.write(root, before)
    assert dvc_itself.agreed(root) == {"a", "b", "c", "e"}
    with dvc_itself.repository(root) as repo:
        repo.checkout()
    (root / "c").write_text("1\n")  # not in the cache: git would bring it
    assert dvc_itself.agreed(root) == set()


def test_what_the_cache_has_lost(root: Path) -> None:
    lock = DvcProject(root).read_lock()
    (listing,) = (root / ".dvc/cache/files/md5").glob(f"*/{str(lock.md5_of('d'))[2:]}")
    data = listing.read_bytes()
    listing.unlink()
    assert dvc_itself.agreed(root) == {"b"} and reason_of(root, "b") == "b: d is not in DVC's cache"
    listing.write_bytes(data)
    listing.chmod(0o444)
    md5 = str(lock.md5_of("a"))
    (root / ".dvc/cache/files/md5" / md5[:2] / md5[2:]).unlink()  # the same bytes are in d, too
    assert dvc_itself.agreed(root) == {"a", "b"}


def by_dvc_2(root: Path) -> None:
    """Rewrite the record as DVC 2 would have it: no ``hash``, and objects at the cache's root."""
    lock = root / "dvc.lock"
    lock.write_text(lock.read_text().replace("      hash: md5\n", ""))
    for file in (root / ".dvc/cache/files/md5").glob("*/*"):
        (root / ".dvc/cache" / file.parent.name).mkdir(exist_ok=True)
        file.rename(root / ".dvc/cache" / file.parent.name / file.name)


def test_a_record_of_dvc_2(tmp_path: Path) -> None:
    graph = (
        'stages:\n  a: {cmd: "cp binary o", deps: [binary], outs: [o]}\n'
        '  b: {cmd: "cp plain q; mkdir -p r; cp plain r/f", deps: [plain], outs: [q, r]}\n'
    )
    root = dvc_itself.lay_out(tmp_path, {"dvc.yaml": graph, "binary": b"\0\xff", "plain": "x\n"})
    dvc_itself.reproduce(root)
    by_dvc_2(root)
    assert dvc_itself.agreed(root) == set()
    dvc_itself.write(root, {"binary": b"\0\xfe"})
    assert dvc_itself.agreed(root) == {"a"}
    dvc_itself.write(root, {"q": "y\n"})
    assert dvc_itself.agreed(root) == {"a", "b"}


def test_the_same_size_in_the_same_moment(root: Path) -> None:
    """Neither an edit within one tick of the clock nor a time that was set back hides other bytes."""
    project = DvcProject(root)
    assert ProjectState(project).of(project.stages["a"]).in_sync
    state = (root / "a").stat()
    (root / "a").write_text("2\n")
    os.utime(root / "a", ns=(state.st_atime_ns, state.st_mtime_ns))
    assert dvc_itself.ours(root) == {"a", "b"}


def test_bytes_are_read_once_and_known_by_the_next_process(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, read = root / ".dvc/tmp" / f"new-{MEMORY}", []
    monkeypatch.setattr("dvc_project.md5s._SETTLED_NS", -(10**12))  # as if all files were old
    monkeypatch.setattr("dvc_project.md5s.file_md5", lambda path: read.append(path) or "0" * 32)
    first = Workspace(root, Md5s(file)).md5("d")
    assert len(read) == 2
    assert Workspace(root, Md5s(file)).md5("d") == first and len(read) == 2
    (root / "d/x").touch()
    assert Workspace(root, Md5s(file)).md5("d") == first and len(read) == 3
    file.write_bytes(b"no database" * 100)
    assert Workspace(root, Md5s(file)).md5("d") == first and len(read) == 5
    assert Workspace(root, Md5s(file)).md5("d") == first and len(read) == 5, "it was made anew"
    file.unlink()
    file.mkdir()
    assert Workspace(root, Md5s(file)).md5("d") == first, "where it cannot be kept, files are read"


def test_a_stage_that_runs_is_judged_by_its_last_record(root: Path) -> None:
    (root / "a").write_text("half")
    writes = f'{{"write": {{"{root}/a": {{"pid": {os.getpid()}, "cmd": "dvc repro"}}}}, "read": {{}}}}'
    (root / ".dvc/tmp/rwlock").write_text(writes)
    assert dvc_itself.ours(root) == set()
    (root / ".dvc/tmp/rwlock").write_text(re.sub(r'"pid": \d+', '"pid": 4194304', writes))
    assert dvc_itself.ours(root) == {"a", "b"}, "a process that is gone writes nothing"
