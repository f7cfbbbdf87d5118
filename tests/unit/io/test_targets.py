"""Output paths: one function validates them before a command computes anything."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from paco_core.io.files import DataError
from paco_core.io.targets import Kind, checked
from tests.unit.io.test_atomic import OCCUPANTS

KINDS: tuple[Kind, ...] = ("file", "folder", "new folder", "empty folder")


@pytest.mark.parametrize(
    ("occupant", "allowed"),
    [
        ("nothing", set(KINDS)),
        ("a file", {"file"}),
        ("a folder", {"folder"}),
        ("an empty folder", {"folder", "empty folder"}),
        ("a link to a folder", {"folder"}),
        ("a link to nothing", set()),
        ("a pipe", set()),
    ],
)
def test_what_may_stand_there(tmp_path: Path, occupant: str, allowed: set[str]) -> None:
    if occupant != "nothing":
        OCCUPANTS.get(occupant, Path.touch)(tmp_path / "out")
    for kind in KINDS:
        if kind in allowed:
            assert checked(tmp_path / "out", kind) == tmp_path / "out"
        else:
            with pytest.raises(DataError, match="out"):
                checked(tmp_path / "out", kind)


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("file/x/y", "file "), ("dangling/x", "dangling "), ("circle/x", "circle"), ("n" * 300, "too long"),
        ("data/out", "data/out, .* make"), ("link/out/x", "data/out, .* make"), ("data/given/x", "given.dvc"),
        (".git/x", "/.git,"), (".dvc/cache/x", "/.dvc,"), (".paco/x", "/.paco,"),
    ],
)  # fmt: skip
def test_where_it_may_lie(tmp_path: Path, name: str, part: str) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "circle").symlink_to("circle")
    (tmp_path / "data").mkdir()
    (tmp_path / "link").symlink_to("data")
    (tmp_path / "data" / "given.dvc").write_text("outs: [{path: given}]")
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: x, outs: [data/out]}}")
    for kind in KINDS:
        with pytest.raises(DataError, match=part):
            checked(tmp_path / name, kind)
    assert checked(tmp_path / "data" / "outer", "new folder")
    assert not (tmp_path / "data" / "outer").exists()


def test_a_stage_writes_its_own_out_and_an_experiment_into_its_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dvc.yaml").write_text("stages: {make: {cmd: x, outs: [out.html]}, other: {cmd: x, outs: [b.html]}}")
    monkeypatch.setenv("DVC_STAGE", "dvc.yaml:make")
    checked(tmp_path / "out.html", "file")
    checkout = tmp_path / ".dvc" / "tmp" / "exps" / "tmp1"
    (checkout / ".dvc").mkdir(parents=True)
    checked(checkout / "page.html", "file")
    for name in ("b.html", ".dvc/tmp/page.html"):
        with pytest.raises(DataError, match="other|/.dvc,"):
            checked(tmp_path / name, "file")


def test_a_file_of_another_kind_and_one_that_is_read(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("first,second\n")
    (tmp_path / "same.csv").hardlink_to(table)
    for name in ("dvc.yaml", "t.csv", "same.csv"):
        with pytest.raises(DataError, match=name):
            checked(tmp_path / name, "file", suffixes=(".csv", ".jsonl"), inputs=[table])
    checked(tmp_path / "u.csv", "file", suffixes=(".csv", ".jsonl"), inputs=[table])


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As another user sees it; root may write anywhere."""
    monkeypatch.setattr(os, "access", lambda _path, _mode: False)
    with pytest.raises(DataError, match="a/out"):
        checked(tmp_path / "a" / "out", "new folder")
