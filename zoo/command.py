"""The commands ``paco zoo build`` and ``paco zoo check``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.io.answer import Answer, to_jsonable
from zoo.names import validate_names

WORK = Path(".paco") / "zoo"
ZOO = Path("data") / "zoo"


def build(members: Sequence[str], root: Path) -> None:
    """Train members (all if empty) of the zoo below ``root``. Interrupted trainings continue."""
    validate_names(members)  # before the imports of the training
    from zoo.build import build as build_members

    build_members(members, root / WORK, root / ZOO)


def check(members: Sequence[str], root: Path) -> tuple[Answer, bool]:
    """Measure members (all when empty) again: card against measurement, and whether all agree."""
    validate_names(members)  # before the imports of the measurements
    from zoo.check import check as check_members

    reports = check_members(members, root / ZOO)
    lines = []
    for report in reports:
        lines.append(f"{report.member}: {'as its card says' if report.ok else 'NOT as its card says'}")
        for figure in report.figures:
            mark = "ok " if figure.ok else "OFF"
            lines.append(f"  {mark} {figure.name}: card {figure.card:.3f}, measured {figure.measured:.3f}")
        for problem in report.problems:
            lines.append(f"  OFF {problem}")
    figures = [{"ok": report.ok, **to_jsonable(report)} for report in reports]
    return Answer("\n".join(lines), figures), all(report.ok for report in reports)
