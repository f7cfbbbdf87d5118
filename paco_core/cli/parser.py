"""An argument parser that knows what was probably meant."""

from __future__ import annotations

import argparse
import re
from typing import NoReturn

from paco_core.io.nearest import nearest

UNKNOWN = re.compile(r"invalid choice: '(?P<given>[^']*)' \(choose from (?P<known>.*)\)$", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """``ArgumentParser``; a verb or value that it does not know is answered with the nearest one that it knows."""

    def error(self, message: str) -> NoReturn:
        if found := UNKNOWN.search(message):
            near = nearest(found["given"], re.findall(r"[\w.-]+", found["known"]))
            if near:
                message = message.replace(" (choose from", f", did you mean '{near}'? (choose from", 1)
        super().error(message)
