"""Output paths at which a user's file exists: paco rejects them in one line, and changes nothing.

Every verb of `paco` with an output path is tried with every kind of entry at this path.
"""

from __future__ import annotations

import argparse
import shutil
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from paco_core.cli.arguments import parser
from paco_core.cli.commands import main
from tests.faults.verdicts import Breach, Ledger, unclear

KIND = "something of the user's in the way"
#: A verb up to the path that it writes, that path's name, and what may not stand there.
FILE, FOLDER, NEW = ("folder", "empty folder", "link to a folder"), ("file",), ("folder", "file", "link to a folder")
VERBS: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("score", "--table", "t.csv", "--out"): ("out.csv", FILE),
    ("compare", "run", "--out"): ("out.html", FILE),
    ("paint", "a bear", "--panels", "one", "two", "--policy", "base", "--out"): ("out", FOLDER),
    ("story", "--character", "fox=cat.png", "Fox wakes", "Fox runs", "--policy", "base", "--out"): ("out", FOLDER),
    ("edit", "cat.png", "Make it red.", "--policy", "base", "--out"): ("out", FOLDER),
    ("tables", "--out"): ("out", FOLDER),
    ("grade", "lora.safetensors", "--model", "flux_t2is", "--out"): ("out", FOLDER),
    ("fetch", "flux_t2is"): ("out", NEW),
    ("dataset", "export", "parquet"): ("out", NEW),
    ("dataset", "import", "gedit", "edits.parquet"): ("out", NEW),
    ("annotate", "export", "--folder"): ("out", NEW),
    ("init",): ("out", NEW),
}
ANYWHERE = ("link to nothing", "below a file", "below a link to nothing", "in an out", "in .git", "long name")


@pytest.fixture
def project(bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a few things of its user's in it."""
    from PIL import Image

    root = tmp_path / "project"
    shutil.copytree(bare, root, symlinks=True)
    (root / ".git").mkdir()
    (root / "data/reward_merged").mkdir()
    Image.new("RGB", (64, 64)).save(root / "cat.png")
    (root / "t.csv").write_text("first,second\ncat.png,cat.png\n")
    monkeypatch.chdir(root)
    return root


def stand(place: Path, kind: str) -> Path:
    """Something of the user's at a place, or what makes the place impossible; the path to ask for."""
    if kind in ("folder", "empty folder", "link to a folder"):
        place.mkdir()
        if kind != "empty folder":
            (place / "thesis.txt").write_text("years of work")
        if kind == "link to a folder":
            place.with_name("link").symlink_to(place.absolute())
            return place.with_name("link")
    elif kind == "link to nothing":
        place.symlink_to("nowhere")
    elif kind == "file":
        place.write_text("years of work")
    elif kind == "below a file":
        place.with_name("notes").write_text("years of work")
        return place.with_name("notes") / place.name
    elif kind == "below a link to nothing":
        place.with_name("gone").symlink_to("nowhere")
        return place.with_name("gone") / place.name
    elif kind == "long name":
        return place.with_name("n" * 300)
    elsewhere = {"in an out": "data/reward_merged/copy", "in .git": ".git"}
    return Path(elsewhere[kind], place.name) if kind in elsewhere else place


def content(root: Path) -> dict[str, tuple[int, bytes]]:
    """Kinds and bytes of all but what is read again (.paco); of a link, where it leads."""
    entries = {}
    for path in root.rglob("*"):
        if ".paco" not in path.parts:
            data = bytes(path.readlink()) if path.is_symlink() else b"" if path.is_dir() else path.read_bytes()
            entries[str(path.relative_to(root))] = stat.S_IFMT(path.lstat().st_mode), data
    return entries


def rejection_breach(
    root: Path, verb: tuple[str, ...], path: object, capsys: pytest.CaptureFixture[str], names: Sequence[str] = ()
) -> Breach:
    """Ask for something to be written at a path; a breach unless it is refused by name and nothing has changed."""
    before = content(root)
    capsys.readouterr()
    try:
        main([*verb, str(path)])
        code: object = 0
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        return "unclear", f"Traceback: {type(error).__name__}: {error}"
    if content(root) != before:
        return "lost", "something of the user's is not as it was"
    text = "".join(capsys.readouterr())
    return ("wrong", f"taken: {text[:200]}") if code == 0 else unclear(text, names or [Path(str(path)).name[:100]])


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:2]))
def test_every_verb_that_writes_where_it_is_asked_to(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    name, forbidden = VERBS[verb]
    with ledger.row(KIND, f"paco {' '.join(w for w in verb[:2] if w.isalpha())}") as row:
        for number, kind in enumerate((*forbidden, *ANYWHERE)):
            place = Path(f"{number}") / name
            place.parent.mkdir()
            row.judge(kind, rejection_breach(project, verb, stand(place, kind), capsys))


def paths_to_write(verb: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[str]:
    """The verbs whose parser has a path that is named as one to write to."""
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from paths_to_write(sub, (*words, name))
        elif action.type is Path and action.dest in ("out", "folder") and "of public data" not in (action.help or ""):
            yield " ".join(words)


def test_no_verb_is_forgotten() -> None:
    tried = [" ".join(word for word in verb if word.isalpha()) for verb in VERBS]
    for words in paths_to_write(parser()):
        assert any(verb.startswith(words) for verb in tried), f"paco {words} writes to a path"


@pytest.mark.parametrize("verb", ["sweep", "reproduce"])
def test_a_name_of_a_folder_is_no_path(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    with ledger.row(KIND, f"paco {verb}") as row:
        for name in ("../../elsewhere", "/tmp", ".hidden", "-x", "n" * 300):
            row.judge(
                name[:40], rejection_breach(project, (verb,), f"--name={name}", capsys, names=("cannot be an id",))
            )


def test_a_file_that_is_read_is_not_written_over(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copy("cat.png", "sheet.png")
    edit = ("edit", "sheet.png", "Make it red.", "--policy", "base", "--out")
    with ledger.row(KIND, "what is read") as row:
        row.judge("paco edit", rejection_breach(project, edit, project, capsys))
        row.judge(
            "paco score", rejection_breach(project, ("score", "--table", "t.csv", "--out"), Path("t.csv"), capsys)
        )
