"""Importing big libraries and loading models: no looking for garbage meanwhile, no bars between our own lines."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import ContextDecorator, contextmanager


class gc_paused(ContextDecorator):
    """Import libraries and load models with the garbage collector paused; also a decorator.

    Imported objects stay until the process ends, but the collector walks through all of them repeatedly: this is a
    quarter of the import time of torch, transformers and diffusers. Afterwards, the objects are frozen, so later
    collections and the end of the process do not walk through them either. This saves 1.2 s at exit.

    It is a class, because Ray cannot pickle a decorated function that contains a generator.
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
    """Import libraries as if the optional package ``package`` were not installed.

    transformers imports scikit-learn (installed by MLflow) and pandas for assisted generation, which paco does not use.
    This costs 0.5 s of processor time and 85 MB per process. After the block, the package can be imported.
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
    """Run a stage with a collection after 100,000 new objects instead of 700, for the reason in :class:`gc_paused`.

    The collector cannot be paused here, because the stage itself creates garbage.
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
