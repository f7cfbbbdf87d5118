"""The name that was probably meant, where one is misspelt."""

from __future__ import annotations

import difflib
from collections.abc import Collection


def nearest(value: str, names: Collection[str]) -> str | None:
    """The name that was probably meant; None where none is near."""
    return next(iter(difflib.get_close_matches(value, names, n=1, cutoff=0.5)), None)


def meant(value: str, names: Collection[str]) -> str:
    """``did you mean 'NAME'?`` and a space, for an error that goes on with the names.

    Nothing where none is near, or ``value`` is one of them.
    """
    near = nearest(value, names)
    return f"did you mean {near!r}? " if near and near != value else ""
