"""Names of the built-in measures of an evaluation.

The code that measures takes its names from here, and :func:`validate_term_names` keeps reward terms away from them.
"""

from __future__ import annotations

from collections.abc import Collection

PANEL_DIVERSITY, REFERENCE_DISTANCE = "panel_diversity", "reference_distance"
SCORE, FAILED_SAMPLES = "score", "failed_samples"  # of the test rewards together; images without a score
#: By the embedded world's truth: of sets, of characters, and of edits.
GOLD_OF_SETS = ("gold_consistency", "gold_following")
#: Of stories whose records have characters: over all panels, and over the panels that are not copies.
GOLD_OF_CHARACTERS = ("gold_identity", "gold_identity_new")
GOLD_OF_EDITS = ("gold_editing", "gold_reached", "gold_kept")
#: Of the images of every policy; a fall or a rise raises the alarm of :mod:`paco_core.grpo.image_alarm`.
NEAR_COPIES = "near_copies"
COPIES = "copies"  # of stories whose records have characters
IMAGE_CONTENT = (NEAR_COPIES, "edge_density", "color_entropy", "mean_brightness")
#: Of the hack meter: of images, and of its two judges.
IMAGE_MEASURES = ("grid_score", "start_distance")
GAINS = ("trained_gain", "held_out_gain", "drift")
DRIFT_PROMPTS = "drift_prompts"
#: What follows the name of a measure: the ends of its interval, and how many samples are missing.
ENDS = ("_low", "_high", "_missing")

BUILT_IN = frozenset(
    {PANEL_DIVERSITY, REFERENCE_DISTANCE, COPIES, SCORE, FAILED_SAMPLES, DRIFT_PROMPTS}.union(
        GOLD_OF_SETS, GOLD_OF_CHARACTERS, GOLD_OF_EDITS, IMAGE_CONTENT, IMAGE_MEASURES, GAINS
    )
)


def validate_term_names(names: Collection[str], key: str) -> None:
    """Check that the metric of each reward term is its own.

    Raises:
        ValueError: naming a term that is called like a built-in measure, like the interval of a measure, or like a
            measure of one layout (``name/2x2``).
    """
    reserved = {f"{name}{end}": name for name in (*names, *BUILT_IN) for end in ENDS} | {n: n for n in BUILT_IN}
    for name in names:
        if name in reserved:
            raise ValueError(
                f"{key}: a reward term cannot be called {name!r}, for its metric would be that of the measure "
                f"{reserved[name]}; choose another name, and keep the reward by `reward:`"
            )
        if "/" in name:
            raise ValueError(
                f"{key}: a reward term cannot be called {name!r}: / separates the parts of a metric's name"
            )
