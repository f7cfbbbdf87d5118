"""The table of all faults, which `make faults` writes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tests.faults.verdicts import BROKEN, Verdict

HEAD = ["What was done", "Where", "Tried", *(outcome.capitalize() for outcome in BROKEN)]


def markdown(verdicts: Sequence[Verdict]) -> str:
    """Rows by kind and place in the order of their names, and the sums of faults and of hostile inputs."""
    lines = [_line(HEAD), _line(["---", "---", *["---:"] * (len(HEAD) - 2)])]
    for kind, place in sorted({(verdict.kind, verdict.place) for verdict in verdicts}):
        lines.append(_counted(kind, place, [v for v in verdicts if (v.kind, v.place) == (kind, place)]))
    for name, hostile in (("all faults", False), ("all hostile inputs", True)):
        lines.append(_counted(f"**{name}**", "", [v for v in verdicts if v.hostile is hostile]))
    return "\n".join(lines) + "\n"


def _counted(kind: str, place: str, verdicts: Sequence[Verdict]) -> str:
    counts = Counter(verdict.outcome for verdict in verdicts)
    return _line([kind, place, f"{len(verdicts):,}", *(str(counts[outcome]) for outcome in BROKEN)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
