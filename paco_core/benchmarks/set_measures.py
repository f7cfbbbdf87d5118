"""The measures of a painted set that a project's parameters ask for, beside the gold metrics."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.config.measures import PANEL_DIVERSITY
from paco_core.io.picture_measures import panel_diversity
from paco_core.reward_model.scorer import Scorer
from paco_core.rewards import clip_t
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import ConsistencyMeasure
from paco_core.rewards.sources import Sources
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.rewards.base import RewardFunction


class PanelDiversity:
    """How different the panels of a set are, 0 = one picture four times: the sign of a collapsed policy.

    NaN for a set of one panel.
    """

    name = PANEL_DIVERSITY

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        measured = [panel_diversity(panels) if len(panels) > 1 else np.nan for panels in batch.panels]
        return np.array(measured, dtype=np.float64)


def set_measures(root: Path, params: Params, judge: Path) -> list[RewardFunction]:
    """The consistency that ``judge`` sees, the text match where a CLIP is named, and panel diversity.

    Args:
        judge: folder of a merged reward model; it is asked in this process.
    """
    recipes = recipes_of(SETS, params.policies).values()
    measures: list[RewardFunction] = [ConsistencyMeasure(Scorer.configured(judge, params.reward)), PanelDiversity()]
    term = next((r.rewards.terms["clip_t"] for r in recipes if "clip_t" in r.rewards.terms), None)
    return [*measures, clip_t.build(term, Sources(root=root))] if term else measures
