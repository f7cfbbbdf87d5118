"""What a user asks to be written, in the place of something of the user's: refused in one line, and nothing is touched.

Every verb of `paco` with a path to write is tried with every kind of thing that may stand there.
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
from tests.faults.verdicts import Ledger, Outcome, unclear

KIND = "something of the user's in the way"
Breach = tuple[Outcome, str] | None
#: A verb up to the path that it writes, that path's name, and what may not stand there.
FILE, FOLDER, NEW = ("folder", "empty folder", "link to a folder"), ("file",), ("folder", "file", "link to a folder")
VERBS: dict[tuple[str, ...], tuple[str, tuple[str, ...]]] = {
    ("score", "--table", "t.csv", "--out"): ("out.csv", FILE),
    ("compare", "run", "--out"): ("out.html", FILE),
    ("paint", "a bear", "--panels", "one", "two", "--policy", "base", "--out"): ("out", FOLDER),
    ("edit", "cat.png", "Make it red.", "--policy", "base", "--out"): ("out", FOLDER),
    ("tables", "--out"): ("out", FOLDER),
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


def stand(place: Path, what: str) -> Path:
    """Something of the user's at a place, or what makes the place impossible; the path to ask for."""
    if "folder" in what:
        place = place.with_name("elsewhere") if "link" in what else place
        place.mkdir()
        if what != "empty folder":
            (place / "thesis.txt").write_text("years of work")
        if "link" in what:
            place.with_name(f"link-{place.name}").symlink_to(place)
            return place.with_name(f"link-{place.name}")
    elif what == "link to nothing":
        place.symlink_to("nowhere")
    elif what == "file":
        place.write_text("years of work")
    elif what == "long name":
        return place.with_name("n" * 300)
    elif what == "below a file":
        (place.parent / "notes").write_text("years of work")
        return place.parent / "notes" / place.name
    elif what == "below a link to nothing":
        (place.parent / "gone").symlink_to("nowhere")
        return place.parent / "gone" / place.name
    elif what == "in an out":
        return Path("data/reward_merged/copy") / place.name
    elif what == "in .git":
        return Path(".git") / place.name
    return place


def content(root: Path) -> list[tuple[str, int, bytes]]:
    """All names, kinds and bytes; links are not followed."""
    return sorted(
        (str(path.relative_to(root)), stat.S_IFMT(path.lstat().st_mode), b"" if path.is_dir() else path.read_bytes())
        for path in walk(root)
    )


def walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink():
            continue
        if path.name != ".paco":  # caches of what was read
            yield path
            if path.is_dir():
                yield from walk(path)


def refused(
    root: Path, verb: tuple[str, ...], path: object, capsys: pytest.CaptureFixture[str], names: Sequence[str] = ()
) -> Breach:
    """Ask for something to be written at a path; a breach unless it is refused by name and nothing has changed."""
    before = content(root)
    links = {one for one in root.iterdir() if one.is_symlink()}
    capsys.readouterr()
    try:
        main([*verb, str(path)])
        code: object = 0
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        return "unclear", f"Traceback: {type(error).__name__}: {error}"
    if content(root) != before or links != {one for one in root.iterdir() if one.is_symlink()}:
        return "lost", "something of the user's is not as it was"
    text = "".join(capsys.readouterr())
    return ("wrong", f"taken: {text[:200]}") if code == 0 else unclear(text, names or [Path(str(path)).name[:100]])


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:2]))
def test_every_verb_that_writes_where_it_is_asked_to(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], verb: tuple[str, ...]
) -> None:
    name, forbidden = VERBS[verb]
    with ledger.row(KIND, f"paco {' '.join(w for w in verb[:2] if w.isalpha())}") as row:
        for number, what in enumerate((*forbidden, *ANYWHERE)):
            place = Path(f"{number}") / name
            place.parent.mkdir()
            row.judge(what, refused(project, verb, stand(place, what), capsys))


def paths_to_write(verb: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The verbs whose parser has a path that is named as one to write to."""
    for action in verb._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from paths_to_write(sub, (*words, name))
        elif (
            action.type is Path and action.dest in ("out", "folder") and (action.help or "").find("of public data") < 0
        ):
            yield words


def test_no_verb_is_forgotten() -> None:
    tried = {" ".join(word for word in verb if word.isalpha()) for verb in VERBS}
    for words in paths_to_write(parser()):
        assert any(said.startswith(" ".join(words)) for said in tried), f"paco {' '.join(words)} writes to a path"


@pytest.mark.parametrize("verb", ["sweep", "reproduce"])
def test_a_name_of_a_folder_is_no_path(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    with ledger.row(KIND, f"paco {verb}") as row:
        for name in ("..", "../../elsewhere", "/tmp", "a/b", ".hidden", "-x", "n" * 300):
            row.judge(name[:40], refused(project, (verb,), f"--name={name}", capsys, names=("cannot be an id",)))


def test_temporary_names_are_ours(project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders that are named as half-written ones are, and are the user's."""
    (project / "data/policies/flux_t2is/adapter").mkdir(parents=True)
    (project / "data/policies/flux_t2is/adapter/README.md").write_text("card")
    for name in (".f9.part", "f9.part", ".paco-f9.part", ".paco-abcdefgh.part"):
        (project / name).mkdir()
        (project / name / "thesis.txt").write_text("years of work")
    before = content(project)
    with ledger.row(KIND, "temporary names") as row:
        main(["fetch", "flux_t2is", "f9"])
        shutil.rmtree(project / "f9")
        row.judge("fetch f9", None if content(project) == before else ("lost", "a folder that looks half-written"))


def test_a_file_that_is_read_is_not_written_over(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "cat.png").rename(project / "sheet.png")
    with ledger.row(KIND, "paco edit") as row:
        verb = ("edit", "sheet.png", "Make it red.", "--policy", "base", "--out")
        row.judge("its own picture as the sheet", refused(project, verb, project, capsys))
    (project / "sheet.png").rename(project / "cat.png")
    with ledger.row(KIND, "paco score") as row:
        row.judge("its own table", refused(project, ("score", "--table", "t.csv", "--out"), Path("t.csv"), capsys))


@pytest.mark.parametrize("what", ["params.yaml", "docs/reference/parameters.md"])
def test_a_folder_in_the_place_of_a_file_that_a_verb_writes(
    project: Path, ledger: Ledger, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    verb = ("profile", "use", "smoke") if what == "params.yaml" else ("params", "--write")
    place = project / what
    place.unlink(missing_ok=True)
    place.mkdir(parents=True)
    (place / "thesis.txt").write_text("years of work")
    with ledger.row(KIND, f"paco {verb[0]}") as row:
        before = content(project)
        text = ended(verb, capsys)
        lost = None if content(project) == before else ("lost", "not as it was")
        row.judge(what, lost, unclear(text, [place.name]))  # type: ignore[arg-type]


def ended(verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    try:
        main(list(verb))
    except SystemExit:
        return "".join(capsys.readouterr())
    except BaseException as error:
        return f"Traceback (most recent call last) {type(error).__name__}: {error}"
    return "taken"


def test_the_content_sees_one_byte(tmp_path: Path) -> None:
    """The verdict has teeth."""
    (tmp_path / "a").write_text("years of work")
    before = content(tmp_path)
    (tmp_path / "a").write_text("years of Work")
    assert content(tmp_path) != before
