"""The text of a T2IS prompt, taken apart and put together again without loss.

    FOUR-PANEL Images with a 2x2 grid layout <subject>. All images <shared traits>. [TOP]-[LEFT]: <panel> ...

Rows of panels are marked ``[LEFT]: [MIDDLE]: [RIGHT]:`` or ``PANEL-1: PANEL-2: ...``, columns ``[TOP]: [BOTTOM]:``,
grids ``[TOP]-[LEFT]:`` and so on. The grid is that of the record's ``layout``, or where a text comes without a record
what its marks and its head state; never what the number of panels suggests. "a 4x4 jeep" is no layout.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from paco_core.config.layouts import no_layout
from paco_core.io.files import DataError

_PLACE_NAMES = r"\[[A-Z]+(?:-[A-Z]+)?\]"
_NUMBERED = "PANEL-([0-9]{1,3})"
PANEL_MARK = re.compile(rf"{_PLACE_NAMES}(?:-{_PLACE_NAMES})?:|\[{_NUMBERED}\]:|(?<![\w-]){_NUMBERED}:")
HEAD = re.compile(r"[A-Z]+-PANEL Images with an? (\d+[x×⨉]\d+) grid layout")
SHARED_START = re.compile(r"""(?:(?<=[.!?])|(?<=[.!?]['"”’]))\s*(?=(?:All|Both|Each|Every|The)\b)""")

_ARTICLE = re.compile(r"^(?:an?|the)\b", re.IGNORECASE)

COUNTS = ("ONE", "TWO", "THREE", "FOUR", "FIVE", "SIX", "SEVEN", "EIGHT", "NINE", "TEN", "ELEVEN", "TWELVE")
_VERTICAL = {"TOP": 0, "MIDDLE-TOP": 1, "MIDDLE": 2, "CENTER": 2, "MIDDLE-BOTTOM": 3, "BOTTOM": 4}
_HORIZONTAL = {"LEFT": 0, "MIDDLE-LEFT": 1, "MIDDLE": 2, "CENTER": 2, "MIDDLE-RIGHT": 3, "RIGHT": 4}
_ROWS = {
    2: ("TOP", "BOTTOM"),
    3: ("TOP", "MIDDLE", "BOTTOM"),
    4: ("TOP", "MIDDLE-TOP", "MIDDLE-BOTTOM", "BOTTOM"),
}
_COLUMNS = {
    1: ("MIDDLE",),
    2: ("LEFT", "RIGHT"),
    3: ("LEFT", "MIDDLE", "RIGHT"),
    4: ("LEFT", "MIDDLE-LEFT", "MIDDLE-RIGHT", "RIGHT"),
}


@dataclass(frozen=True)
class PanelText:
    """One panel: its mark and the characters that follow it, blanks included."""

    mark: str
    raw: str

    @property
    def text(self) -> str:
        return self.raw.strip()


@dataclass(frozen=True)
class PromptText:
    """A prompt in its parts. ``str()`` gives back the very text that was parsed."""

    head: str
    raw_subject: str
    raw_shared: str
    panels: tuple[PanelText, ...]

    @property
    def opening(self) -> str:
        """All that stands before the first panel."""
        return (self.head + self.raw_subject + self.raw_shared).strip()

    @property
    def subject(self) -> str:
        """What the set is about, without its full stop."""
        return self.raw_subject.strip().removesuffix(".")

    @property
    def shared(self) -> str:
        """The traits that all panels share; empty where the prompt names none."""
        return self.raw_shared.strip()

    @property
    def theme(self) -> str:
        """Subject and shared traits: :func:`prompt_from_theme` makes this very text of it and the panels' texts."""
        return f"{self.subject}. {self.shared}".strip()

    def __str__(self) -> str:
        panels = (panel.mark + panel.raw for panel in self.panels)
        return "".join([self.head, self.raw_subject, self.raw_shared, *panels])


@lru_cache(maxsize=256)
def parse_layout(layout: str) -> tuple[int, int]:
    """(rows, columns) of a layout such as ``2x2``.

    Raises:
        DataError: when it is none.
    """
    match = re.fullmatch("([1-9][0-9]?)[x×⨉]([1-9][0-9]?)", layout.strip())
    if match is None:
        raise DataError(no_layout(layout))
    return int(match.group(1)), int(match.group(2))


def panel_marks(layout: str) -> list[str]:
    """The marks that public prompts use for this layout, in reading order.

    Raises:
        DataError: for a grid whose places have no names (more than 4 rows or columns).
    """
    rows, columns = parse_layout(layout)
    if rows == 1 and columns in (2, 3):
        return [f"[{name}]:" for name in _COLUMNS[columns]]
    if rows == 1:
        return [f"PANEL-{n}:" for n in range(1, columns + 1)]
    if rows not in _ROWS or columns not in _COLUMNS:
        raise DataError(f"layout {layout}: its panels have no names; grids go up to 4x4, single rows have no limit")
    return [f"[{row}]-[{column}]:" for row in _ROWS[rows] for column in _COLUMNS[columns]]


def layout_of(prompt: str, expected: str | None = None) -> str | None:
    """The layout of a text that comes without a record, such as ``2x3``; None where it states none.

    Its marks state it, and its head where it has one. Numbered panels (``PANEL-1:``) without a head stand in one row,
    as this format writes them, unless ``expected`` says otherwise.

    Args:
        expected: the layout that the text must have; None accepts each.

    Raises:
        DataError: when marks, head and ``expected`` contradict each other, or the marks make no grid.
    """
    marks = [mark.group() for mark in PANEL_MARK.finditer(prompt)]
    stated = _stated(prompt, marks)
    if expected is not None:
        expected = "{}x{}".format(*parse_layout(expected))
        if stated is not None and expected != stated:
            raise DataError(f"the layout is to be {expected}, the prompt states {stated}: {prompt[:80]!r}")
    layout = stated or expected or (f"1x{len(marks)}" if marks else None)
    if marks and layout is not None:
        parse_prompt(prompt, layout)
    return layout


def _stated(prompt: str, marks: Sequence[str]) -> str | None:
    """What the marks and the head of a prompt say."""
    head = HEAD.match(prompt.lstrip())
    by_head = "{}x{}".format(*parse_layout(head.group(1))) if head else None
    by_marks = _grid(marks)
    if by_head is not None and by_marks not in (None, by_head):
        raise DataError(f"prompt says {by_head} at its head, its marks make {by_marks}: {prompt[:80]!r}")
    return by_marks or by_head


def _grid(marks: Sequence[str]) -> str | None:
    """The grid that named marks make; None for numbered ones.

    Raises:
        DataError: when they make none.
    """
    if any(re.search(_NUMBERED, mark) for mark in marks) or not marks:
        return None
    names = [tuple(re.findall(r"\[([A-Z-]+)\]", mark)) for mark in marks]
    if all(len(name) == 1 for name in names):
        column = any(name in (("TOP",), ("BOTTOM",)) for name in names)
        return f"{len(names)}x1" if column else f"1x{len(names)}"
    rows, columns = ({name[part] for name in names} for part in (0, -1))
    if any(len(name) == 1 for name in names) or len(rows) * len(columns) != len(names):
        raise DataError(f"the marks {' '.join(marks)} make no grid of rows and columns")
    return f"{len(rows)}x{len(columns)}"


@lru_cache(maxsize=4096)
def parse_prompt(prompt: str, layout: str) -> PromptText:
    """Take a prompt apart.

    Raises:
        DataError: when the text marks another number of panels than the layout has, or not in reading order, or states
            another layout.
    """
    rows, columns = parse_layout(layout)
    marks = list(PANEL_MARK.finditer(prompt))
    if len(marks) != rows * columns:
        raise DataError(f"prompt marks {len(marks)} panels, its layout {layout} has {rows * columns}: {prompt[:80]!r}")
    places = [_place(mark.group()) for mark in marks]
    if any(here >= there for here, there in pairwise(places)):
        marked = " ".join(mark.group() for mark in marks)
        raise DataError(f"prompt marks its panels out of reading order ({marked}): {prompt[:80]!r}")
    stated = _stated(prompt, [mark.group() for mark in marks])
    if stated not in (None, f"{rows}x{columns}"):
        raise DataError(f"prompt states the layout {stated}, its record {layout}: {prompt[:80]!r}")
    ends = [mark.start() for mark in marks[1:]] + [len(prompt)]
    panels = tuple(PanelText(mark.group(), prompt[mark.end() : end]) for mark, end in zip(marks, ends, strict=True))
    opening = prompt[: marks[0].start()]
    head = HEAD.match(opening)
    begin = head.end() if head else 0
    cut = SHARED_START.search(opening, begin)
    middle = cut.start() if cut else len(opening)
    return PromptText(opening[:begin], opening[begin:middle], opening[middle:], panels)


def compose_prompt(subject: str, shared: str, texts: Sequence[str], layout: str) -> PromptText:
    """A prompt from its parts, in the public wording.

    Raises:
        DataError: when there is not one text a panel, or a text holds a mark of its own.
    """
    marks = panel_marks(layout)
    if len(texts) != len(marks):
        raise DataError(f"layout {layout} has {len(marks)} panels, {len(texts)} texts were given")
    if len(marks) > len(COUNTS):
        raise DataError(f"layout {layout} has {len(marks)} panels; the wording counts up to {len(COUNTS)}")
    for text in (subject, shared, *texts):
        if mark := PANEL_MARK.search(text):
            raise DataError(f"the text holds the panel mark {mark.group()}: {text[:80]!r}")
    gaps, common = [" "] * (len(marks) - 1) + [""], shared.strip()
    panels = tuple(PanelText(m, f" {t.strip()}{gap}") for m, t, gap in zip(marks, texts, gaps, strict=True))
    head = f"{COUNTS[len(marks) - 1]}-PANEL Images with a {layout} grid layout"
    return PromptText(head, f" {subject.strip().removesuffix('.')}.", f" {common} " if common else " ", panels)


def prompt_from_theme(theme: str, texts: Sequence[str], layout: str) -> PromptText:
    """A prompt from a theme and what each panel shows, for a person: the theme is its subject, named once.

    What follows the theme's first sentence as in a whole prompt ("All images show ...") is what the panels share.

    Raises:
        DataError: as :func:`compose_prompt`.
    """
    theme = theme.strip()
    cut = SHARED_START.search(theme)
    subject, shared = (theme[: cut.start()], theme[cut.end() :]) if cut else (theme, "")
    return compose_prompt(_ARTICLE.sub(r"of \g<0>", subject), shared, texts, layout)


def _place(mark: str) -> tuple[int, int]:
    """(row, column) rank of a mark, comparable between the marks of one prompt."""
    if number := re.search(_NUMBERED, mark):
        return 0, int(number.group(1))
    names = re.findall(r"\[([A-Z-]+)\]", mark)
    if len(names) == 2 and names[0] in _VERTICAL and names[1] in _HORIZONTAL:
        return _VERTICAL[names[0]], _HORIZONTAL[names[1]]
    if len(names) == 1 and names[0] in _HORIZONTAL:
        return 0, _HORIZONTAL[names[0]]
    if len(names) == 1 and names[0] in _VERTICAL:
        return _VERTICAL[names[0]], 0
    raise DataError(f"{mark!r} is not a position in a grid")
