"""``dvc.lock`` is read as a whole while DVC writes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dagster_dvc import DvcProject, DvcProjectError
from dvc_project import lockfile
from paco_core.io.file_locks import hold

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


@pytest.mark.parametrize("text", ["stages: [1]", "stages: {a: 1}", "stages: {a: {outs: [{md5: x}]}}"])
def test_a_lock_that_is_none_is_one_clear_line(root: Path, read: Callable[[Path], list[str]], text: str) -> None:
    (root / "dvc.lock").write_text(text)
    with pytest.raises(DvcProjectError, match=r"dvc\.lock: not in DVC's format; restore it"):
        read(root)
