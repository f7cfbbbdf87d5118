"""An argument parser that knows what was probably meant."""

from __future__ import annotations

import argparse
import re
from typing import Any, NoReturn

from paco_core.io.nearest import nearest

UNKNOWN = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """``ArgumentParser``; a verb, option or value that it does not know is answered with the nearest that it knows."""

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, left = self.parse_known_args(args, namespace)
        if left:
            verb = self._of_verb(found)
            near = nearest(
                left[0].partition("=")[0], [text for text in verb._option_string_actions if text[:2] == "--"]
            )
            verb.error(f"unrecognized arguments: {' '.join(left)}" + (f", did you mean '{near}'?" if near else ""))
        return found

    def _of_verb(self, found: argparse.Namespace) -> argparse.ArgumentParser:
        """The parser of the verb that was given, which knows its options."""
        parser: argparse.ArgumentParser = self
        while chosen := [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]:
            verb = getattr(found, chosen[0].dest, None)
            if verb not in chosen[0].choices:
                break
            parser = chosen[0].choices[verb]
        return parser

    def error(self, message: str) -> NoReturn:
        if found := UNKNOWN.search(message):
            near = nearest(found["given"], re.findall(r"[\w.-]+", found["known"]))
            if near:
                message = message.replace(" (choose from", f", did you mean '{near}'? (choose from", 1)
        super().error(message)
