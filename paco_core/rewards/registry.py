"""Registry of rewards. Each reward is one file and one line in :data:`REWARDS`, or a custom ``module:function``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.config.params import RewardSet, RewardTerm
from paco_core.config.references import CLIP, NETWORK, layout_fault
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardFunction
from paco_core.rewards.function import FunctionReward, find_function
from paco_core.rewards.needs import (
    SECTIONS,
    require_characters,
    require_key,
    require_model,
    require_rapidocr,
    require_section,
    validate_panel_counts,
)
from paco_core.rewards.sources import Sources

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord

#: Name -> "module:function" of a reward, a function of (images, records). If the reward needs models, the value is
#: "module:build", which builds the reward of a term. The module is imported when the reward is built.
REWARDS = {
    "consistency": "paco_core.rewards.consistency:build",
    "editing": "paco_core.rewards.editing:build",
    "characters": "paco_core.rewards.characters:build",
    "clip_t": "paco_core.rewards.clip_t:build",
    "clip_i": "paco_core.rewards.clip_i:build",
    "clip_score": "paco_core.rewards.clip_score:build",
    "pickscore": "paco_core.rewards.pickscore:build",
    "jpeg": "paco_core.rewards.jpeg:compressibility",
    "ocr": "paco_core.rewards.ocr:build",
    "http": "paco_core.rewards.http_scorer:build",
    "rubric": "paco_core.rewards.rubric:build",
}
#: Rewards that query a served reward model about pairs.
JUDGED = frozenset({"consistency", "editing", "characters"})
#: The additional input of rewards that need more than the image and its prompt.
NEEDS = {"consistency": "panels", "clip_i": "panels", "characters": "panels", "editing": "reference"}
#: Rewards that compare the panels of a set with each other.
COMPARE_PANELS = frozenset({"consistency", "clip_i"})
LACKS = {
    "panels": "edits a single picture and has no panels",
    "reference": "has no reference picture: it does not edit",
}


def reward_kind(name: str, term: RewardTerm) -> str:
    """The registered name or ``module:function`` of a term."""
    return term.reward or name


def judges_of(*sets: RewardSet | None) -> list[str | None]:
    """Distinct reward models that these rewards query. None = the reward model of the project."""
    models = [
        term.model
        for rewards in sets
        if rewards
        for name, term in rewards.terms.items()
        if reward_kind(name, term) in JUDGED
    ]
    return list(dict.fromkeys(models))


#: The layout of a model's folder, by the reward that loads it.
LAYOUTS = {
    **dict.fromkeys(("clip_t", "clip_i", "clip_score"), CLIP),
    **dict.fromkeys(("pickscore", "consistency", "editing", "characters"), NETWORK),
}


def validate_judge_folders(root: Path, *sets: RewardSet | None) -> None:
    """Validate the folders of reward models.

    Raises:
        DataError: if a reward model is not a folder, because it is served from a folder, or has another layout.
    """
    for judge in judges_of(*sets):
        if judge is not None and not (root / judge).is_dir():
            raise DataError(f"reward model {judge}: there is no such folder; a reward model is served from a folder")
    for name, term in [item for rewards in sets if rewards is not None for item in rewards.terms.items()]:
        layout = LAYOUTS.get(reward_kind(name, term))
        if layout and term.model and (fault := layout_fault(root, term.model, layout)):
            raise DataError(f"terms.{name}.model: {fault}")


def validate_rewards(rewards: RewardSet, available: str = "panels", records: Sequence[PromptRecord] = ()) -> list[str]:
    """Validate rewards before any model is loaded. Returns the names of the groupwise rewards.

    Args:
        available: the additional input of the images: the "panels" of a set, or the "reference" of an edit.
        records: the records whose images will be scored.

    Raises:
        DataError: if a reward or function is unknown, does not fit the images, lacks its model, section or library, has
            options of the reward consistency, or compares panels and a record has a single panel.
    """
    groupwise = []
    for name, term in rewards.terms.items():
        kind = reward_kind(name, term)
        if not _is_built(kind):
            if _function_reward(kind).groupwise:
                groupwise.append(name)
        elif (needed := NEEDS.get(kind, available)) != available:
            raise DataError(f"reward {kind} does not fit this policy, which {LACKS[needed]}")
        require_model(kind, term)
        if kind != "consistency" and (term.pairs != "all" or term.aggregate != "mean"):
            raise DataError(
                f"reward {name}: pairs and aggregate are options of consistency only; remove them from {kind}"
            )
        if kind in SECTIONS:
            section = require_section(kind, term)
            require_key(section.address, section.key_variable)
        if kind in COMPARE_PANELS:
            validate_panel_counts(kind, records)
        if kind == "characters":
            require_characters(kind, records)
        if kind == "ocr":
            require_rapidocr()
    if ":" in rewards.aggregator:
        find_function(rewards.aggregator)
    return groupwise


def build_reward(name: str, term: RewardTerm, sources: Sources | None = None) -> RewardFunction:
    """Build one reward of a recipe.

    Args:
        name: key of the recipe's ``rewards.terms``.
        term: its weight, model and device, and ``reward`` if it differs from the key.
        sources: reward models and shared models.

    Raises:
        DataError: if the name is unknown, or the reward lacks its model.
    """
    kind = reward_kind(name, term)
    if not _is_built(kind):
        return _function_reward(kind)
    reward: RewardFunction = find_function(REWARDS[kind])(term, sources or Sources())
    return reward


def _is_built(kind: str) -> bool:
    return REWARDS.get(kind, "").endswith(":build")


def _function_reward(kind: str) -> FunctionReward:
    """The reward of a registered or custom function."""
    if kind not in REWARDS and ":" not in kind:
        raise DataError(f"reward {kind!r} is unknown; choose one of {', '.join(REWARDS)}, or module:function")
    return FunctionReward(REWARDS.get(kind, kind))


def build_set(rewards: RewardSet, sources: Sources) -> dict[str, RewardFunction]:
    """Build all rewards of a set, by the names of their terms."""
    return {name: build_reward(name, term, sources) for name, term in rewards.terms.items()}
