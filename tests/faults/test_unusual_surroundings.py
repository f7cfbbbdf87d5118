"""Another user's project, a folder that is gone, a terminal without UTF-8, a disk without room: a sentence each."""

from __future__ import annotations

import ctypes
import getpass
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from paco_core.cli.commands import main
from paco_core.policies.encodings import Encodings
from paco_core.runtime.code.source import SourceCache
from tests.faults.verdicts import Breach, Ledger, unclear
from tests.support import forked

NOBODY = 65534
VERSION_3 = 0x20080522  # of capset(2): two words of 32 bits each
READ_AND_WRITE_ANYTHING = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3  # CAP_CHOWN, DAC_OVERRIDE, DAC_READ_SEARCH, FOWNER
#: What writes into a project.
WRITES = (
    ("run", "prompts"),
    ("code",),
    ("rollback", "reward"),
    ("profile", "use", "smoke"),
    ("checkpoints", "drop", "--all"),
    ("annotate",),
    ("compare", "x"),
    ("sweep", "--name", "x"),
)
#: What only reads, with what another user may not even read.
READS = (
    (("champions",), "mlflow.db"),
    (("check",), "dvc.yaml"),
    (("checkpoints", "list"), ".paco"),
)


def give_away(root: Path) -> str:
    """Make a project another user's, or, where one may not, one that its user may only read; who owns it now."""
    mine = os.geteuid() != 0
    for path in [root, *walk(root)]:
        path.chmod(path.stat().st_mode & ~0o222) if mine else os.chown(path, NOBODY, NOBODY)
    return "yours" if mine else "belongs to"


def take_back(root: Path) -> None:
    """Let it be removed again."""
    for path in [root, *walk(root)]:
        path.chmod(path.stat().st_mode | 0o200) if os.geteuid() else os.chown(path, 0, 0)


def walk(folder: Path) -> Iterator[Path]:
    """Everything below a folder but links, and what they lead to."""
    for path in folder.iterdir():
        if not path.is_symlink():
            yield path
            if path.is_dir():
                yield from walk(path)


def be_nobody_special() -> None:
    """Give up root's rights over other users' files, in this process."""
    if os.geteuid():
        return
    libc = ctypes.CDLL(None, use_errno=True)
    header, words = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if libc.capget(header, words) == 0:
        for number in (0, 1):  # effective, permitted
            words[number] &= ~READ_AND_WRITE_ANYTHING
        if libc.capset(header, words) == 0:
            return
    raise OSError(ctypes.get_errno(), "capset")


@pytest.fixture
def project(bare: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "project"
    shutil.copytree(bare, root, symlinks=True)
    checkpoint = root / ".paco/checkpoints/policies@a/0123456789ab"
    checkpoint.mkdir(parents=True)
    (checkpoint / "state.json").write_text("{}")
    (root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    yield root
    take_back(root)


def act(verb: tuple[str, ...]) -> None:
    be_nobody_special()
    main(list(verb))


def message_breach(result: forked.ProcessResult, *names: str) -> Breach:
    if result.code is None:
        return "unclear", "hangs"
    return ("wrong", "it went through") if result.code == 0 else unclear(result.text, names)


def test_another_users_project(project: Path, tmp_path: Path, ledger: Ledger) -> None:
    whose = give_away(project)
    with ledger.row("another user's project", "verbs that write") as row:
        for verb in WRITES:
            result = forked.run(lambda verb=verb: act(verb), project, log=tmp_path / "log")
            row.judge(
                " ".join(verb), message_breach(result, whose), message_breach(result, str(project), "comparison.html")
            )
    with ledger.row("another user's project", "verbs that read") as row:
        for verb, closed in READS:
            (project / closed).chmod(0)
            result = forked.run(lambda verb=verb: act(verb), project, log=tmp_path / "log")
            row.judge(" ".join(verb), message_breach(result, closed))


def test_a_cache_that_cannot_be_written_is_skipped_with_a_word(tmp_path: Path, ledger: Ledger) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "module.py").write_text("import os\n")

    def encode() -> None:
        be_nobody_special()
        (row,) = Encodings(cache / "encodings").rows(["a"], lambda _n: {"x": torch.ones(2)})
        assert float(row["x"].sum()) == 2.0

    def read() -> None:
        be_nobody_special()
        sources = SourceCache(cache / "code.json")
        sources.read(cache / "module.py", "package")
        sources.save()

    whose = give_away(cache)
    with ledger.row("another user's project", "caches") as row:
        for name, use in (("encodings", encode), ("readings", read)):
            result = forked.run(use, tmp_path, log=tmp_path / "log")
            clear = name in result.text and "not kept for later" in result.text and whose in result.text
            row.judge(name, None if result.code == 0 and clear else ("unclear", f"{result.code}: {result.text[-300:]}"))
    take_back(cache)


def test_a_user_without_a_home_and_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that runs as some number: MLflow, DVC and Dagster do not start without either."""

    def unknown(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", unknown)
    for name in ("HOME", "LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    with pytest.raises(SystemExit):
        main(["--version"])
    assert Path.home() == Path("/") and getpass.getuser() == str(os.getuid())


def test_the_working_folder_is_gone(tmp_path: Path, ledger: Ledger) -> None:
    with ledger.row("working folder removed", "verbs of paco") as row:
        for verb in (("status",), ("score", "a", "b", "--model", "m"), ("init", "x")):
            removed = tmp_path / "gone"
            removed.mkdir()

            def run(verb: tuple[str, ...] = verb, removed: Path = removed) -> None:
                removed.rmdir()
                main(list(verb))

            result = forked.run(run, removed, log=tmp_path / "log")
            row.judge(" ".join(verb), message_breach(result, "the folder that this runs in was removed", "x"))


def test_a_terminal_that_cannot_show_a_character(
    project: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The paper's tables have dashes and quotes; JSON stays JSON."""
    monkeypatch.chdir(project)
    with ledger.row("terminal without UTF-8", "paco tables") as row:
        for verb in (["tables"], ["tables", "--json"], ["params", "reward"]):
            printed = io.BytesIO()
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding="ascii", write_through=True))
            fault: Breach = None
            try:
                main(verb)
                assert json.loads(printed.getvalue()) if "--json" in verb else printed.getvalue()
            except (UnicodeError, ValueError) as error:
                fault = "unclear", f"{error!r}"
            row.judge(" ".join(verb), fault)
