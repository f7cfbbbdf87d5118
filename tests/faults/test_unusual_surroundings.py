"""Another user's project, a folder that is gone, a terminal without UTF-8, a disk without room: a sentence each."""

from __future__ import annotations

import getpass
import io
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from paco_core.cli.commands import main
from tests.faults import disks, others
from tests.faults.verdicts import RAW, Ledger, Outcome, unclear
from tests.support import forked

Breach = tuple[Outcome, str] | None
#: What writes into a project.
WRITES = (
    ("run", "prompts"),
    ("code",),
    ("promote", "flux_t2is"),
    ("rollback", "reward"),
    ("serve", "gateway"),
    ("profile", "use", "smoke"),
    ("checkpoints", "drop", "--all"),
    ("annotate",),
    ("params", "--write"),
    ("compare", "x"),
    ("sweep", "--name", "x"),
)
#: What only reads, with what another user may not even read.
READS = (
    (("champions",), "mlflow.db"),
    (("check",), "dvc.yaml"),
    (("graph",), "dvc.yaml"),
    (("checkpoints", "list"), ".paco"),
    (("tables",), "dvc.yaml"),
)


@pytest.fixture
def project(bare: Path, tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / "project"
    shutil.copytree(bare, root, symlinks=True)
    kept = root / ".paco/checkpoints/policies@a/0123456789ab"
    kept.mkdir(parents=True)
    (kept / "state.json").write_text("{}")
    (root / "docs/reference").mkdir(parents=True)
    (root / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
    yield root
    others.take_back(root)


def act(verb: tuple[str, ...]) -> None:
    others.be_nobody_special()
    main(list(verb))


def said(ended: forked.Ended, *names: str) -> Breach:
    if ended.code is None:
        return "unclear", "hangs"
    return ("wrong", "it went through") if ended.code == 0 else unclear(ended.text, names)


def test_another_users_project_is_not_written(project: Path, tmp_path: Path, ledger: Ledger) -> None:
    whose = others.give_away(project)
    with ledger.row("another user's project", "verbs that write") as row:
        for verb in WRITES:
            ended = forked.run(lambda verb=verb: act(verb), project, log=tmp_path / "log")
            row.judge(" ".join(verb), said(ended, whose), said(ended, str(project), "comparison.html"))


def test_another_users_project_that_is_closed(project: Path, tmp_path: Path, ledger: Ledger) -> None:
    for _, closed in READS:
        (project / closed).chmod(0)
    others.give_away(project)
    with ledger.row("another user's project", "verbs that read") as row:
        for verb, closed in READS:
            ended = forked.run(lambda verb=verb: act(verb), project, log=tmp_path / "log")
            row.judge(" ".join(verb), said(ended, closed))


def test_a_cache_that_cannot_be_written_is_skipped_with_a_word(tmp_path: Path, ledger: Ledger) -> None:
    import torch

    from paco_core.policies.encodings import Encodings
    from paco_core.runtime.code.source import SourceCache

    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "module.py").write_text("import os\n")

    def encode() -> None:
        others.be_nobody_special()
        (row,) = Encodings(cache / "encodings").rows(["a"], lambda _n: {"x": torch.ones(2)})
        assert float(row["x"].sum()) == 2.0

    def read() -> None:
        others.be_nobody_special()
        sources = SourceCache(cache / "code.json")
        sources.read(cache / "module.py", "package")
        sources.save()

    whose = others.give_away(cache)
    with ledger.row("another user's project", "caches") as row:
        for name, use in (("encodings", encode), ("readings", read)):
            ended = forked.run(use, tmp_path, log=tmp_path / "log")
            clear = name in ended.text and "not kept for later" in ended.text and whose in ended.text
            row.judge(name, None if ended.code == 0 and clear else ("unclear", f"{ended.code}: {ended.text[-300:]}"))
    others.take_back(cache)


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
        for verb in (("status",), ("doctor",), ("score", "a", "b", "--model", "m"), ("init", "x"), ("graph",)):
            gone = tmp_path / "gone"
            gone.mkdir()

            def run(verb: tuple[str, ...] = verb, gone: Path = gone) -> None:
                gone.rmdir()
                main(list(verb))

            ended = forked.run(run, gone, log=tmp_path / "log")
            row.judge(" ".join(verb), said(ended, "the folder that this runs in was removed", "x"))


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_cannot_show_a_character(
    project: Path, tmp_path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    """The paper's tables have dashes and quotes; JSON stays JSON."""
    monkeypatch.chdir(project)
    with ledger.row("terminal without UTF-8", "paco tables") as row:
        for verb in (["tables"], ["tables", "--json"], ["params", "reward"]):
            printed = io.BytesIO()
            monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, encoding=encoding, write_through=True))
            try:
                main(verb)
                fault: Breach = None
                if "--json" in verb:
                    json.loads(printed.getvalue().decode(encoding))
            except (UnicodeError, ValueError) as error:
                fault = "unclear", f"{error!r}"
            row.judge(
                f"{' '.join(verb)}, {encoding}", fault, None if printed.getvalue() else ("lost", "nothing printed")
            )


def test_a_json_answer_in_any_encoding() -> None:
    from paco_core.io.answer import Answer

    found = Answer("x", {"text": "é – “quoted” \U0001f600"})
    for encoding in ("ascii", "latin-1", "utf-8"):
        assert json.loads(found.json(encoding).encode(encoding).decode(encoding)) == found.figures


def test_init_on_a_full_disk(tmp_path: Path, ledger: Ledger) -> None:
    """Nothing half-made stays, and the advice, the same command once there is room, works."""
    with disks.mounted(tmp_path / "disk", 80) as disk, ledger.row("full disk", "paco init") as row:
        for name, free in (("new", 0), ("new/below", 40_000), ("empty", 2_000_000), ("new", 8_000_000)):
            folder = disk.folder / name
            if name == "empty":
                folder.mkdir()
            before = sorted(disk.folder.iterdir())
            disk.leave(free)
            first = forked.run(lambda folder=folder: main(["init", str(folder)]), tmp_path, log=tmp_path / "log")
            disk.empty()
            left = sorted(disk.folder.iterdir()), [*folder.iterdir()] if folder.exists() else []
            again = forked.run(lambda folder=folder: main(["init", str(folder)]), tmp_path, log=tmp_path / "log")
            row.judge(
                f"{name}, {free} bytes left",
                said(first, "no space left on the disk", "No space left"),
                None if left == (before, []) else ("wrong", f"left behind: {left}"),
                None if again.code == 0 else ("unclear", f"fails with room, too: {again.text[-300:]}"),
            )
            shutil.rmtree(disk.folder / name.partition("/")[0])


def test_the_rights_are_really_given_up(tmp_path: Path) -> None:
    """What the tests above rest on."""
    closed = tmp_path / "closed"
    closed.mkdir()

    def write() -> None:
        others.be_nobody_special()
        (closed / "x").touch()

    others.give_away(closed)
    ended = forked.run(write, tmp_path)
    others.take_back(closed)
    assert RAW[0] in ended.text and "PermissionError" in ended.text
