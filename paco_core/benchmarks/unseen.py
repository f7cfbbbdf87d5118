"""The benchmark of a recipe's task: its cases, and what measures pictures of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks import gedit, t2is
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import task_of

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.benchmarks.cases import Cases
    from paco_core.config.params import Params
    from paco_core.painting.painted import Painted
    from paco_core.tasks.base import Read

_MODULES = {SETS.name: t2is, EDITS.name: gedit}


def unseen_cases(read: Read, params: Params, name: str, trained: Collection[str]) -> Cases:
    """Cases of a recipe's benchmark that share no content with a training prompt; equal for equal parameters.

    Args:
        trained: as :func:`paco_core.grpo.prompt_split.trained_prompts` returns it.

    Raises:
        DataError: when none is left, or the graph has not made the prompts yet.
    """
    return _MODULES[task_of(params.policies.recipes[name]).name].cases(read, params, trained)


def measuring(root: Path, params: Params, judge: Path, cases: Cases) -> Callable[[Sequence[Painted]], pd.DataFrame]:
    """What measures pictures of the cases: a row a picture, as :func:`t2is.measure` or :func:`gedit.measure` make it.

    Args:
        judge: folder of a merged reward model; it is asked in this process.
    """
    return _MODULES[cases.task.name].measuring(root, params, judge, cases)
