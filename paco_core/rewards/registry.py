"""Rewards by name: one file and one line in :data:`REWARDS`; any other is named ``module:function``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import RewardSet, RewardTerm
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardFunction
from paco_core.rewards.function import FunctionReward, find
from paco_core.rewards.needs import SECTIONS, need_key, need_model, need_rapidocr, need_section, refuse_single_panels
from paco_core.rewards.sources import Sources

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord

#: Name -> "module:function" of a reward, a function of (images, records). One that needs models has "module:build"
#: instead, which makes the reward of a term. The module is imported when the reward is asked for.
REWARDS = {
    "consistency": "paco_core.rewards.consistency:build",
    "editing": "paco_core.rewards.editing:build",
    "clip_t": "paco_core.rewards.clip_t:build",
    "clip_i": "paco_core.rewards.clip_i:build",
    "clip_score": "paco_core.rewards.clip_score:build",
    "pickscore": "paco_core.rewards.pickscore:build",
    "jpeg": "paco_core.rewards.jpeg:compressibility",
    "ocr": "paco_core.rewards.ocr:build",
    "http": "paco_core.rewards.http_scorer:build",
    "rubric": "paco_core.rewards.rubric:build",
}
#: Rewards that ask a served reward model about pairs.
JUDGED = frozenset({"consistency", "editing"})
#: What a reward compares a picture's content with, for those that need more than the picture and its prompt.
NEEDS = {"consistency": "panels", "clip_i": "panels", "editing": "reference"}
LACKS = {
    "panels": "edits a single picture and has no panels",
    "reference": "has no reference picture: it does not edit",
}


def kind(name: str, term: RewardTerm) -> str:
    """The registered name or ``module:function`` behind a term."""
    return term.reward or name


def judges_of(*sets: RewardSet | None) -> list[str | None]:
    """Models of the judges that these rewards ask, each once; None is the project's own reward model."""
    asked = [
        term.model for rewards in sets if rewards for name, term in rewards.terms.items() if kind(name, term) in JUDGED
    ]
    return list(dict.fromkeys(asked))


def refuse_missing_judges(root: Path, *sets: RewardSet | None) -> None:
    """Raise DataError for a judge that is no folder: a judge is served from one."""
    for judge in judges_of(*sets):
        if judge is not None and not (root / judge).is_dir():
            raise DataError(f"judge {judge}: no such folder; a judge is served from a folder")


def check(rewards: RewardSet, given: str = "panels", records: Sequence[PromptRecord] = ()) -> list[str]:
    """Look every name up before any model is loaded; the names of those that look at whole groups.

    Args:
        records: that will be rewarded.
        given: what the pictures have beside their prompts: the "panels" of a set, or a "reference" that was edited.

    Raises:
        DataError: for an unknown reward, a function that is not there, a reward of another kind of picture, or one that
            lacks its model, its section or its library, is to choose pairs and is not consistency, or compares panels
            of which a record has one.
    """
    groupwise = []
    for name, term in rewards.terms.items():
        asked = kind(name, term)
        if not _is_built(asked):
            if _function(asked).groupwise:
                groupwise.append(name)
        elif (needed := NEEDS.get(asked, given)) != given:
            raise DataError(f"reward {asked} does not fit this policy, which {LACKS[needed]}")
        need_model(asked, term)
        if asked != "consistency" and (term.pairs != "all" or term.aggregate != "mean"):
            raise DataError(f"reward {name}: pairs and aggregate are of consistency, {asked} compares no pairs by them")
        if asked in SECTIONS:
            section = need_section(asked, term)
            need_key(section.address, section.key_variable)
        if NEEDS.get(asked) == "panels":
            refuse_single_panels(asked, records)
        if asked == "ocr":
            need_rapidocr()
    if ":" in rewards.aggregator:
        find(rewards.aggregator)
    return groupwise


def build(name: str, term: RewardTerm, sources: Sources | None = None) -> RewardFunction:
    """Build one reward of a recipe.

    Args:
        name: key of the recipe's ``rewards.terms``.
        term: its weight, model and device, and its ``reward`` where that is not the key.
        sources: where judges and models come from.

    Raises:
        DataError: for an unknown name, or when the reward lacks its model or its judge.
    """
    asked = kind(name, term)
    if not _is_built(asked):
        return _function(asked)
    reward: RewardFunction = find(REWARDS[asked])(term, sources or Sources())
    return reward


def _is_built(asked: str) -> bool:
    return REWARDS.get(asked, "").endswith(":build")


def _function(asked: str) -> FunctionReward:
    """The registered or named function as a reward."""
    if asked not in REWARDS and ":" not in asked:
        raise DataError(f"reward {asked!r} is unknown; choose among {', '.join(REWARDS)}, or name module:function")
    return FunctionReward(REWARDS.get(asked, asked))


def build_set(rewards: RewardSet, sources: Sources) -> dict[str, RewardFunction]:
    """Build all rewards of a set, by the names of their terms."""
    return {name: build(name, term, sources) for name, term in rewards.terms.items()}
