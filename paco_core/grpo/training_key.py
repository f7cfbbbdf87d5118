"""What a checkpoint of a policy's training belongs to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from paco_core.io.files import digest

if TYPE_CHECKING:
    from paco_core.config.params import PoliciesParams, PolicyRecipe
    from paco_core.data.records.records import PromptRecord

#: Settings that do not change what an epoch computes: a run may go on when they were changed.
NO_INFLUENCE = {"recipes", "epochs", "checkpoint_every", "keep_checkpoints"}


def training_key(
    params: PoliciesParams,
    recipe: PolicyRecipe,
    train: Sequence[PromptRecord],
    unseen: Sequence[PromptRecord],
    references: Sequence[Sequence[str]],
    identity: Mapping[str, str],
) -> str:
    """Digest of everything that an epoch's result depends on.

    Depends on, and holds: the parameters but for :data:`NO_INFLUENCE` and the recipe but for its number of epochs; all
    that the records of training and evaluation say, in order (evaluations lie in the log, and their pictures beside
    the checkpoints); the pixels of the reference pictures of both; what ``identity`` names by content: code and
    libraries, models, the adapter to start from, judges with engine and number format, models of rewards, the
    annotator of the gold measure (:func:`paco_core.experiments.training.identity`). Processes and threads move weights
    by rounding and are left out.

    Args:
        references: digests of the pictures of ``train`` and of ``unseen``; empty where the policy edits none.
    """
    return digest(
        {
            "params": params.model_dump(exclude=NO_INFLUENCE),
            "recipe": recipe.model_dump(exclude={"epochs"}),
            "train": [record.model_dump() for record in train],
            "unseen": [record.model_dump() for record in unseen],
            "references": [list(pictures) for pictures in references],
            "identity": dict(identity),
        }
    )
