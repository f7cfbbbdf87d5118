"""Files that bookkeeping stages write, as they would write them now.

A stage with ``meta: {dagster: {asset: false}}`` is no asset: what it writes counts as the code of the stages that read
it. Where a project can say what such a stage would write, nothing has to run to see that a stage is stale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


def _says_nothing(_path: str, _recorded: str) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Derived:
    """``md5s`` by project-relative path; ``changes(path, recorded md5)`` says in words what is different now."""

    md5s: Mapping[str, str] = field(default_factory=dict)
    changes: Callable[[str, str], Sequence[str]] = _says_nothing
