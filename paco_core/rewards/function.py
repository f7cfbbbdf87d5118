"""Rewards and aggregators of the user's own, named ``module:function``."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np

NOT_A_NUMBER = "function returned NaN"


def find(name: str) -> Callable[..., Any]:
    """The function that ``module:function`` names; modules of the working folder count.

    Raises:
        DataError: when there is no such module, or nothing to call of that name in it.
    """
    module, _, function = name.partition(":")
    try:
        found = getattr(import_module(module), function)
    except ImportError as error:
        raise DataError(f"{name!r}: module {module!r} cannot be imported ({error})") from None
    except AttributeError:
        raise DataError(f"{name!r}: module {module!r} has no {function!r}") from None
    if not callable(found):
        raise DataError(f"{name!r}: {function!r} is not a function but a {type(found).__name__}")
    given: Callable[..., Any] = found
    return given


class FunctionReward:
    """A function of a :class:`RewardBatch` that returns N numbers; NaN where it has none.

    With ``function.groupwise = True`` it is given one whole group a call, all pictures of one prompt.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = find(name)
        self.groupwise = bool(getattr(self.function, "groupwise", False))
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        import numpy as np

        try:
            values = np.asarray(self.function(batch), dtype=np.float64)
        except Exception as error:
            raise RuntimeError(f"reward {self.name} failed on {len(batch)} pictures: {error!r}") from error
        if values.shape != (len(batch),):
            raise DataError(f"reward {self.name} returned shape {values.shape} for {len(batch)} pictures, not one each")
        failed = ~np.isfinite(values)
        if failed.any():
            self.causes[NOT_A_NUMBER] = self.causes.get(NOT_A_NUMBER, 0) + int(failed.sum())
        return np.where(failed, np.nan, values)
