"""``dvc.lock`` is read as a whole while DVC writes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from dvc.exceptions import DvcException

from dagster_dvc import DvcProject, DvcProjectError
from dagster_dvc.checks import in_sync
from dvc_project import lockfile
from dvc_project.file_locks import hold
from dvc_project.state import ProjectState
from tests.support import dvc_itself

STAGE = "  {0}:\n    cmd: make {0}\n    outs:\n    - path: {0}.out\n      md5: {0}00\n"
WHOLE = "schema: '2.0'\nstages:\n" + STAGE.format("a") + STAGE.format("b")
PART = "schema: '2.0'\nstages:\n" + STAGE.format("a")  # as good a YAML as the whole
GRAPH = "stages:\n" + "".join(f"  {n}:\n    cmd: make {n}\n    outs: [{n}.out]\n" for n in "ab")


def as_it_stands(root: Path) -> list[str]:
    return list(lockfile.Lock.read(root).entries)


def of_the_stages(root: Path) -> list[str]:
    return list(DvcProject(root).lock())


@pytest.fixture(params=[as_it_stands, of_the_stages])
def read(request: pytest.FixtureRequest) -> Callable[[Path], list[str]]:
    return request.param


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / ".dvc/tmp").mkdir(parents=True)
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "params.yaml").write_text("{}")
    return tmp_path


@pytest.mark.parametrize("part", ["", PART])
def test_a_file_that_is_being_written_is_waited_for(
    root: Path, part: str, read: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = hold(root / ".dvc/tmp/lock")  # as DVC does
    (root / "dvc.lock").write_text(part)

    def go_on(_seconds: float) -> None:  # while the reader waits
        (root / "dvc.lock").write_text(WHOLE)
        writer.close()

    monkeypatch.setattr(time, "sleep", go_on)
    assert read(root) == ["a", "b"]


def test_a_lock_that_is_held_for_something_else_is_not_waited_for(
    root: Path, read: Callable[[Path], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lockfile, "_SETTLED_SECONDS", 0.1)
    (root / "dvc.lock").write_text(WHOLE)
    with hold(root / ".dvc/tmp/lock"):  # a long `dvc push`
        assert read(root) == ["a", "b"]


HEAD = "schema: '2.0'\n"
REFUSED = {
    "": "required key not provided, in schema",
    PART.removeprefix(HEAD + "stages:\n").replace("  a:", "a:"): "required key not provided, in schema",  # DVC 1
    "schema: '3.0'\nstages: {}\n": "invalid schema version, in schema",
    HEAD + "stages:\n": "expected a dictionary, in stages",
    HEAD + "stages: [1]": "expected a dictionary, in stages",
    HEAD + "stages: {a: 1}": "expected a dictionary, in stages -> a",
    HEAD + "stages: {a: {outs: [{path: x}]}}": "in stages -> a -> cmd",
    HEAD + "stages: {a: {cmd: x, deps: }}": "in stages -> a -> deps",
    HEAD + "stages: {a: {cmd: x, params: {f: 1}}}": "in stages -> a -> params",
    HEAD + "stages: {a: {cmd: x, outs: [{md5: x}]}}": "in stages -> a -> outs -> 0 -> path",
    HEAD + "stages: {a: {cmd: x, outs: [{path: x, md5: 1}]}}": "not a valid value, in stages -> a -> outs -> 0 -> md5",
}
TAKEN = ["schema: '2.0'", HEAD + "datasets: [{name: d, type: dvc, url: u, rev_lock: r}]\n", WHOLE]


@pytest.mark.parametrize("text", REFUSED)
def test_a_lock_that_dvc_refuses_is_one_clear_line(root: Path, read: Callable[[Path], list[str]], text: str) -> None:
    dvc_itself.write(root, {"dvc.lock": text, ".dvc/config": dvc_itself.SETTINGS})
    with pytest.raises(DvcException):
        dvc_itself.changed(root)
    with pytest.raises(DvcProjectError, match=r"dvc\.lock: not in DVC's format .*; restore it") as raised:
        read(root)
    assert REFUSED[text] in str(raised.value)


@pytest.mark.parametrize("text", TAKEN)
def test_a_lock_that_dvc_takes_is_taken(root: Path, read: Callable[[Path], list[str]], text: str) -> None:
    dvc_itself.write(root, {"dvc.lock": text, ".dvc/config": dvc_itself.SETTINGS})
    assert dvc_itself.agreed(root) == {"a", "b"}
    assert read(root) == (["a", "b"] if text == WHOLE else [])


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
    found = in_sync(DvcProject(root), "a")
    assert found.passed and "not asked for over the network: https://example.com/f" in str(found.description)
    (root / "dvc.lock").write_text(lock.replace("/f", "/g"))
    assert in_sync(DvcProject(root), "a").description.startswith("a: https://example.com/f is a new dep")


def test_a_merge_conflict_is_called_one(tmp_path: Path) -> None:
    (tmp_path / ".dvc").mkdir()
    (tmp_path / "dvc.yaml").write_text(GRAPH)
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\n<<<<<<< ours\nstages:\n=======\n>>>>>>> theirs\n")
    with pytest.raises(DvcProjectError, match=r"dvc.lock: a merge conflict stands in line 2: .*git checkout --ours"):
        DvcProject(tmp_path).lock()
