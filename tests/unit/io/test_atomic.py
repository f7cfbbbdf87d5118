"""Whole or absent, in the place of nothing but what may go."""

from __future__ import annotations

import errno
import os
import signal
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors import SafetensorError

from paco_core.io import files
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from tests.support import forked


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_an_interrupted_writer_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    target = tmp_path / "out.json"
    files.write_json(target, {"a": 1})
    with pytest.raises(KeyboardInterrupt), atomic(target) as part:
        part.write_text("half")
        raise KeyboardInterrupt
    with pytest.raises(DataError, match="other"), atomic(tmp_path / "other"):
        pass  # a stage that writes nothing
    assert files.read_json(target) == {"a": 1}
    assert names(tmp_path) == ["out.json"]
    files.write_text(tmp_path / ("n" * 255), "whole")  # as long as the file system takes
    assert (tmp_path / ("n" * 255)).read_text() == "whole"


def kill_a_writer(target: Path) -> None:
    def write() -> None:
        with atomic(target, replace=True) as part:
            part.mkdir()
            (part / "stale").write_text("stale")
            os.kill(os.getpid(), signal.SIGKILL)

    assert forked.run(write, target.parent).killed


def test_what_a_killed_writer_left_is_cleared_by_the_next_in_the_folder(tmp_path: Path) -> None:
    kill_a_writer(tmp_path / "other")
    (left,) = tmp_path.iterdir()
    assert (left / "other" / "stale").is_file()
    files.write_text(tmp_path / "out", "fresh")
    assert names(tmp_path) == ["out"]


def test_a_folder_that_is_named_like_ours_and_is_not_stays(tmp_path: Path) -> None:
    for name in (".out.part", ".paco-abcdefgh.part", "out.part"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine").write_text("mine")
    (tmp_path / ".paco-12345678.part").write_text("a file of mine")
    before = names(tmp_path)
    files.write_text(tmp_path / "out", "fresh")
    assert names(tmp_path) == sorted([*before, "out"])
    assert all((tmp_path / name / "mine").read_text() == "mine" for name in before[:-1] if "1234" not in name)


def test_many_writers_of_one_folder_leave_a_whole_one(tmp_path: Path) -> None:
    target, faults = tmp_path / "out", list[BaseException]()

    def write(name: str) -> None:
        try:
            for _ in range(10):
                with atomic(target, replace=True) as part:
                    part.mkdir()
                    for n in range(3):
                        (part / str(n)).write_text(name)
        except BaseException as error:
            faults.append(error)

    threads = [threading.Thread(target=write, args=(name,)) for name in "abc"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults, faults[0]
    assert len({(target / str(n)).read_text() for n in range(3)}) == 1 and names(tmp_path) == ["out"]


def a_folder(place: Path) -> None:
    place.mkdir()
    (place / "mine").write_text("mine")


def a_link_to_a_folder(place: Path) -> None:
    a_folder(place.with_name("elsewhere"))
    place.symlink_to("elsewhere")


#: What may stand where something is to be written, and is no file.
OCCUPANTS: dict[str, Callable[[Path], None]] = {
    "a folder": a_folder,
    "an empty folder": Path.mkdir,
    "a link to a folder": a_link_to_a_folder,
    "a link to nothing": lambda place: place.symlink_to("nowhere"),
    "a pipe": os.mkfifo,
}


def state(folder: Path) -> list[tuple[str, int, bytes]]:
    return sorted(
        (str(path), stat.S_IFMT(path.lstat().st_mode), path.read_bytes() if path.is_file() else b"")
        for path in folder.rglob("*")
    )


@pytest.mark.parametrize("occupant", OCCUPANTS)
def test_what_a_file_may_not_replace_stays(tmp_path: Path, occupant: str) -> None:
    OCCUPANTS[occupant](tmp_path / "out")
    before = state(tmp_path)
    with pytest.raises(DataError, match="out"), atomic(tmp_path / "out"):
        raise AssertionError("nothing is computed first")
    assert state(tmp_path) == before


@pytest.mark.parametrize("replace", [False, True])
def test_what_comes_meanwhile_stays(tmp_path: Path, replace: bool) -> None:
    with pytest.raises(DataError, match="out"), atomic(tmp_path / "out", replace=replace) as part:
        part.write_text("a file")
        a_folder(tmp_path / "out")
    assert names(tmp_path) == ["out"] and (tmp_path / "out" / "mine").read_text() == "mine"
    with pytest.raises(DataError, match="file"), atomic(tmp_path / "file", replace=replace) as part:
        part.mkdir()
        (tmp_path / "file").write_text("mine")
    assert (tmp_path / "file").read_text() == "mine" and names(tmp_path) == ["file", "out"]


def test_a_folder_of_our_own_is_replaced_and_one_that_cannot_be_after_all_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a_folder(tmp_path / "out")
    with atomic(tmp_path / "out", replace=True) as part:
        part.mkdir()
        (part / "fresh").write_text("fresh")
    assert names(tmp_path / "out") == ["fresh"] and names(tmp_path) == ["out"]

    def broken(_self: Path, _target: Path) -> Path:
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output"), atomic(tmp_path / "out", replace=True) as part:
        part.mkdir()
        monkeypatch.setattr(Path, "replace", broken)
    assert names(tmp_path / "out") == ["fresh"] and names(tmp_path) == ["out"]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "Error writing bytes to file"),  # pyarrow, without a file name
        SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"),
    ],
)
def test_a_full_disk_is_one_error_that_names_the_out(tmp_path: Path, error: Exception) -> None:
    target = tmp_path / "made" / "out"
    files.write_text(tmp_path / "out", "old")
    for place in (tmp_path / "out", target):
        with pytest.raises(OSError, match="out") as raised, atomic(place) as part:
            part.write_text("half")
            raise error
        assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(place))
    assert [p.read_text() for p in tmp_path.iterdir()] == ["old"], "no folder is left that was made for it either"
    with pytest.raises(OSError, match="denied"), atomic(tmp_path / "out"):
        raise OSError(errno.EACCES, "denied")


def test_a_stage_that_writes_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError), atomic(tmp_path / "out"):
        pass


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_place_where_no_folder_can_be_made_is_named() -> None:
    """The retries for a folder that another process removes have an end."""
    with pytest.raises(DataError, match="/proc/x"), atomic(Path("/proc/x")):
        pass


@pytest.mark.parametrize(("mask", "mode"), [(0o002, 0o664), (0o077, 0o600)])
def test_weights_get_the_mode_of_any_other_file(tmp_path: Path, mask: int, mode: int) -> None:
    """safetensors writes through a temporary file of its own, which nobody else may read."""
    import torch
    from safetensors.torch import save_file

    (tmp_path / "cached").write_text("")
    (tmp_path / "cached").chmod(0o600)
    before = os.umask(mask)
    try:
        with atomic(tmp_path / "model.safetensors") as part:
            save_file({"a": torch.ones(2)}, part)
        with atomic(tmp_path / "out") as part:
            (part / "deep").mkdir(parents=True)
            save_file({"a": torch.ones(2)}, part / "deep/model.safetensors")
            (part / "card.json").write_text("{}")
            (part / "link").symlink_to(tmp_path / "cached")
            (part / "run").touch(0o755)
    finally:
        os.umask(before)
    modes = {p.name: p.lstat().st_mode & 0o777 for p in tmp_path.rglob("*") if p.is_file() and not p.is_symlink()}
    assert modes.pop("cached") == 0o600 and modes.pop("run") == 0o755 & ~mask
    assert modes == dict.fromkeys(("model.safetensors", "card.json"), mode)
