"""The state of a reward's training as a checkpoint: adapter, optimiser, log and the best evaluation.

Nothing random is stored: the order of examples is a function of seed and epoch, and nothing else is drawn after the
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
from paco_core.training.checkpoint import Checkpoint, count, damaged, latest, pack, unpack
from paco_core.training.checkpoint import save as save_checkpoint
from paco_core.training.updates import Updates

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import RewardParams
    from paco_core.reward_model.examples import Example


@dataclass
class Best:
    """The best evaluation so far, and the adapter's weights of then."""

    epoch: int
    seen: RewardEvaluation
    weights: dict[str, torch.Tensor]

    @classmethod
    def from_evaluation(cls, epoch: int, seen: RewardEvaluation, weights: Mapping[str, torch.Tensor]) -> Best:
        """With a copy of the weights, shaped like them, in host memory."""
        return cls(epoch, seen, {name: tensor.detach().cpu().clone() for name, tensor in weights.items()})

    def put_back(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Give ``weights``, shaped like those of :meth:`from_evaluation`, the values of the best evaluation."""
        with torch.no_grad():
            for name, tensor in weights.items():
                tensor.copy_(self.weights[name])


@dataclass
class Progressed:
    """How far a run has come."""

    epoch: int = 0  # epochs done
    within: int = 0  # optimiser steps done in the epoch that has begun
    step: int = 0  # optimiser steps done in all
    log: list[dict[str, float]] = field(default_factory=list)
    best: Best | None = None


def save(
    folder: Path,
    key: str,
    done: Progressed,
    weights: Mapping[str, torch.Tensor],
    moments: Mapping[str, torch.Tensor],
) -> None:
    """Write the state; ``key`` names what is being trained (parameters, examples, base).

    Raises:
        OSError: when the disk is full, say; the state before it is still good.
    """
    groups = {"weights": weights, "optimizer": moments}
    notes: dict[str, Any] = {"epoch": done.epoch, "within": done.within, "log": done.log, "best": None}
    if done.best is not None:
        groups["best"] = done.best.weights
        notes["best"] = {"epoch": done.best.epoch, **to_jsonable(done.best.seen)}
    save_checkpoint(folder, Checkpoint(key, done.step, pack(groups), notes))


def restore(folder: Path, key: str, weights: Mapping[str, torch.Tensor], updates: Updates) -> Progressed | None:
    """Load the state, shaped like them, into ``weights`` and their updates; None when there is none for this ``key``.

    Raises:
        DataError: when it is damaged, saying how to start afresh.
    """
    found = latest(folder, key)
    if found is None:
        return None
    try:
        return _restored(found, weights, updates)
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        raise damaged(folder / found.name, error) from None


def _restored(found: Checkpoint, weights: Mapping[str, torch.Tensor], updates: Updates) -> Progressed:
    notes, kept = found.notes, unpack(found.tensors, "best")
    best = None if notes["best"] is None else _best(notes["best"], {name: kept[name] for name in weights})
    epoch, within = count(notes["epoch"]), count(notes["within"])
    done = Progressed(epoch, within, found.done, [dict(row) for row in notes["log"]], best)
    trained = unpack(found.tensors, "weights")
    with torch.no_grad():
        for name, tensor in weights.items():
            tensor.copy_(trained[name])
    updates.restore(unpack(found.tensors, "optimizer"))
    return done


def _best(tree: dict[str, Any], weights: dict[str, torch.Tensor]) -> Best:
    values: dict[str, Any] = {name: math.nan if value is None else value for name, value in tree.items()}
    values["scores"] = tuple(math.nan if score is None else score for score in tree["scores"])
    return Best(count(values.pop("epoch")), RewardEvaluation(**values), weights)


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
