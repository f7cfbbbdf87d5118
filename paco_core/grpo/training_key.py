"""What a checkpoint of a policy's training belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paco_core.config.resolved import resolved_section
from paco_core.io.files import digest

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord


def training_key(
    recipe: PolicyRecipe,
    train: Sequence[PromptRecord],
    unseen: Sequence[PromptRecord],
    references: Sequence[Sequence[str]],
    identity: Mapping[str, str],
) -> str:
    """Digest of everything that an epoch's result depends on.

    Depends on, and holds: the recipe but for how it is run and its number of epochs (a training can be prolonged); all
    that the records of training and evaluation say, in order (evaluations lie in the log, and their pictures beside
    the checkpoints); the pixels of the reference pictures of both; what ``identity`` names by content: code and
    libraries, models, the adapter to start from, judges with engine and number format, models of rewards, the
    annotator of the gold measure (:func:`paco_core.grpo.recipe.identity`). Processes and threads move weights
    by rounding and are left out.

    Args:
        references: digests of the pictures of ``train`` and of ``unseen``; empty where the policy edits none.
    """
    return digest(
        {
            "recipe": {name: value for name, value in resolved_section(recipe).items() if name != "epochs"},
            "train": [record.model_dump() for record in train],
            "unseen": [record.model_dump() for record in unseen],
            "references": [list(pictures) for pictures in references],
            "identity": dict(identity),
        }
    )
