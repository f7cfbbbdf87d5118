"""The figures that each asset's page shows first, and as curves over its versions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def _at_each_size(*measures: str) -> tuple[str, ...]:
    """Changes of a policy's evaluations: ``64.consistency.change``, and none of the gaps between the sizes."""
    return tuple(f"[0-9]*.{measure}.change" for measure in measures)


#: Stage -> name patterns of its figures; of each entry the first that fits any figure counts. The gold metrics are
#: the embedded world's; the real world has none, and there the reward speaks.
HEADLINES: Mapping[str, Sequence[Sequence[str]]] = {
    "prompts": (("prompts",),),
    "diverse_prompts": (("prompts",), ("nearest_similarity_after",)),
    "grids": (("pictures",),),
    "annotations": (("rankings",), ("kendall_w",)),
    "edit_prompts": (("train",), ("unseen",)),
    "edits": (("pictures",),),
    "pairs": (("train",), ("train_yes",), ("validation",), ("benchmark",)),
    "cot_labels": (("train_answers",), ("train_failed",)),
    "reward_lora": (("accuracy",), ("base.accuracy",), ("roc_auc",), ("calibration_error",)),
    "reward_merged": (("margin.worst",),),
    "policies": (
        (*_at_each_size("gold_consistency", "gold_editing", "consistency", "editing"),),
        (*_at_each_size("gold_following", "gold_kept", "clip_t"),),
        ("epochs",),
    ),
    "consistency_rank": (("reward.accuracy",), ("base.accuracy",), ("reward_minus_base.accuracy",), ("instances",)),
    "edit_reward": (("reward.overall",), ("base.overall",), ("reward_minus_base.overall",), ("cases",)),
    "t2is_bench": (("*.after.average", "*.after.consistency"), ("*.after.alignment",)),
    "t2is": (("*.gold_consistency.change", "*.consistency.change"), ("*.gold_following.change", "*.clip_t.change")),
    "gedit": (("*.gold_editing.change", "*.editing.change"), ("*.gold_kept.change",)),
    "report": (("rank_accuracy",), ("rank_accuracy_gain",), ("seconds",), ("missing_parts",)),
}
