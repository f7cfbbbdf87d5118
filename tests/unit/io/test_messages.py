"""What the system refuses, in a sentence: which file, what is wrong, whose it is."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from safetensors import SafetensorError

from paco_core.io.files import DataError
from paco_core.io.messages import of_system, sentence
from paco_core.models.licence import licence_of
from paco_core.operations.asked import edit_record, set_record


def fault(number: int, name: str | None = "some/file") -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (fault(errno.ENOSPC), r"some/file: no space left on the disk; free some space"),
        (fault(errno.ENOSPC, None), r"^no space left on the disk"),
        (fault(errno.EROFS), r"some/file: the file system can only be read"),
        (fault(errno.ENAMETOOLONG), r"some/file: the name is too long"),
        (fault(errno.ENOTDIR), r"some/file: a part of the path is a file"),
        (fault(errno.ENOENT), r"some/file: no such file or folder"),
        (fault(errno.EXDEV), r"some/file: Invalid cross-device link"),
        (OSError("Unable to load weights from checkpoint file for 'adapter'"), r"^Unable to load weights .* 'adapter'"),
        (SafetensorError("header too large"), r"weights cannot be read \(header too large\)"),
        (MemoryError(), r"not enough memory"),
        (
            RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 TB"),
            r"not enough memory",
        ),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), r"not UTF-8 text \(invalid start byte"),
    ],
)
def test_a_sentence(error: Exception, said: str) -> None:
    assert re.search(said, of_system(error) or "")


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("x"), fault(errno.ECONNREFUSED, None), OSError()])
def test_what_is_no_fault_of_the_system_keeps_its_traceback(error: Exception) -> None:
    assert of_system(error) is None


def test_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "below" / "x"
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid)
    assert f"{tmp_path} is yours, but its mode" in sentence(fault(errno.EACCES, str(missing)))
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert re.search(r"belongs to \S+, and this runs as user 4000000; ", sentence(fault(errno.EACCES, str(tmp_path))))
    assert f"{tmp_path} belongs to" in sentence(OSError(errno.EACCES, "", os.fsencode(missing)))  # type: ignore[arg-type]


def test_a_card_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    with pytest.raises(DataError, match=r"README\.md: not UTF-8 text \(invalid start byte at byte 13\)"):
        licence_of(tmp_path)


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_picture_that_is_too_long_is_refused_in_one_line(size: tuple[int, int]) -> None:
    from PIL import Image

    with pytest.raises(DataError, match=r"this picture and instruction: (height|width): .* 16384") as raised:
        edit_record("Make it red.", [Image.new("RGB", size)])
    assert "\n" not in str(raised.value) and "pydantic" not in str(raised.value)
    with pytest.raises(DataError, match="this set: height"):
        set_record("a bear", ["one", "two"], 10**6)
