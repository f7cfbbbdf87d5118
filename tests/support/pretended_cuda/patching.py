"""Attributes exchanged for a while."""

from __future__ import annotations

from typing import Any

_MISSING = object()


class Patches:
    """Restores, when it is left, what :meth:`set` exchanged."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._before.append((owner, name, vars(owner).get(name, _MISSING)))
        setattr(owner, name, value)

    def __enter__(self) -> Patches:
        return self

    def __exit__(self, *_: object) -> None:
        for owner, name, value in reversed(self._before):
            if value is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, value)
        self._before.clear()
