"""What became of each fault, and the file that the table is made from."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

#: ``held``: a guarantee of docs/reference/reliability.md was kept. ``lost``: something acknowledged is gone.
#: ``doubled``: something is counted, written, requested or tracked twice. ``wrong``: a run succeeds with other outputs
#: than an undisturbed run, or accepts bad data. ``unclear``: a traceback, an error without file or key, or a hang.
Outcome = Literal["held", "lost", "doubled", "wrong", "unclear"]
BROKEN: tuple[Outcome, ...] = ("lost", "doubled", "wrong", "unclear")
RAW = ("Traceback (most recent call last)", "Fatal Python error", "Segmentation fault")
SHOWN = 12


@dataclass(frozen=True)
class Verdict:
    """One fault: its kind and place (a row of the table), what was done, and what came of it.

    ``hostile`` counts inputs of somebody else's making (a request, an answer) apart from faults of the machine.
    """

    kind: str
    place: str
    fault: str
    outcome: Outcome
    why: str = ""
    hostile: bool = False


@dataclass
class Row:
    """The faults of one kind at one place, as they are tried."""

    kind: str
    place: str
    hostile: bool = False
    verdicts: list[Verdict] = field(default_factory=list)

    def add(self, fault: str, outcome: Outcome, why: str = "") -> None:
        self.verdicts.append(Verdict(self.kind, self.place, fault, outcome, why, self.hostile))

    def judge(self, fault: str, *breaches: tuple[Outcome, str] | None) -> None:
        """Add a fault by the first breach that was found; held where all are None."""
        found = next((breach for breach in breaches if breach is not None), None)
        self.add(fault, *(found or ("held",)))

    @property
    def broken(self) -> list[Verdict]:
        return [verdict for verdict in self.verdicts if verdict.outcome != "held"]


class Ledger:
    """Appends verdicts to a file that several test processes share, one line each."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @contextmanager
    def row(self, kind: str, place: str, *, hostile: bool = False) -> Iterator[Row]:
        """Try faults of one kind at one place; all verdicts are written down, and then a broken one fails the test."""
        row = Row(kind, place, hostile)
        try:
            yield row
        finally:
            with self.path.open("a", encoding="utf-8") as lines:
                for verdict in row.verdicts:
                    lines.write(json.dumps(asdict(verdict)) + "\n")
        assert row.verdicts, f"{kind}, {place}: no fault was tried"
        listed = "\n".join(f"  {v.outcome}: {v.fault}: {v.why}" for v in row.broken[:SHOWN])
        assert not row.broken, f"{kind}, {place}: {len(row.broken)} of {len(row.verdicts)} faults\n{listed}"

    def verdicts(self) -> list[Verdict]:
        if not self.path.is_file():
            return []
        return [Verdict(**json.loads(line)) for line in self.path.read_text(encoding="utf-8").splitlines()]


def unclear(text: str, names: Sequence[str]) -> tuple[Outcome, str] | None:
    """The breach in what a failed command printed: a raw traceback, or a text with none of ``names`` in it."""
    for raw in RAW:
        if raw in text:
            return "unclear", f"{raw} ... {text.strip().splitlines()[-1][:200]}"
    if not any(name in text for name in names):
        return "unclear", f"names none of {', '.join(names)}: {text.strip()[-300:]!r}"
    return None
