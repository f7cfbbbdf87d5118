"""The library behind the pipeline: it imports neither Dagster nor DVC.

What programs use is loaded when it is first named, so that ``import paco_core`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paco_core.api.judge import Judge as Judge
    from paco_core.api.mlflow_scorer import consistency_scorer as consistency_scorer
    from paco_core.api.painter import Painter as Painter
    from paco_core.grading.run import grade as grade

_FROM = {
    "Judge": "paco_core.api.judge",
    "Painter": "paco_core.api.painter",
    "consistency_scorer": "paco_core.api.mlflow_scorer",
    "grade": "paco_core.grading.run",
}
__all__ = ["Judge", "Painter", "consistency_scorer", "grade"]


def __getattr__(name: str) -> Any:
    if name not in _FROM:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_FROM[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_FROM])
