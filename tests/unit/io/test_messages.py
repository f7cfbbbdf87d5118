"""Error messages: one sentence that names the file, the problem, and who owns the file."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from safetensors import SafetensorError

from paco_core.io.messages import explain_os_error, sentence


def fault(number: int, name: str | None = "some/file") -> OSError:
    return OSError(number, os.strerror(number), name)


@pytest.mark.parametrize(
    ("error", "part"),
    [
        (fault(errno.ENOSPC), "some/file: "),
        (fault(errno.ENOSPC, None), "no space"),
        (fault(errno.EXDEV), "some/file: Invalid cross-device link"),
        (OSError("Unable to load 'adapter'"), "^Unable to load 'adapter'$"),
        (SafetensorError("header too large"), "header too large"),
        (MemoryError(), "memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 TB"), "8 TB"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid start byte"), "byte 0"),
        (ValueError("a bug"), "^$"),
        (fault(errno.ECONNREFUSED, None), "^$"),
        (OSError(), "^$"),
    ],
)
def test_a_fault_of_the_system_is_a_sentence_and_a_bug_keeps_its_traceback(error: Exception, part: str) -> None:
    assert re.search(part, explain_os_error(error) or "")


def test_whose_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = tmp_path / "below" / "x"
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid)
    assert f"{tmp_path} is yours" in sentence(fault(errno.EACCES, str(missing)))
    monkeypatch.setattr(os, "geteuid", lambda: 4_000_000)
    assert "user 4000000" in sentence(fault(errno.EACCES, str(tmp_path)))
