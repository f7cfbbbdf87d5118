"""Lay out the site's pages: those of docs/, and what they link to elsewhere in the repository.

A Markdown page outside docs/ (README.md, a wheel's) becomes a page below project/, any other file a page that shows its
text, below source/. So every link that works on a code host works on the site, too.
"""

import os
import re
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
ELSEWHERE = re.compile(r"[a-z]+:")
FENCE = re.compile(r" *(```+|~~~+)")
#: What tests read in docs/contributing/extend.md, as a reader should see it.
PLACES = re.compile(r'^(```\w+) (append-to|add-to|after)="\s*([^"]+)"$')
ASSETS = ("iframe-worker.js", "site.css")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".json": "json"}


def site_path(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the repository lies among the site's pages."""
    if path == PurePosixPath("docs/README.md"):
        return PurePosixPath("index.md")
    if path.parts[0] == "docs":
        return path.relative_to("docs")
    if path == PurePosixPath("README.md"):
        return PurePosixPath("project/overview.md")
    if path.name == "README.md":
        return PurePosixPath("project") / f"{path.parent}.md"
    if path.suffix == ".md":
        return PurePosixPath("project") / path.parent / path.name.lower()
    return PurePosixPath("source") / f"{path}.md"


def lay_out(root: Path, source: Path) -> None:
    """Write the pages below ``source``, which is emptied first.

    Raises:
        SystemExit: a link leads to nothing, or to a folder.
    """
    shutil.rmtree(source, ignore_errors=True)
    waiting = [PurePosixPath(path.relative_to(root).as_posix()) for path in sorted((root / "docs").rglob("*.*"))]
    waiting.append(PurePosixPath("README.md"))
    written = set[PurePosixPath]()
    while waiting:
        path = waiting.pop()
        if path in written:
            continue
        written.add(path)
        if path.suffix == ".md":
            target, (text, linked) = source / site_path(path), page(root, path)
            waiting += linked
        elif path.parts[0] == "docs":
            target, text = source / site_path(path), None
        else:
            target, text = source / site_path(path), rendered(path, (root / path).read_text())
        target.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            shutil.copy(root / path, target)
        else:
            target.write_text(text)
    for name in ASSETS:
        (source / "assets").mkdir(exist_ok=True)
        shutil.copy(Path(__file__).parent / name, source / "assets" / name)


def marked(text: str) -> Iterator[tuple[int, str, str]]:
    """Each line of a page with its number and its kind: ``text``; ``open``, ``code`` and ``close`` of a code block."""
    fence = ""
    for number, line in enumerate(text.splitlines(), 1):
        opening = FENCE.match(line)
        if opening and not fence:
            fence = opening[1]
            yield number, "open", line
        elif opening and line.strip() == fence:
            fence = ""
            yield number, "close", line
        else:
            yield number, "code" if fence else "text", line


def page(root: Path, path: PurePosixPath) -> tuple[str, list[PurePosixPath]]:
    """A page with its links as the site needs them, and the files outside docs/ that it links to."""
    linked, lines = list[PurePosixPath](), list[str]()
    for number, kind, line in marked((root / path).read_text()):
        if kind == "text":
            lines.append(LINK.sub(partial(moved, root, path, linked, number), line))
        else:
            lines.append(PLACES.sub(_titled, line) if kind == "open" else line)
    return "\n".join(lines) + "\n", linked


def _titled(place: re.Match[str]) -> str:
    """The first line of a code block with where it goes as its title."""
    return f'{place[1]} title="{place[2].replace("-", " ")} {place[3]}"'


def moved(root: Path, path: PurePosixPath, linked: list[PurePosixPath], line: int, link: re.Match[str]) -> str:
    """One link, from where the page will lie to where its target will."""
    if ELSEWHERE.match(link[1]):
        return link[0]
    target = PurePosixPath(os.path.normpath(path.parent / link[1]))
    if not (root / target).is_file():
        raise SystemExit(f"{path}:{line}: the link {link[1]} leads to no file; name one of the repository")
    if target.parts[0] != "docs":
        linked.append(target)
    return os.path.relpath(site_path(target), site_path(path).parent) + (link[2] or "")


def rendered(path: PurePosixPath, text: str) -> str:
    """A page that shows a source file."""
    return f"# {path}\n\n````{LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n````\n"
