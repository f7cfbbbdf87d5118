"""The measures of a painted set that a project's parameters ask for."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paco_core.benchmarks.set_measures import Gold
    from paco_core.config.params import Params
    from paco_core.rewards.base import RewardFunction


def set_measures(root: Path, params: Params, judge: Path) -> list[RewardFunction]:
    """The consistency that ``judge`` sees, the text match where a CLIP is named, and panel diversity.

    Args:
        judge: folder of a merged reward model; it is asked in this process.
    """
    from paco_core.benchmarks.set_measures import PanelDiversity
    from paco_core.policies.base import recipes_that_edit
    from paco_core.reward_model.scorer import Scorer
    from paco_core.rewards import clip_t
    from paco_core.rewards.consistency import Consistency
    from paco_core.rewards.sources import Sources

    recipes = recipes_that_edit(params.policies, edit=False).values()
    measures: list[RewardFunction] = [Consistency(Scorer.configured(judge, params.reward)), PanelDiversity()]
    term = next((r.rewards.terms["clip_t"] for r in recipes if "clip_t" in r.rewards.terms), None)
    return [*measures, clip_t.build(term, Sources(root=root))] if term else measures


def gold(params: Params, recogniser: Path) -> Gold | None:
    """The embedded world's truth about consistency and prompt following; None in the real world."""
    if params.world != "storybook":
        return None
    from paco_core.benchmarks.set_measures import Gold as Measure
    from paco_core.storybook.recogniser import Recogniser

    return Measure(Recogniser.from_pretrained(recogniser))
