"""Importing big libraries and loading models: no looking for garbage meanwhile, no bars between our own lines."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager


class gc_paused(ContextDecorator):
    """Import libraries and load models with the cyclic collector at rest; also a decorator.

    What an import makes stays until the process ends, and yet the collector walks through all of it again and again
    as it grows: a quarter of the time that torch, transformers and diffusers take to import. What was made counts as
    old afterwards, so that no young collection has to walk through it either, and nothing is walked through once more
    when the process ends: the interpreter's farewell to 5,000 modules takes 0.3 s instead of 1.5.

    A class, not a generator: a decorated function is sent to workers of Ray, and no generator can be pickled.
    """

    def __init__(self) -> None:
        self._outermost: list[bool] = []  # of each block that was entered; a decorated function may call itself

    def __enter__(self) -> None:
        self._outermost.append(gc.isenabled())
        gc.disable()

    def __exit__(self, *_error: object) -> None:
        if self._outermost.pop():
            gc.freeze()  # moves all to the permanent generation without a walk,
            gc.unfreeze()  # and this to the oldest one
            gc.enable()
            atexit.unregister(gc.freeze)
            atexit.register(gc.freeze)


@contextmanager
def without(package: str) -> Iterator[None]:
    """Import libraries as if ``package``, an optional one of theirs, were not installed.

    transformers imports scikit-learn where it is installed (MLflow brings it), and pandas with it, for assisted
    generation alone, which nothing here uses: 0.5 s of processor time and 85 MB a process. Whatever asks for the
    package after the block gets it.
    """
    hidden = package not in sys.modules
    if hidden:
        sys.modules[package] = None  # type: ignore[assignment]  # the import system's own word for "not there"
    try:
        yield
    finally:
        if hidden:
            del sys.modules[package]


@contextmanager
def gc_relaxed() -> Iterator[None]:
    """A stage, whose functions import what they need: the cyclic collector looks after 100,000 objects, not after 700.

    :class:`gc_paused` says why. It cannot hold here, for what a stage computes is garbage some day.
    """
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])
    with gc_paused():
        pass  # the interpreter's farewell
    try:
        yield
    finally:
        gc.set_threshold(*usual)


@contextmanager
def without_bars() -> Iterator[None]:
    """No progress bars of the libraries while weights load; whatever was set before returns."""
    from diffusers.utils import logging as diffusers_logging
    from transformers.utils import logging as transformers_logging

    loggers = [log for log in (diffusers_logging, transformers_logging) if log.is_progress_bar_enabled()]
    for log in loggers:
        log.disable_progress_bar()
    try:
        yield
    finally:
        for log in loggers:
            log.enable_progress_bar()
