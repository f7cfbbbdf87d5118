"""Verdicts on faults: a line of JSON each, in a file that several test processes share, and the table made of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

#: ``held``: a guarantee of docs/reference/guarantees.md was kept. ``lost``: something acknowledged is gone.
#: ``doubled``: something is counted, written, requested or tracked twice. ``wrong``: a run succeeds with other outputs
#: than an undisturbed run, or accepts bad data. ``unclear``: a traceback, an error without file or key, or a hang.
Outcome = Literal["held", "lost", "doubled", "wrong", "unclear"]
Breach = tuple[Outcome, str] | None
BROKEN: tuple[Outcome, ...] = ("lost", "doubled", "wrong", "unclear")
RAW = ("Traceback (most recent call last)", "Fatal Python error", "Segmentation fault")


class Row:
    """The faults of one kind at one place, as they are tried."""

    def __init__(self) -> None:
        self.verdicts: list[tuple[str, Outcome, str]] = []

    def judge(self, fault: str, *breaches: Breach) -> None:
        """Add a fault by its first breach; held where all are None."""
        self.verdicts.append((fault, *next(filter(None, breaches), ("held", ""))))


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def row(self, kind: str, place: str, *, hostile: bool = False) -> Iterator[Row]:
        """Try faults of one kind at one place; all verdicts are written down, and then a broken one fails the test.

        Args:
            hostile: inputs of somebody else's making (a request, an answer), which are counted apart.
        """
        row = Row()
        try:
            yield row
        finally:
            with self.path.open("a", encoding="utf-8") as lines:
                lines.writelines(json.dumps([kind, place, hostile, *verdict]) + "\n" for verdict in row.verdicts)
        assert row.verdicts, f"{kind}, {place}: no fault was tried"
        broken = [verdict for verdict in row.verdicts if verdict[1] != "held"]
        assert not broken, f"{kind}, {place}: {len(broken)} of {len(row.verdicts)} faults: {broken[:12]}"

    def table(self) -> str:
        """Markdown: rows in the order of kinds and places, and the sums of faults and of hostile inputs."""
        text = self.path.read_text(encoding="utf-8") if self.path.is_file() else ""
        verdicts = [json.loads(line) for line in text.splitlines()]
        head = ["What was done", "Where", "Tried", *map(str.capitalize, BROKEN)]
        lines = [head, ["---", "---", *["---:"] * (len(head) - 2)]]
        for kind, place in sorted({(kind, place) for kind, place, *_ in verdicts}):
            lines.append(_counts(kind, place, [v for v in verdicts if v[:2] == [kind, place]]))
        for name, hostile in (("**all faults**", False), ("**all hostile inputs**", True)):
            lines.append(_counts(name, "", [v for v in verdicts if v[2] is hostile]))
        return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _counts(kind: str, place: str, verdicts: Sequence[Any]) -> list[str]:
    counts = Counter(outcome for *_, outcome, _ in verdicts)
    return [kind, place, f"{len(verdicts):,}", *(str(counts[outcome]) for outcome in BROKEN)]


def unclear(text: str, names: Sequence[str]) -> Breach:
    """The breach in what a failed command printed: a raw traceback, or a text with none of ``names`` in it."""
    for raw in RAW:
        if raw in text:
            return "unclear", f"{raw} ... {text.strip().splitlines()[-1][:200]}"
    if not any(name in text for name in names):
        return "unclear", f"names none of {', '.join(names)}: {text.strip()[-300:]!r}"
    return None
