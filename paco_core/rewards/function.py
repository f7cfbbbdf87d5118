"""Rewards that are one function, registered or the user's own, and how ``module:function`` is found."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import deepcopy
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
    """A function ``f(images, records)`` that returns N numbers, NaN where it has none.

    ``images`` are the N whole pictures, ``records`` their prompts. A function with a single argument without a default
    is given the :class:`RewardBatch` instead, which also holds panels and reference pictures. All arguments are copies,
    so a function may change them, for example by ``image.thumbnail``.
    With ``function.groupwise = True`` it is given one whole group a call, all pictures of one prompt.

    Args:
        name: ``module:function``.

    Raises:
        DataError: when the function is not there, or takes other arguments.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = find(name)
        self.takes_batch = _required(self.function, name) == 1
        self.groupwise = bool(getattr(self.function, "groupwise", False))
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        import numpy as np

        arguments = deepcopy((batch,) if self.takes_batch else (batch.whole, batch.records))
        try:
            values = np.asarray(self.function(*arguments), dtype=np.float64)
        except Exception as error:
            raise RuntimeError(f"reward {self.name} failed on {len(batch)} pictures: {error!r}") from error
        if values.shape != (len(batch),):
            raise DataError(f"reward {self.name} returned shape {values.shape} for {len(batch)} pictures, not one each")
        failed = ~np.isfinite(values)
        if failed.any():
            self.causes[NOT_A_NUMBER] = self.causes.get(NOT_A_NUMBER, 0) + int(failed.sum())
        return np.where(failed, np.nan, values)


def _required(function: Callable[..., Any], name: str) -> int:
    """How many arguments without a default a reward function takes: 1 or 2."""
    kinds = inspect.Parameter
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        raise DataError(f"{name!r} does not say what arguments it takes; wrap it in a function of Python") from None
    required = [
        parameter
        for parameter in parameters
        if parameter.default is kinds.empty and parameter.kind not in (kinds.VAR_POSITIONAL, kinds.VAR_KEYWORD)
    ]
    if len(required) not in (1, 2) or any(parameter.kind is kinds.KEYWORD_ONLY for parameter in required):
        raise DataError(
            f"{name!r} takes ({', '.join(map(str, required))}); a reward takes (images, records), or one RewardBatch"
        )
    return len(required)
