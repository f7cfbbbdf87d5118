"""An argument parser that suggests the nearest verb, option or value, and a help that lists verbs by group."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from paco_core.io.home import expand_home
from paco_core.io.messages import nearest

UNKNOWN = re.compile(r"invalid choice: '(?P<value>[^']*)' \(choose from (?P<choices>.*)\)$", re.DOTALL)
#: The verbs by purpose, in the order of the help and of the reference page.
GROUPS = {
    "Start": ("init", "profile", "params", "doctor", "check", "plan"),
    "Run": ("annotate", "serve", "sweep", "reproduce", "checkpoints", "sync"),
    "Look": ("status", "graph", "tour", "tables", "compare", "provenance", "champions"),
    "Use": ("score", "grade", "paint", "edit", "story", "play", "fetch"),
    "Publish": ("promote", "rollback", "dataset", "push"),
    "Internal": ("zoo", "run", "code", "completion"),
}
#: Verbs that programs call: the help does not list them.
HIDDEN = ("run", "code", "completion")
EXAMPLE = "For example: "  # begins the last line of a verb's help


class Parser(argparse.ArgumentParser):
    """``ArgumentParser``; a error about an unknown verb, option or value suggests the nearest one."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        namespace, unknown = self.parse_known_args(args, namespace)
        if unknown:
            verb = self._parser_of(namespace)
            options = [text for text in verb._option_string_actions if text[:2] == "--"]
            near = nearest(unknown[0].partition("=")[0], options)
            verb.error(f"unrecognized arguments: {' '.join(unknown)}" + (f", did you mean '{near}'?" if near else ""))
        return namespace

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """The value of an argument. A shell does not expand ``~`` in ``--model=~/reward``, or in quotes."""
        if arg_string.startswith("~/"):
            arg_string = expand_home(arg_string)
        return super()._get_value(action, arg_string)  # type: ignore[misc]

    def _parser_of(self, namespace: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the verb in the arguments, with the verb's options."""
        parser: argparse.ArgumentParser = self
        while verbs := [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]:
            verb = getattr(namespace, verbs[0].dest, None)
            if verb not in verbs[0].choices:
                break
            parser = verbs[0].choices[verb]
        return parser

    def error(self, message: str) -> NoReturn:
        if match := UNKNOWN.search(message):
            near = nearest(match["value"], re.findall(r"[\w.-]+", match["choices"]))
            if near:
                message = message.replace(" (choose from", f", did you mean '{near}'? (choose from", 1)
        super().error(message)


class GroupedHelp(argparse.HelpFormatter):
    """Help that lists the verbs of :data:`GROUPS` under their headings, without those that are hidden."""

    def _format_action(self, action: argparse.Action) -> str:
        if not isinstance(action, argparse._SubParsersAction):
            return super()._format_action(action)
        verbs = {verb.dest: super(GroupedHelp, self)._format_action(verb) for verb in action._get_subactions()}
        groups = {
            group: "".join(verbs[name] for name in names if name not in HIDDEN) for group, names in GROUPS.items()
        }
        return "\n".join(f"{group}:\n{lines}" for group, lines in groups.items())
