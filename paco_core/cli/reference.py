"""The page docs/reference/cli.md: every verb by group, with its arguments and an example, from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from paco_core.cli.parser import EXAMPLE, GROUPS
from paco_core.io.files import DataError, write_text

PAGE = Path("docs") / "reference" / "cli.md"
MARK = "<!-- written by `paco params --write` from paco_core/cli/arguments.py; change it there -->"


def markdown(whole: argparse.ArgumentParser) -> str:
    """A section for each group, below it one for each verb, and below that one for each of the verb's actions."""
    verbs = _actions(whole)
    sections = []
    for group, names in GROUPS.items():
        sections.append(f"## {group}")
        for name in names:
            verb = verbs.choices[name]
            sections += _section(f"### paco {name}", str(verb.description), verb)
            for action in _actions(verb)._choices_actions if verb._subparsers else ():
                part = _actions(verb).choices[action.dest]
                sections += _section(f"#### paco {name} {action.dest}", str(action.help), part)
    return "\n\n".join(sections)


def _actions(verb: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in verb._actions if isinstance(action, argparse._SubParsersAction))


def _section(heading: str, text: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    """Its heading, what it does, a table of its arguments if it has any, and its example if it has one."""
    yield heading
    yield f"{text[0].upper()}{text[1:]}."
    listed = [a for a in verb._actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)]
    if listed:
        yield "\n".join(["| argument | meaning |", "|---|---|", *map(_row, listed)])
    if verb.epilog:
        yield f"{EXAMPLE}`{verb.epilog.removeprefix(EXAMPLE)}`"


def _row(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices is not None:
        value = ", ".join(map(str, action.choices))
    name = ", ".join(action.option_strings) or str(value)
    if action.option_strings and action.nargs != 0:
        name += f" {value}"
    many = " ..." if action.nargs in ("+", "*") else ""
    text = (action.help or "") % {**vars(action), "prog": "paco"} if action.help else ""
    optional = action.nargs in ("?", "*") and not action.option_strings
    text = "; ".join(part for part in (text, "may be left out" if optional and "default" not in text else "") if part)
    return f"| `{name}{many}` | {text} |".replace("  ", " ")


def page(root: Path, whole: argparse.ArgumentParser) -> str:
    """The page with its verbs as they are now.

    Raises:
        DataError: when the page has lost its mark.
    """
    before, mark, _ = (root / PAGE).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise DataError(f"{PAGE}: the mark {MARK!r} is missing")
    return f"{before}{MARK}\n\n{markdown(whole)}\n"


def write(root: Path, whole: argparse.ArgumentParser) -> Path:
    """Write the page again; returns its path."""
    write_text(root / PAGE, page(root, whole))
    return PAGE
