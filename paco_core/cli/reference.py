"""Reference page of the verbs, docs/reference/cli.md, generated from the argument parser."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Iterator
from pathlib import Path

from paco_core.cli.parser import EXAMPLE, GROUPS
from paco_core.io.files import DataError, write_text

PAGE = Path("docs") / "reference" / "cli.md"
MARK = "<!-- written by `paco params --write` from paco_core/cli/arguments.py; change it there -->"
JSON = "--json"
#: Verbs with options of another verb, which the page describes once.
SHARED_OPTIONS = {"edit": "paint", "story": "paint"}


def markdown(root_parser: argparse.ArgumentParser) -> str:
    """A section per group, with a subsection per verb and one per action of a verb."""
    verbs = _actions(root_parser).choices
    sections = []
    for group, names in GROUPS.items():
        sections.append(f"## {group}")
        for name in names:
            verb = verbs[name]
            other = SHARED_OPTIONS.get(name)
            shared = {option for action in verbs[other]._actions for option in action.option_strings} if other else ()
            sections += _section(f"### paco {name}", str(verb.description), verb, shared)
            if other:
                sections.insert(-1, f"The other options are those of [paco {other}](#paco-{other}).")
            for action in _actions(verb)._choices_actions if verb._subparsers else ():
                parser = _actions(verb).choices[action.dest]
                sections += _section(f"#### paco {name} {action.dest}", str(action.help), parser)
    return "\n\n".join(sections)


def _actions(verb: argparse.ArgumentParser) -> argparse._SubParsersAction[argparse.ArgumentParser]:
    return next(action for action in verb._actions if isinstance(action, argparse._SubParsersAction))


def _section(heading: str, text: str, verb: argparse.ArgumentParser, shared: Collection[str] = ()) -> Iterator[str]:
    """The heading, the description, the table of arguments and the example of a verb.

    Args:
        shared: options to leave out, because the page describes them with another verb.
    """
    yield heading
    options = {option for action in verb._actions for option in action.option_strings}
    yield f"{text[0].upper()}{text[1:]}." + (f" Accepts `{JSON}`." if JSON in options else "")
    rows = [
        _row(action)
        for action in verb._actions
        if not isinstance(action, argparse._HelpAction | argparse._SubParsersAction)
        and not {*shared, JSON}.intersection(action.option_strings)
    ]
    if rows:
        yield "\n".join(["|argument|meaning|", "|---|---|", *rows])
    example = (verb.epilog or "").removeprefix(EXAMPLE)
    if example and not heading.endswith(f"# {example}"):  # a verb without arguments is its own example
        yield f"{EXAMPLE}`{example}`"


def _row(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.option_strings else action.dest)
    if action.choices is not None:
        value = ", ".join(map(str, action.choices))
    name = ", ".join(action.option_strings) or str(value)
    if action.option_strings and action.nargs != 0:
        name += f" {value}"
    several = " ..." if action.nargs in ("+", "*") else ""
    text = (action.help or "") % {**vars(action), "prog": "paco"} if action.help else ""
    optional = action.nargs in ("?", "*") and not action.option_strings and "default" not in text
    text = "; ".join(part for part in (text, "optional" if optional else "") if part)
    return f"|`{name}{several}`|{text}|"


def page(root: Path, root_parser: argparse.ArgumentParser) -> str:
    """The text of the page for the current verbs.

    Raises:
        DataError: when the page has lost its mark.
    """
    before, mark, _ = (root / PAGE).read_text(encoding="utf-8").partition(MARK)
    if not mark:
        raise DataError(f"{PAGE}: the mark {MARK!r} is missing; restore it with `git checkout -- {PAGE}`")
    return f"{before}{MARK}\n\n{markdown(root_parser)}\n"


def write(root: Path, root_parser: argparse.ArgumentParser) -> Path:
    """Write the page; returns its path."""
    write_text(root / PAGE, page(root, root_parser))
    return PAGE
