"""Rewards by name. A reward is one file and one line in :data:`BUILDERS`; any other is named ``module:function``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.files import DataError
from paco_core.params import RewardSet, RewardTerm
from paco_core.rewards.base import RewardFunction

if TYPE_CHECKING:
    from paco_core.rewards.consistency import PairScorer
    from paco_core.rewards.open_clip_model import OpenClip


@dataclass
class Makings:
    """What rewards are built from: scorers of pairs, and the models that several of them look through.

    ``judges``: by the ``model`` of the term that asks; None is the project's own reward model.
    """

    judges: Mapping[str | None, PairScorer] = field(default_factory=dict)
    root: Path = Path()
    clips: dict[tuple[str, str], OpenClip] = field(default_factory=dict)

    def path(self, model: str) -> str:
        """A folder of the project as a path, anything else (a hub id) as it is."""
        return str(self.root / model) if (self.root / model).exists() else model

    def judge(self, name: str, term: RewardTerm) -> PairScorer:
        """The reward model that the term asks."""
        if term.model not in self.judges:
            raise DataError(f"reward {name} asks a reward model; {term.model or 'none'} is not served here")
        return self.judges[term.model]

    def clip(self, name: str, term: RewardTerm) -> OpenClip:
        """The term's CLIP, loaded once for all rewards that name it on the same device."""
        from paco_core.rewards.open_clip_model import OpenClip

        if term.model is None:
            raise DataError(f"reward {name} needs model: a folder or hf-hub name of an open_clip model")
        key = self.path(term.model), term.device
        if key not in self.clips:
            self.clips[key] = OpenClip(*key)
        return self.clips[key]


def _consistency(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.consistency import Consistency

    return Consistency(makings.judge("consistency", term))


def _editing(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.editing import Editing

    return Editing(makings.judge("editing", term))


def _clip_t(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.clip_t import ClipT

    return ClipT(makings.clip("clip_t", term))


def _clip_i(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.clip_i import ClipI

    return ClipI(makings.clip("clip_i", term))


def _clip_score(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.clip_score import ClipScore

    return ClipScore(makings.clip("clip_score", term))


def _pickscore(term: RewardTerm, makings: Makings) -> RewardFunction:
    from paco_core.rewards.pickscore import PickScore

    if term.model is None:
        raise DataError("reward pickscore needs model: a folder or hub id, yuvalkirstain/PickScore_v1 say")
    return PickScore(makings.path(term.model), term.device)


def _jpeg(_term: RewardTerm, _makings: Makings) -> RewardFunction:
    from paco_core.rewards.jpeg import Jpeg

    return Jpeg()


def _ocr(_term: RewardTerm, _makings: Makings) -> RewardFunction:
    from paco_core.rewards.ocr import Ocr

    return Ocr()


BUILDERS: dict[str, Callable[[RewardTerm, Makings], RewardFunction]] = {
    "consistency": _consistency,
    "editing": _editing,
    "clip_t": _clip_t,
    "clip_i": _clip_i,
    "clip_score": _clip_score,
    "pickscore": _pickscore,
    "jpeg": _jpeg,
    "ocr": _ocr,
}
#: Rewards that ask a served reward model about pairs.
JUDGED = frozenset({"consistency", "editing"})
#: Rewards that compare a picture with the reference that it is an edit of; only editing policies have one.
OF_EDITS = frozenset({"editing"})
#: Rewards that compare the panels of a set with each other.
OF_SETS = frozenset({"consistency", "clip_i"})


def kind(name: str, term: RewardTerm) -> str:
    """The registered name or ``module:function`` behind a term."""
    return term.reward or name


def judges_of(*sets: RewardSet | None) -> list[str | None]:
    """Models of the judges that these rewards ask, each once; None is the project's own reward model."""
    asked = [
        term.model for rewards in sets if rewards for name, term in rewards.terms.items() if kind(name, term) in JUDGED
    ]
    return list(dict.fromkeys(asked))


def check(rewards: RewardSet, *, edits: bool = False) -> None:
    """Look every name up before any model is loaded.

    Args:
        edits: whether what is rewarded are edits, which have a reference picture, or sets of panels.

    Raises:
        DataError: for an unknown reward, a function that is not there, or a reward of another kind of picture.
    """
    from paco_core.rewards.function import find

    for name, term in rewards.terms.items():
        asked = kind(name, term)
        if ":" in asked:
            find(asked)
        elif asked not in BUILDERS:
            raise DataError(f"reward {asked!r} is unknown; choose among {', '.join(BUILDERS)}, or name module:function")
        elif asked in (OF_SETS if edits else OF_EDITS):
            has = "makes one picture, and no set of panels" if edits else "has no reference picture: it does not edit"
            raise DataError(f"reward {asked} does not fit this policy, which {has}")
    if ":" in rewards.aggregator:
        find(rewards.aggregator)


def build(name: str, term: RewardTerm, makings: Makings | None = None) -> RewardFunction:
    """Build one reward of a recipe.

    Args:
        name: key of the recipe's ``rewards.terms``.
        term: its weight, model and device, and its ``reward`` where that is not the key.
        makings: where judges and models come from.

    Raises:
        DataError: for an unknown name, or when the reward lacks its model or its judge.
    """
    from paco_core.rewards.function import FunctionReward

    asked = kind(name, term)
    if ":" in asked:
        return FunctionReward(asked)
    if asked not in BUILDERS:
        raise DataError(f"reward {asked!r} is unknown; choose among {', '.join(BUILDERS)}, or name module:function")
    return BUILDERS[asked](term, makings or Makings())


def build_set(rewards: RewardSet, makings: Makings) -> dict[str, RewardFunction]:
    """Build all rewards of a set, by the names of their terms."""
    return {name: build(name, term, makings) for name, term in rewards.terms.items()}
