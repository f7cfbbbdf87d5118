"""Image sets before and after RL: equal prompts, equal noise, every evaluation size, paired figures.

The prompts were never trained on. Differences are taken set by set and their intervals over prompts,
for the pictures of one prompt stand or fall together.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks.cases import Cases
from paco_core.benchmarks.results import validate_measures
from paco_core.benchmarks.set_measures import set_measures
from paco_core.benchmarks.unseen_prompts import only_test_file, unseen_prompts
from paco_core.io import paths
from paco_core.painting.painted import Painted
from paco_core.rewards.base import RewardBatch, RewardFunction
from paco_core.tasks.sets import SETS, read_sets

if TYPE_CHECKING:
    import numpy as np

    from paco_core.config.params import Params
    from paco_core.tasks.base import GoldMeasure, Read


def cases(read: Read, params: Params, trained: Collection[str]) -> Cases:
    """Prompts that share no content with ``trained``; if recipes name files, prompts of the file to test on.

    Raises:
        DataError: when none is left, or recipes name different files.
    """
    chosen, file = params.t2is, only_test_file(params)
    records = read_sets(read(paths.PROMPTS) / "prompts.jsonl" if file is None else read(Path(file)))
    unseen = unseen_prompts(records, trained, chosen.prompts, chosen.seed)
    return Cases(SETS, unseen, chosen.seeds, chosen.steps, separately=chosen.separately)


def measuring(root: Path, params: Params, judge: Path, _cases: Cases) -> Callable[[Sequence[Painted]], pd.DataFrame]:
    """:func:`measure` with the measures that the parameters ask for, by the merged reward model in ``judge``.

    It raises a DataError when more than ``execution.serving.max_failed_share`` of the images have no score.
    """
    functions, gold = set_measures(root, params, judge), SETS.truth(params, root / str(params.annotations.model))

    def measured(painted: Sequence[Painted]) -> pd.DataFrame:
        table, names = measure(painted, functions, gold), [function.name for function in functions]
        causes = {f"{one.name}: {cause}": count for one in functions for cause, count in one.causes.items()}
        return validate_measures(table, names, params.serving.max_failed_share, causes)

    return measured


def measure(
    painted: Sequence[Painted], measures: Sequence[RewardFunction], gold: GoldMeasure | None = None
) -> pd.DataFrame:
    """One row a picture: policy, size, when, prompt_id, seed, and a column a measure (NaN = it failed)."""
    batch = RewardBatch([p.record for p in painted], [p.panels for p in painted])
    columns: dict[str, Any] = {
        "policy": [p.policy for p in painted],
        "size": [p.size for p in painted],
        "when": [p.when for p in painted],
        "prompt_id": [p.record.idx for p in painted],
        "seed": [p.seed for p in painted],
    }
    found: dict[str, np.ndarray] = {function.name: function(batch) for function in measures}
    if gold is not None:
        found |= gold.measure(batch)
    return pd.DataFrame({**columns, **found})
