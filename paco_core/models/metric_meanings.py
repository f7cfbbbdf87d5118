"""Meanings of the metrics of benchmarks and trainings: the label of a table and one line of explanation.

This is the only declaration of them. The report, its headline table, model cards and the tables of benchmarks read it.
"""

from __future__ import annotations

from typing import NamedTuple


class MetricMeaning(NamedTuple):
    """A metric in words.

    Attributes:
        label: short name for the head of a table or a chart.
        meaning: definition in one line, without a full stop.
        is_reward: whether the recipes of the project train policies by this metric.
    """

    label: str
    meaning: str
    is_reward: bool = False


GROUND_TRUTH = "gold_"  # beginning of the name of each ground-truth metric
#: Of stories whose records have characters. The first one is the headline if the world has ground truth, because copies
#: do not raise it; else it is `characters`.
CHARACTER_METRICS = ("gold_identity_new", "gold_identity", "characters", "copies")
METRICS = {
    "gold_consistency": MetricMeaning(
        "Consistency",
        "share of panel pairs that the recognizer reads as the same character in the same style",
    ),
    "gold_following": MetricMeaning(
        "Prompt following", "share of the requested traits that the recognizer reads in the panels"
    ),
    "consistency": MetricMeaning(
        "Consistency (reward model)", "mean probability of Yes of the reward model over the panel pairs, 0 to 1", True
    ),
    "characters": MetricMeaning(
        "Characters (reward model)",
        "mean over panels of the reward model's lowest agreement of a panel with the characters of its prompt, 0 to 1",
        True,
    ),
    "clip_t": MetricMeaning(
        "Text match (CLIP-T)", "cosine similarity of each panel and its sub-prompt in the CLIP model", True
    ),
    "panel_diversity": MetricMeaning(
        "Panel diversity", "difference between the panels of a set; a value near 0 means identical panels"
    ),
    "gold_identity_new": MetricMeaning(
        "Identity in new panels",
        "share of a character's traits (species, color, accessory) that the recognizer reads in its panels that are no "
        "copies",
    ),
    "gold_identity": MetricMeaning(
        "Identity in all panels",
        "share of a character's traits (species, color, accessory) that the recognizer reads in all of its panels",
    ),
    "copies": MetricMeaning(
        "Copied panels",
        "share of the panels of a story whose pixels nearly equal a character's image or another panel",
    ),
    "gold_editing": MetricMeaning(
        "Correct edits",
        "share of edits in which the recognizer reads the requested change and no other change",
    ),
    "gold_reached": MetricMeaning(
        "Requested change", "share of edits in which the recognizer reads the requested change"
    ),
    "gold_kept": MetricMeaning(
        "Other traits unchanged",
        "share of the other traits that the recognizer reads as before the edit",
    ),
    "editing": MetricMeaning(
        "Edit score (reward model)",
        "geometric mean of the reward model's probabilities of Yes for both queries about an edit, 0 to 1",
        True,
    ),
    "edit_consistency": MetricMeaning(
        "No other change (reward model)", "the reward model's probability of Yes that nothing else changed, 0 to 1"
    ),
    "edit_following": MetricMeaning(
        "Requested change (reward model)", "the reward model's probability of Yes that the edit was made, 0 to 1"
    ),
    "near_copies": MetricMeaning(
        "Near-copies", "share of panel pairs, or of pairs of edit and reference, whose pixels are nearly equal"
    ),
    "edge_density": MetricMeaning("Edge density", "mean brightness difference of neighboring pixels, 0 to 1"),
    "color_entropy": MetricMeaning("Color entropy", "entropy of the colors of an image in bits, 0 to 9"),
    "mean_brightness": MetricMeaning("Brightness", "mean brightness of an image, 0 to 1"),
    "drift": MetricMeaning(
        "Hack meter (drift)",
        "gain by the training reward minus gain by the held-out reward model, in standard deviations of their scores",
    ),
    "accuracy": MetricMeaning(
        "Accuracy on rankings", "share of candidates that the model gives the same rank as the annotator"
    ),
}


def label_of(metric: str) -> str:
    """The label of a metric, marked if it is ground truth; of a metric without a declaration, its name."""
    if metric not in METRICS:
        return metric.replace("_", " ")
    return METRICS[metric].label + (" (ground truth)" if metric.startswith(GROUND_TRUTH) else "")
