"""``dvc.lock`` is read as a whole while DVC writes it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from dvc.exceptions import DvcException

from dagster_dvc import DvcProject, DvcProjectError
from dvc_project import lockfile
from dvc_project.file_locks import hold
from dvc_project.lockfile import Lock
from dvc_project.state import ProjectState
from tests.support import dvc_itself

STAGE = "  {0}:\n    cmd: make {0}\n    outs:\n    - path: {0}.out\n      md5: {0}00\n"
COMPLETE = "schema: '2.0'\nstages:\n" + STAGE.format("a") + STAGE.format("b")
PART = "schema: '2.0'\nstages:\n" + STAGE.format("a")  # as good a YAML as the whole
GRAPH = "stages:\n" + "".join(f"  {n}:\n    cmd: make {n}\n    outs: [{n}.out]\n" for n in "ab")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "params.yaml").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("part", ["", PART])
def test_a_file_that_is_being_written_is_waited_for(root: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = hold(root / ".dvc/tmp/lock")  # as DVC does
    (root / "dvc.lock").write_text(part)

    def go_on(_seconds: float) -> None:  # while the reader waits
        (root / "dvc.lock").write_text(COMPLETE)
        writer.close()

    monkeypatch.setattr(time, "sleep", go_on)
    assert list(DvcProject(root).lock()) == ["a", "b"]


def test_a_lock_that_is_held_for_something_else_is_not_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lockfile, "_SETTLED_SECONDS", 0.1)
    (root / "dvc.lock").write_text(COMPLETE)
    with hold(root / ".dvc/tmp/lock"):  # a long `dvc push`
        assert list(DvcProject(root).lock()) == ["a", "b"]


HEAD = "schema: '2.0'\n"
INVALID = [
    "",
    PART.removeprefix(HEAD + "stages:\n").replace("  a:", "a:"),  # DVC 1
    "schema: '3.0'\nstages: {}\n",
    HEAD + "stages:\n",
    HEAD + "stages: {a: 1}",
    HEAD + "stages: {a: {outs: [{path: x}]}}",
    HEAD + "stages: {a: {cmd: x, deps: }}",
    HEAD + "stages: {a: {cmd: x, params: {f: 1}}}",
    HEAD + "stages: {a: {cmd: x, outs: [{md5: x}]}}",
    HEAD + "stages: {a: {cmd: x, outs: [{path: x, md5: 1}]}}",
]
ACCEPTED = ["schema: '2.0'", HEAD + "datasets: [{name: d, type: dvc, url: u, rev_lock: r}]\n", COMPLETE]


@pytest.mark.parametrize("text", [*INVALID, *ACCEPTED])
def test_a_lock_is_refused_where_dvc_refuses_it(root: Path, text: str) -> None:
    dvc_itself.write(root, {"dvc.lock": text, ".dvc/config": dvc_itself.SETTINGS})
    if text in INVALID:
        with pytest.raises(DvcException):
            dvc_itself.changed(root)
        with pytest.raises(DvcProjectError, match=r"dvc\.lock"):
            DvcProject(root).lock()
    else:
        assert dvc_itself.agreed(root) == {"a", "b"}
        assert (
            list(DvcProject(root).lock()) == list(Lock.read(root).entries) == (["a", "b"] if text == COMPLETE else [])
        )


DATA = """
datasets: [{name: raw, type: dvc, url: "https://example.com/r", path: d.csv}]
stages:
  a: {cmd: echo a > a, deps: ["ds://raw"], outs: [a]}
"""
PINNED = """schema: '2.0'
datasets:
- name: raw
  type: dvc
  url: https://example.com/r
  path: d.csv
  rev_lock: b283d12d39773ef725db9c7a23da150c9b01d585
"""


def test_a_dep_on_a_data_set(tmp_path: Path) -> None:
    root = dvc_itself.lay_out(tmp_path, {"dvc.yaml": DATA, "dvc.lock": PINNED})
    dvc_itself.reproduce(root)
    ran = (root / "dvc.lock").read_text()
    assert "datasets" in ran and dvc_itself.agreed(root) == set()
    for file, old, new in (
        ("dvc.lock", "b283", "c283"),  # pinned anew, by `dvc ds update`
        ("dvc.yaml", "path: d.csv", "path: e.csv"),  # declared otherwise
    ):
        text = (root / file).read_text()
        (root / file).write_text(text.replace(old, new, 1))
        assert dvc_itself.agreed(root) == {"a"}, file
        (root / file).write_text(text)
    (root / "dvc.yaml").write_text(DATA.replace("name: raw", "name: other"))
    (state,) = ProjectState(DvcProject(root)).all()
    assert state.reasons == ("ds://raw: dvc.yaml has no data set 'raw'",)


def test_a_dep_over_the_network_is_not_asked_for_and_said(tmp_path: Path) -> None:
    entry = "  a:\n    cmd: x\n    deps:\n    - path: {0}\n      etag: '1'\n    outs:\n    - path: o\n      md5: {1}\n"
    graph = "stages: {a: {cmd: x, deps: ['https://example.com/f'], outs: [o: {cache: false}]}}"
    md5 = "d41d8cd98f00b204e9800998ecf8427e"
    lock = HEAD + "stages:\n" + entry.format("https://example.com/f", md5)
    root = dvc_itself.lay_out(tmp_path, {"dvc.yaml": graph, "dvc.lock": lock, "o": ""})
    (state,) = ProjectState(DvcProject(root)).all()
    assert state.in_sync and state.unchecked == ("https://example.com/f",)
    (root / "dvc.lock").write_text(lock.replace("/f", "/g"))
    assert not ProjectState(DvcProject(root)).all()[0].in_sync


def test_a_merge_conflict_is_called_one(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\n<<<<<<< ours\nstages:\n=======\n>>>>>>> theirs\n")
    with pytest.raises(DvcProjectError, match=r"dvc.lock: a merge conflict stands in line 2"):
        DvcProject(tmp_path).lock()
