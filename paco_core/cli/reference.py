"""The page docs/reference/cli.md: every verb with its arguments, from the parser itself."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from paco_core.io.files import DataError, write_text

PAGE = Path("docs") / "reference" / "cli.md"
MARK = "<!-- written by `paco params --write` from paco_core/cli/arguments.py; change it there -->"


def markdown(whole: argparse.ArgumentParser) -> str:
    """A section for each verb, and for each of its actions."""
    return "\n\n".join("\n\n".join(_section(whole, name, verb)) for name, verb in _verbs(whole))


def _verbs(whole: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in whole._actions:
        if isinstance(action, argparse._SubParsersAction):
            for verb in action.choices.values():
                yield verb.prog, verb
                yield from _verbs(verb)


def _section(whole: argparse.ArgumentParser, name: str, verb: argparse.ArgumentParser) -> Iterator[str]:
    """Its heading, what it does, and a table of its arguments where it has any."""
    depth = len(name.split())  # `paco serve up` stands below `paco serve`
    yield f"{'#' * depth} {name}"
    if text := verb.description or _help_of(whole, name):
        yield f"{text[0].upper()}{text[1:]}."
    shown = [a for a in verb._actions if not isinstance(a, argparse._HelpAction | argparse._SubParsersAction)]
    if shown:
        yield "\n".join(["| argument | meaning |", "|---|---|", *map(_row, shown)])


def _help_of(whole: argparse.ArgumentParser, name: str) -> str:
    """What the list of a verb's actions says of one of them."""
    *above, last = name.split()
    found = whole
    for part in above[1:]:
        found = _actions(found).choices[part]
    return next(
        (str(action.help) for action in _actions(found)._choices_actions if action.dest == last and action.help), ""
    )


def _actions(verb: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in verb._actions if isinstance(action, argparse._SubParsersAction))


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
