"""An argument parser that knows what was probably meant."""

from __future__ import annotations

import argparse
import re
from difflib import get_close_matches
from typing import NoReturn

UNKNOWN = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """``ArgumentParser``; a verb or value that it does not know is answered with the nearest one that it knows."""

    def error(self, message: str) -> NoReturn:
        if found := UNKNOWN.search(message):
            near = get_close_matches(found["given"], re.findall(r"[\w.-]+", found["known"]), n=1)
            if near:
                message = message.replace(" (choose from", f", did you mean '{near[0]}'? (choose from", 1)
        super().error(message)
