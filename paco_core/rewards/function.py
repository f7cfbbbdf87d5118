"""Function rewards: registered or custom functions, imported by ``module:function``."""

from __future__ import annotations

import inspect
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError
from paco_core.io.secrets import one_line
from paco_core.rewards.base import RewardBatch

if TYPE_CHECKING:
    import numpy as np

NOT_A_NUMBER = "function returned NaN"
_LIBRARIES = (*(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")), "<")


@contextmanager
def user_code(name: str) -> Iterator[None]:
    """Run code that ``module:function`` names. What it raises, and a call of ``sys.exit``, become one sentence.

    Raises:
        DataError: naming the function, the file and line of the user's code, and the cause.
    """
    try:
        yield
    except DataError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)[2:]  # the first two are this function and its caller
        places = [(frame.filename, frame.lineno) for frame in frames if not frame.filename.startswith(_LIBRARIES)]
        if isinstance(error, SyntaxError):
            places.append((str(error.filename), error.lineno))
        place = f"{Path(places[-1][0]).name}, line {places[-1][1]}: " if places else ""
        raise DataError(f"{name}: {place}{one_line(f'{type(error).__name__}: {error}')}") from error


def find_function(name: str) -> Callable[..., Any]:
    """Import the function ``module:function``. The module can be in the working directory.

    Raises:
        DataError: if the module is missing or fails, or does not contain the function.
    """
    module, _, function = name.partition(":")
    with user_code(name):
        imported = import_module(module)
    if not hasattr(imported, function):
        raise DataError(f"{name!r}: module {module!r} has no {function!r}")
    attribute: Callable[..., Any] = getattr(imported, function)
    if not callable(attribute):
        raise DataError(f"{name!r}: {function!r} is not a function but a {type(attribute).__name__}")
    return attribute


class FunctionReward:
    """A function ``f(images, records)`` that returns N numbers, NaN if there is no score.

    ``images`` are the N complete images, ``records`` their prompts. A function with a single argument without a default
    gets the :class:`RewardBatch` instead, which also contains panels and reference images. All arguments are copies,
    so a function may change them, for example by ``image.thumbnail``.
    With ``function.groupwise = True``, each call gets one complete group: all images of one prompt.

    Args:
        name: ``module:function``.

    Raises:
        DataError: if the function does not exist, has other arguments, or fails in a call.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = find_function(name)
        self.takes_batch = _required(self.function, name) == 1
        self.groupwise = bool(getattr(self.function, "groupwise", False))
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        import numpy as np

        arguments = deepcopy((batch,) if self.takes_batch else (batch.whole, batch.records))
        with user_code(self.name):
            values = np.asarray(self.function(*arguments), dtype=np.float64)
        if values.shape != (len(batch),):
            raise DataError(
                f"reward {self.name} returned shape {values.shape} for {len(batch)} images; expected ({len(batch)},)"
            )
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
