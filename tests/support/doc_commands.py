"""The commands that the documentation shows: where they stand, and whether a test runs them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pages import marked

#: ``<!-- not run: REASON -->`` or ``<!-- runs: tests/FILE.py -->``, on the line above the block.
MARK = re.compile(r" *<!-- (not run|runs): (.+) -->")
OPENING = re.compile(r" *`{3,}(\w*)(?: title=\"([^\"]+)\")?")
INLINE = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
COMMENT = re.compile(r"(^|\s)#(\s.*)?$", re.MULTILINE)
BETWEEN = set("();<>|&\n")
SHELL = ("sh", "console")


@dataclass(frozen=True)
class Block:
    """A fenced block; ``title`` names its file, ``mark`` is what the line above says of it, as (kind, text)."""

    place: str
    language: str
    title: str | None
    mark: tuple[str, str] | None
    lines: list[str] = field(default_factory=list)

    @property
    def script(self) -> str:
        """What a shell would run; of a console, what follows its ``$``."""
        if self.language == "console":
            return "\n".join(line[2:] for line in self.lines if line.startswith("$ "))
        return "\n".join(self.lines)


def pages_of(root: Path, *folders: str) -> list[str]:
    """README.md and the pages below these folders of docs/."""
    pages = (path for folder in folders for path in sorted((root / "docs" / folder).glob("**/*.md")))
    return ["README.md", *(path.relative_to(root).as_posix() for path in pages)]


def blocks(root: Path, page: str) -> list[Block]:
    """Every fenced block of a page."""
    above, blocks = "", list[Block]()
    for number, kind, line in marked((root / page).read_text()):
        if kind == "open":
            opening, mark = OPENING.match(line), MARK.fullmatch(above)
            assert opening is not None, f"{page}:{number}: not a fence of backticks"
            blocks.append(Block(f"{page}:{number}", opening[1], opening[2], (mark[1], mark[2]) if mark else None))
        elif kind == "code":
            blocks[-1].lines.append(line)
        above = line
    return blocks


def inline(root: Path, page: str) -> Iterator[tuple[str, str]]:
    """Code of more than one word within the text of a page, each with where it stands."""
    for number, kind, line in marked((root / page).read_text()):
        if kind == "text":
            yield from ((f"{page}:{number}", code) for code in INLINE.findall(line) if " " in code)


def commands(script: str) -> list[list[str]]:
    """The words of each simple command of a script; assignments before it, and redirections, are left out."""
    bare = COMMENT.sub("", script.replace("\\\n", " "))
    lexer = shlex.shlex(bare, posix=True, punctuation_chars="".join(BETWEEN))
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t", True, ""
    commands, redirected = [list[str]()], False
    for token in lexer:
        if token and set(token) <= BETWEEN:
            redirected = token in (">", ">>", "<")
            if not redirected:
                commands.append([])
        elif redirected:
            redirected = False
        elif commands[-1] or not re.match(r"[A-Za-z_]\w*=", token):
            commands[-1].append(token)
    return [words for words in commands if words]
