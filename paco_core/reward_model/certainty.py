"""How certain a judge is, whatever it answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.reward_model.yes_probability import PairQuery

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params_reward import RewardParams


def certainty(
    model: Path, reward: RewardParams, pairs: Sequence[tuple[Image, Image, str]], advance: Callable[[int], None]
) -> list[float]:
    """How far from 0.5 the probability of Yes is, for each pair of pictures and its instruction: 0 to 0.5.

    Args:
        model: folder of the merged reward model.
        advance: called with the number of pairs that were scored.
    """
    from paco_core.reward_model.scorer import Scorer  # loads torch: most rankings ask no judge

    scorer = Scorer(model, reward.device, reward.dtype, min_pixels=reward.min_pixels, max_pixels=reward.max_pixels)
    queries = [PairQuery(first, second, instruction) for first, second, instruction in pairs]
    return [abs(score.value - 0.5) for score in scorer.score(queries, advance)]
