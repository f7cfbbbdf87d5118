"""Where a command may write: refused before anything is computed, by one function."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.io.targets import Kind, checked
from tests.unit.io.test_atomic import a_folder, a_link_to_a_folder, a_link_to_nothing, a_pipe, an_empty_folder


def a_file(place: Path) -> None:
    place.write_text("mine")


def nothing(_place: Path) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "allowed"),
    [
        (nothing, {"file", "folder", "new folder", "empty folder"}),
        (a_file, {"file"}),
        (a_folder, {"folder"}),
        (an_empty_folder, {"folder", "empty folder"}),
        (a_link_to_a_folder, {"folder"}),
        (a_link_to_nothing, set()),
        (a_pipe, set()),
    ],
)
def test_what_may_stand_there(tmp_path: Path, make: Callable[[Path], None], allowed: set[str]) -> None:
    make(tmp_path / "out")
    kinds: tuple[Kind, ...] = ("file", "folder", "new folder", "empty folder")
    for kind in kinds:
        if kind in allowed:
            assert checked(tmp_path / "out", kind) == tmp_path / "out"
        else:
            with pytest.raises(DataError, match=r"out (is|exists)"):
                checked(tmp_path / "out", kind)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("file/x", "file is a file, and nothing can lie below it"),
        ("file/x/y", "file is a file, and nothing can lie below it"),
        ("dangling/x", "dangling is a link to nothing"),
        ("circle/x", "circle is a link to nothing|links lead in a circle"),
        ("n" * 300, "the name is too long; name a shorter one"),
        ("data/out", "lies in data/out, an out of the stage make"),
        ("data/out/deep/x", "lies in data/out, an out of the stage make"),
        ("link/out/x", "lies in data/out, an out of the stage make"),
        ("data/given/x", "which given.dvc tracks"),
        (".git/x", "lies in .*/.git, whose content is not yours"),
        (".dvc/cache/x", "lies in .*/.dvc, whose"),
        (".paco/x", "lies in .*/.paco, whose"),
    ],
)
def test_where_it_may_lie(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "data" / "given.dvc").write_text("outs: [{path: given}]")
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: x, outs: [data/out]}}")
    for kind in ("file", "folder", "new folder", "empty folder"):
        with pytest.raises(DataError, match=said):
            checked(tmp_path / name, kind)  # type: ignore[arg-type]
    assert checked(tmp_path / "data" / "outer", "new folder")
    assert not (tmp_path / "data" / "outer").exists()


def test_a_stage_writes_its_own_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: x, outs: [out.html]}, other: {cmd: x, outs: [b.html]}}")
    monkeypatch.setenv("DVC_STAGE", "dvc.yaml:make")
    checked(tmp_path / "out.html", "file")
    with pytest.raises(DataError, match="an out of the stage other"):
        checked(tmp_path / "b.html", "file")


def test_a_checkout_of_an_experiment_is_a_project_of_its_own(tmp_path: Path) -> None:
    checkout = tmp_path / ".dvc" / "tmp" / "exps" / "tmp1"
    (checkout / ".dvc").mkdir(parents=True)
    checked(checkout / "page.html", "file")
    with pytest.raises(DataError, match="whose content is not yours"):
        checked(tmp_path / ".dvc" / "tmp" / "page.html", "file")


def test_a_file_of_another_kind_and_one_that_is_read(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("first,second\n")
    (tmp_path / "same.csv").hardlink_to(table)
    with pytest.raises(DataError, match=r"dvc\.yaml: expected a name that ends in \.csv or \.jsonl"):
        checked(tmp_path / "dvc.yaml", "file", suffixes=(".csv", ".jsonl"))
    for name in ("t.csv", "same.csv"):
        with pytest.raises(DataError, match="is what the command reads"):
            checked(tmp_path / name, "file", suffixes=(".csv",), inputs=[table])


def test_whose_folder_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user sees it; root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(tmp_path).st_uid + 1)  # noqa: PTH116
    with pytest.raises(DataError, match=r"a/out cannot be written: permission denied: it belongs to \w+, and"):
        checked(tmp_path / "a" / "out", "new folder")
