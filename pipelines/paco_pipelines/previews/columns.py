"""Descriptions of table columns, for the pages of assets."""

from __future__ import annotations

import re
from collections.abc import Mapping

from paco_core.stages import declaration

#: What a measure says of a picture, a set, an edit or a ranking; the long form is in docs/reference.
MEASURES: Mapping[str, str] = {
    "accuracy": "share of positions filled as the annotator filled them",
    "aesthetics": "a predictor's score of the panels, 0 to 1",
    "attribute": "mean P(Yes) that panels show the attributes that they should",
    "bottom1": "whether the worst is last",
    "calibration_error": "expected calibration error of P(Yes)",
    "clip_i": "mean CLIP cosine over the pairs of panels",
    "clip_t": "mean CLIP cosine of each panel and its own sub-prompt",
    "consistency": "mean P(Yes) of the reward over the pairs of panels",
    "edit_consistency": "P(Yes) of the reward that all but the edit stayed the same",
    "edit_following": "P(Yes) of the reward that the edit was made",
    "editing": "square root of P(edit_consistency) x P(edit_following)",
    "entity": "mean P(Yes) that panels show what they should",
    "footrule": "sum of rank differences: 0 is perfect",
    "gold_consistency": "share of consistent pairs of panels, as the recogniser reads them",
    "gold_editing": "1: the edit was made and all else kept, as the recogniser reads it",
    "gold_following": "share of traits painted as asked, as the recogniser reads them",
    "gold_kept": "share of the other traits that stayed as they were, as the recogniser reads them",
    "gold_reached": "1: the edit was made, as the recogniser reads it",
    "identity": "mean P(Yes) over pairs of panels and the criteria of identity",
    "identical_score": "mean P(Yes) of a picture paired with itself",
    "logic": "mean P(Yes) over pairs of panels and the criteria of logic",
    "overall": "VIEScore: square root of sc x pq, 0 to 10",
    "panel_diversity": "root mean square pixel difference between panels of a set, 0 to 1: 0 is copies",
    "position_bias": "mean change of P(Yes) when the two pictures are swapped",
    "position_spread": "mean absolute change of P(Yes) when the two pictures are swapped",
    "pq": "VIEScore: perceptual quality, 0 to 10",
    "reference_distance": "root mean square pixel difference of edit and reference, 0 to 1: 0 is a copy",
    "relation": "mean P(Yes) that panels show the relations that they should",
    "rho": "Spearman's rho of the rank vectors",
    "rho_paper": "Spearman's rho on index orderings, as published figures were computed",
    "roc_auc": "area under the ROC curve",
    "sc": "VIEScore: semantic consistency, 0 to 10",
    "style": "mean P(Yes) over pairs of panels and the criteria of style",
    "t1_b1": "mean of top1 and bottom1",
    "tau": "Kendall's tau-b of the rank vectors",
    "tau_paper": "Kendall's tau on index orderings, as published figures were computed",
    "top1": "whether the best is first",
}
COLUMNS: Mapping[str, str] = {
    **MEASURES,
    "annotator": "who ranked",
    "answer": "the answer that the model learns: the decision, and one to three reasons",
    "before": "traits of the picture before the edit",
    "better": "score of the better of two edits",
    "candidates": "panels to rank, named `grid id#position`",
    "case_id": "id of the comparison",
    "character": "of a character pair: the name of the character; else empty",
    "category": "category of the prompt in the T2IS layout",
    "cause": "why the pair got no answer",
    "criteria": "what a judge should look at, in the T2IS layout",
    "dimension": "what is judged: prompt_following, consistency or overall",
    "engine": "what wrote the answer; `given` where the pair brought it",
    "epoch": "epoch of the training; 0 is before it",
    "first": "first panel of the pair, named `grid id#position`",
    "gradient_norm": "norm of the gradient before clipping",
    "height": "height in pixels",
    "id": "id, a digest of the content",
    "idx": "id of the prompt",
    "instance_id": "id of the ranking instance, a digest of its reference and the other grid",
    "instruction": "of an edit: what to do; else empty",
    "kind": "of a character pair: positive, or how the panel is wrong; else empty",
    "label": "Yes: consistent; No: not",
    "language": "language of the instruction",
    "layout": "rows x columns of panels",
    "learning_rate": "learning rate of the step",
    "loss": "weighted loss of the step",
    "md5": "md5 of the PNG",
    "member": "name of the PNG in the tar",
    "method": "which judge (the reward, its base, clip_i, random, or an added one); of a set, what painted it",
    "nearest_after": "cosine similarity to the nearest of the kept prompts; empty for one that was not kept",
    "nearest_before": "cosine similarity to the nearest of all prompts",
    "offset": "first byte of the PNG in the tar",
    "painter": "the base editor that painted it",
    "pair_id": "id of the pair, a digest of its two panels",
    "panels": "panels of the set",
    "part": "train or unseen",
    "picture": "id of the source picture",
    "policy": "recipe of the policy",
    "prompt": "the text that is painted, or what to do with the picture",
    "prompt_id": "id of the prompt",
    "question": "of an edit: the wording of its question; else empty",
    "ranking": "positions of the candidates, best first",
    "reference": "the panel or picture that the others are compared with",
    "references": "of a character pair: number of images of the character; else empty",
    "reward_ratio": "mean consistency over mean clip_t of the epoch's samples",
    "right": "1: the better edit scored higher; a tie is 0",
    "scores": "score of each candidate: higher is more consistent",
    "second": "second panel of the pair, named `grid id#position`",
    "seed": "seed of the noise",
    "shows": "trait -> word, as the annotator reads the picture",
    "size": "side of the pictures in pixels",
    "step": "optimiser step",
    "task_name": "subcategory of the prompt in the T2IS layout",
    "task_type": "kind of edit",
    "theme": "what the set is about",
    "tied": "whether candidates share a rank",
    "trait": "the trait to change",
    "when": "before or after training",
    "width": "width in pixels",
    "word": "what the trait should become",
    "worse": "score of the worse of two edits",
}
#: Columns of training logs: what stands before the last slash says where a measure was taken.
_PREFIXES = (
    (re.compile(r"eval/(\d+)/(.+)"), "unseen prompts at {0} px: {1}"),
    (re.compile(r"gap/(.+)"), "last evaluation size minus the first: {0}"),
    (re.compile(r"reward/(.+)"), "mean reward of the epoch's samples: {0}"),
    (re.compile(r"variation/(.+)"), "standard deviation over mean of the epoch's samples: {0}"),
    (re.compile(r"tamed/(.+)"), "1: log-taming damped it, because it varied too much: {0}"),
    (re.compile(r"validation_(.+)"), "on held-out pairs: {0}"),
)
_LOGGED: Mapping[str, str] = {
    "groups/zero_std": "groups whose samples all have the same reward: nothing is learnt from them",
    "groups/failed_samples": "samples that no reward could score",
    "update/clip_fraction": "share of the trained samples whose ratio was clipped",
    "update/grad_norm": "mean norm of the gradient over updates, before clipping",
    "update/kl": "mean distance to the policy without adapter",
    "update/loss": "loss of the epoch's updates",
    "update/first_clip_fraction": "share of samples whose ratio is outside the clip range before the first update",
    "update/ratio_gap": "largest |ratio - 1| before the first update: 0 except for rounding",
    "update/ratio_mean": "mean ratio of new to old probability over the trained samples",
    "update/ratio_std": "standard deviation of the ratio over the trained samples",
    "update/trained": "samples passed forward and backward; those without a gradient are not",
    "validation_true_yes": "held-out pairs: Yes answered Yes",
    "validation_false_yes": "held-out pairs: No answered Yes",
    "validation_true_no": "held-out pairs: No answered No",
    "validation_false_no": "held-out pairs: Yes answered No",
    "validation_pairs": "held-out pairs that were asked about",
    "validation_failed": "held-out pairs without an answer",
}


def describe_column(stage: str, column: str) -> str | None:
    """What a column of a stage's table holds; None where nobody wrote it down."""
    for description in (declaration(stage).columns.get(column), _LOGGED.get(column), COLUMNS.get(column)):
        if description is not None:
            return description
    for pattern, text in _PREFIXES:
        if match := pattern.fullmatch(column):
            *prefixes, measure = match.groups()
            return text.format(*prefixes, MEASURES.get(measure, measure))
    return None
