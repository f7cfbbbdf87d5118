"""Whether a judge that trains nothing shares a version's gain, on the pictures that the promotion compares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paco_core.grpo.hacking import is_unshared_gain
from paco_core.grpo.metrics import deviation
from paco_core.operations.promotion.paired import Paired, paired
from paco_core.rewards.registry import JUDGED, reward_kind

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pandas as pd

    from paco_core.config.params import PolicyRecipe

TRAINED, HELD_OUT, DRIFT = "trained_judge", "held_out_judge", "drift"


def by_both_judges(
    recipe: PolicyRecipe, root: Path, reward: Path, measured_by: Callable[[Path], pd.DataFrame]
) -> dict[str, pd.Series[float]]:
    """Columns of the scores by the two judges of the recipe's hack meter; none where it has none that ask for pairs.

    Args:
        reward: folder of the project's own reward model, that of a term without a ``model``.
        measured_by: the benchmark's table of the painted pictures, by the reward model in a folder.
    """
    if recipe.hack_meter is None:
        return {}
    terms = recipe.rewards.terms
    judges = {TRAINED: recipe.hack_meter.trained, HELD_OUT: recipe.hack_meter.held_out}
    if not all(reward_kind(name, terms[name]) in JUDGED for name in judges.values()):
        return {}
    return {
        column: measured_by(root / model if (model := terms[name].model) else reward)[reward_kind(name, terms[name])]
        for column, name in judges.items()
    }


def gains(pairs: pd.DataFrame, *, resamples: int, seed: int) -> dict[str, Paired]:
    """Gains of the candidate by each judge, and drift, the first less the second; none where no table has both.

    In standard deviations of the judge's scores of the incumbent's pictures.

    Args:
        pairs: the cases of the candidate (columns ``_first``) and of the incumbent (``_second``).
    """
    scores = {f"{judge}_{side}" for judge in (TRAINED, HELD_OUT) for side in ("first", "second")}
    if not scores <= set(pairs):
        return {}
    first, second = ({judge: pairs[f"{judge}_{side}"] for judge in (TRAINED, HELD_OUT)} for side in ("first", "second"))
    units = {judge: deviation(scores.to_numpy(float)) for judge, scores in second.items()}
    for side in (first, second):
        side |= {judge: scores / units[judge] for judge, scores in side.items()}
        side[DRIFT] = side[TRAINED] - side[HELD_OUT]
    prompts = [str(prompt) for prompt in pairs["prompt_id"]]
    return {name: paired(first[name], second[name], prompts, resamples=resamples, seed=seed) for name in first}


def unshared(gains_by_judge: Mapping[str, Paired]) -> str | None:
    """Why the held-out judge does not share the gain, with the figures; None where it does, or nobody was asked.

    As in the check ``gain_is_shared`` (:func:`paco_core.grpo.hacking.is_unshared_gain`). A drift without an interval is
    not shared either.
    """
    if not gains_by_judge:
        return None
    figures = (
        f"{gains_by_judge[TRAINED].text()} by the training reward model, {gains_by_judge[HELD_OUT].text()} by the "
        f"held-out one, drift "
        f"{gains_by_judge[DRIFT].text()}, in standard deviations of each model's scores"
    )
    if math.isnan(gains_by_judge[DRIFT].low):
        return f"the held-out reward model scored too few prompts to confirm the gain: {figures}"
    if is_unshared_gain(gains_by_judge[TRAINED].low, gains_by_judge[HELD_OUT].low, gains_by_judge[DRIFT].low):
        return f"the held-out reward model does not confirm the gain: {figures}"
    return None
