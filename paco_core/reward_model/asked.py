"""A judge that is loaded to answer some questions, and dropped again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.reward_model.yes_probability import PairQuery

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params_reward import RewardParams


def answers(
    model: str | Path,
    reward: RewardParams,
    pairs: Sequence[tuple[Image, Image, str]],
    advance: Callable[[int], None],
) -> list[float]:
    """P(Yes) of each pair of pictures and its instruction: 0 to 1, NaN where there is none.

    Args:
        model: folder of the merged reward model.
        advance: called with the number of pairs that were scored.
    """
    from paco_core.reward_model.scorer import Scorer  # loads torch: most rankings ask no judge

    scorer = Scorer.configured(model, reward)
    queries = [PairQuery(first, second, instruction) for first, second, instruction in pairs]
    return [score.value for score in scorer.score(queries, advance)]
