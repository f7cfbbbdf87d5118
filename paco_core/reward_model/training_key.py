"""What a checkpoint of the reward's training belongs to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from paco_core.config.resolved import resolved_section
from paco_core.io.files import digest
from paco_core.io.pictures import picture_digests
from paco_core.models.content import content_of

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import RewardParams
    from paco_core.reward_model.examples import Example


def training_key(
    params: RewardParams,
    examples: Sequence[Example],
    validation: Sequence[Example],
    base: str | Path,
    loaded: str,
    code: str,
) -> str:
    """Digest of what a training computes.

    Depends on, and holds: the parameters but for how it is run; of each training and validation example, in
    order, its id, question, answer, whether its pictures are ordered, and their pixels; the files of the base (a hub's
    by commit) and a sample of the weights as loaded; code and libraries. Which device of its kind computes, how many
    processes and threads move weights by rounding and are left out.

    Validation pairs choose the epoch whose weights are kept, and those of the other epochs are gone: nothing of a
    training can be gone on with for other validation pairs.

    Args:
        loaded: :func:`paco_core.reward_model.lora.base_digest` of the base.
        code: digest of the code that trains.
    """
    trained = resolved_section(params)
    trained["device"] = params.device.partition(":")[0]
    return digest([trained, _content(examples), _content(validation), content_of(base), loaded, code], 32)


def _content(examples: Sequence[Example]) -> list[list[object]]:
    pictures = iter(picture_digests([picture for example in examples for picture in example.images]))
    return [
        [example.id, example.instruction, example.answer, example.ordered, next(pictures), next(pictures)]
        for example in examples
    ]
