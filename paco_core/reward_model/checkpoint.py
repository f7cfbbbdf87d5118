"""Checkpoints of a reward model's training: adapter, optimizer, log and the best evaluation.

No random state is stored: the order of examples is a function of seed and epoch, and nothing else is random after the
first step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from paco_core.config.resolved import resolved_section
from paco_core.io.answer import to_jsonable
from paco_core.io.files import digest
from paco_core.io.pictures import picture_digests
from paco_core.models.content import content_of
from paco_core.reward_model.evaluation import RewardEvaluation
from paco_core.training.checkpoint import (
    Checkpoint,
    damaged_checkpoint,
    load_latest_checkpoint,
    pack,
    parse_count,
    save_checkpoint,
    unpack,
)
from paco_core.training.updates import Updates

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import RewardParams
    from paco_core.reward_model.examples import Example


@dataclass
class Best:
    """The best evaluation so far, and the weights of the adapter at that epoch."""

    epoch: int
    evaluation: RewardEvaluation
    weights: dict[str, torch.Tensor]

    @classmethod
    def from_evaluation(cls, epoch: int, evaluation: RewardEvaluation, weights: Mapping[str, torch.Tensor]) -> Best:
        """Copy the weights to host memory, shaped like ``weights``."""
        return cls(epoch, evaluation, {name: tensor.detach().cpu().clone() for name, tensor in weights.items()})

    def restore(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Copy the best weights into ``weights``, shaped like those of :meth:`from_evaluation`."""
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(self.weights[name])


@dataclass
class TrainingProgress:
    """Progress of a training run."""

    epoch: int = 0  # finished epochs
    epoch_step: int = 0  # finished optimizer steps of the current epoch
    step: int = 0  # finished optimizer steps of all epochs
    log: list[dict[str, float]] = field(default_factory=list)
    best: Best | None = None


def save_reward_checkpoint(
    folder: Path,
    key: str,
    progress: TrainingProgress,
    weights: Mapping[str, torch.Tensor],
    moments: Mapping[str, torch.Tensor],
) -> None:
    """Write a checkpoint.

    Args:
        key: :func:`reward_training_key` of the training.
        weights: trained weights by name, of any shape.
        moments: state of the optimizer, :meth:`Updates.moments`, shaped like the weights.

    Raises:
        OSError: for example, if the disk is full. The previous checkpoint is still valid.
    """
    groups = {"weights": weights, "optimizer": moments}
    notes: dict[str, Any] = {"epoch": progress.epoch, "within": progress.epoch_step, "log": progress.log, "best": None}
    if progress.best is not None:
        groups["best"] = progress.best.weights
        notes["best"] = {"epoch": progress.best.epoch, **to_jsonable(progress.best.evaluation)}
    save_checkpoint(folder, Checkpoint(key, progress.step, pack(groups), notes))


def restore_reward_checkpoint(
    folder: Path, key: str, weights: Mapping[str, torch.Tensor], updates: Updates
) -> TrainingProgress | None:
    """Load the newest checkpoint into ``weights``, of any shape, and their optimizer. None if there is none.

    Raises:
        DataError: if it is damaged, with the command to start again.
    """
    saved = load_latest_checkpoint(folder, key)
    if saved is None:
        return None
    try:
        return _restore(saved, weights, updates)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged_checkpoint(folder / saved.name, error) from None


def _restore(saved: Checkpoint, weights: Mapping[str, torch.Tensor], updates: Updates) -> TrainingProgress:
    notes, best_weights = saved.notes, unpack(saved.tensors, "best")
    best = None if notes["best"] is None else _best(notes["best"], {name: best_weights[name] for name in weights})
    epoch, epoch_step = parse_count(notes["epoch"]), parse_count(notes["within"])
    progress = TrainingProgress(epoch, epoch_step, saved.progress, [dict(row) for row in notes["log"]], best)
    trained = unpack(saved.tensors, "weights")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(trained[name])
    updates.restore(unpack(saved.tensors, "optimizer"))
    return progress


def _best(tree: dict[str, Any], weights: dict[str, torch.Tensor]) -> Best:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
    values["scores"] = tuple(math.nan if score is None else score for score in tree["scores"])
    return Best(parse_count(values.pop("epoch")), RewardEvaluation(**values), weights)


def reward_training_key(
    params: RewardParams,
    examples: Sequence[Example],
    validation: Sequence[Example],
    base: str | Path,
    loaded: str,
    code: str,
) -> str:
    """Digest of the inputs of a training.

    Depends on, and contains: the parameters without execution options; id, instruction, answer, order and pixels of
    each training and validation example, in order; the files of the base (or its hub commit) and a sample of its loaded
    weights; code and libraries. The device number and the numbers of processes and threads change weights by rounding
    only and are excluded.

    Validation pairs decide which epoch is kept. The weights of other epochs are lost, so a training cannot be resumed
    with other validation pairs.

    Args:
        loaded: :func:`paco_core.reward_model.lora.base_digest` of the base.
        code: digest of the training code.
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
