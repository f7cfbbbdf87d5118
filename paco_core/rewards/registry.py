"""Rewards by name. A reward is one file and one line in :data:`BUILDERS`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.files import DataError
from paco_core.params import RewardTerm
from paco_core.rewards.base import RewardFunction

if TYPE_CHECKING:
    from paco_core.rewards.consistency import PairScorer


def _consistency(_term: RewardTerm, scorer: PairScorer | None, _root: Path) -> RewardFunction:
    from paco_core.rewards.consistency import Consistency

    if scorer is None:
        raise DataError("reward consistency asks a reward model; none is served here")
    return Consistency(scorer)


def _clip_t(term: RewardTerm, _scorer: PairScorer | None, root: Path) -> RewardFunction:
    from paco_core.rewards.clip_t import ClipT

    if term.model is None:
        raise DataError("reward clip_t needs model: a folder or hf-hub name of an open_clip model")
    return ClipT(str(root / term.model) if (root / term.model).exists() else term.model, term.device)


Builder = Callable[[RewardTerm, "PairScorer | None", Path], RewardFunction]
BUILDERS: dict[str, Builder] = {
    "consistency": _consistency,
    "clip_t": _clip_t,
}


def build(name: str, term: RewardTerm, scorer: PairScorer | None = None, root: Path = Path()) -> RewardFunction:
    """Build one reward of a recipe.

    Args:
        name: key of the recipe's ``rewards.terms``.
        term: its weight, model and device.
        scorer: what answers questions about pairs, for the rewards that ask some.
        root: folder that relative model paths start from.

    Raises:
        DataError: for an unknown name, or when the reward lacks its model or its scorer.
    """
    if name not in BUILDERS:
        raise DataError(f"reward {name!r} is unknown; choose among {', '.join(BUILDERS)}")
    return BUILDERS[name](term, scorer, root)
