"""The command ``paco``: a file for each group of verbs."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the installed command."""
    from paco_core.cli.commands import main as run

    run(argv)
