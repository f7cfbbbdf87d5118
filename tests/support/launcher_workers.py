"""Workers that tests send to Ray: importable there, and stopped by a file."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from PIL.Image import Image

from paco_core.data.grids.grids import Generator
from paco_core.data.grids.text_to_image import Request, TextToImage
from paco_core.data.llm.chat_protocol import Question
from paco_core.io.files import DataError

STUCK_S = 300.0


def wait_to_be_killed(folder: Path) -> None:
    """The first process that comes here writes down its id and never goes on; later ones pass."""
    with suppress(FileExistsError):
        (folder / "first").touch(exist_ok=False)
        part = folder / "stuck.part"
        part.write_text(str(os.getpid()))
        part.rename(folder / "stuck")
        time.sleep(STUCK_S)
        raise AssertionError("nobody killed this worker")


class Square:
    """Squares numbers, with the id of its process."""

    def __init__(self, _workers: int) -> None:
        pass

    def __call__(self, number: int) -> tuple[int, int]:
        if number < 0:
            raise DataError(f"{number}: below zero")
        return number**2, os.getpid()


class Halting:
    """A generator that is stuck in its first batch until its process is killed."""

    def __init__(self, load: Callable[[], Generator], folder: Path) -> None:
        self._generator, self._folder = load(), folder

    def encode(self, requests: Sequence[Request]) -> int:
        return self._generator.encode(requests)

    def kind(self, request: Request) -> Hashable:
        return self._generator.kind(request)

    def generate(self, requests: Sequence[Request], batch_size: int) -> list[Image]:
        wait_to_be_killed(self._folder)
        return self._generator.generate(requests, batch_size)


def halting(model: Path, params: Any, folder: Path) -> partial[Halting]:
    return partial(Halting, partial(TextToImage.load, model, params), folder)


def halting_question(question: Callable[[Any], Question[Any]], folder: Path, item: Any) -> Question[Any]:
    wait_to_be_killed(folder)
    return question(item)
