"""Importing big libraries without looking for garbage meanwhile."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Import libraries and load models with the cyclic collector at rest; also a decorator.

    What an import makes stays until the process ends, and yet the collector walks through all of it again and again
    as it grows: a quarter of the time that torch, transformers and diffusers take to import. What was made counts as
    old afterwards, so that no young collection has to walk through it either.
    """
    if not gc.isenabled():  # an outer block does it
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()  # moves all to the permanent generation without a walk,
        gc.unfreeze()  # and this to the oldest one
        gc.enable()
