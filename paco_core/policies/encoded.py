"""Encoded prompts in main memory, and batches of them on the device."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence

from paco_core.io.files import DataError


def mask_of(name: str) -> str:
    """Name of the mask (N, length) of a padded tensor: 1 = token, 0 = padding."""
    return f"{name} mask"


def shapes_of(name: str) -> str:
    """Name of the tensor (N, parts, 2) with rows and columns of tokens of each part of another tensor.

    It stays in main memory, because it decides how a batch is divided into passes. Missing parts are (0, 0).
    """
    return f"{name}{_SHAPES}"


_SHAPES = " shapes"


def group_by_shapes(shapes: torch.Tensor) -> dict[tuple[tuple[int, int], ...], list[int]]:
    """Group the rows of a batch by the shapes of their parts, because all rows of a pass have equal positions.

    Args:
        shapes: (N, parts, 2), see :func:`shapes_of`.
    """
    groups: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for row, parts in enumerate(shapes.tolist()):
        groups.setdefault(tuple((high, wide) for high, wide in parts if high), []).append(row)
    return groups


def validate_equal_shapes(idxs: Sequence[str], rows: Sequence[Mapping[str, torch.Tensor]]) -> None:
    """Check that all prompts have equally many reference images of equal sizes, so each batch needs one pass.

    Args:
        idxs: id of the prompt of each row.
        rows: encodings of prompts. They contain the shapes (references, 2) of their reference images.

    Raises:
        DataError: if the reference images of two prompts differ in number or size.
    """
    first: dict[str, tuple[str, torch.Tensor]] = {}
    for idx, row in zip(idxs, rows, strict=True):
        for name, shapes in row.items():
            if not (name.startswith("image_latents") and name.endswith(_SHAPES)):
                continue
            other, expected = first.setdefault(name, (idx, shapes))
            if not torch.equal(shapes, expected):
                raise DataError(
                    f"the reference images of the prompts {other} and {idx} differ in number or size, so a batch needs "
                    "several passes. FSDP2 needs the same number of passes in each process. Use launch/ddp.yaml, or "
                    "reference images of equal number and size"
                )


def ungroup(outputs: Sequence[torch.Tensor], groups: Iterable[Sequence[int]]) -> torch.Tensor:
    """Concatenate the outputs of groups of rows to (N, ...), in the order of the rows."""
    rows = [row for group in groups for row in group]
    return torch.cat(list(outputs))[sorted(range(len(rows)), key=rows.__getitem__)]


@dataclass(frozen=True)
class Condition:
    """The conditions of a batch of images: tensors on the device of the policy, one row per image.

    ``reused`` contains what a family reuses in all passes of inference over the batch.
    """

    tensors: dict[str, torch.Tensor]
    reused: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Encoded:
    """Encoded prompts and other conditions of a family in main memory, one row per prompt.

    A row contains the tensors of its prompt: the prompt embeddings without padding and, for edits, the reference image
    at each size of the generated images. At the scale of the paper, all rows would not fit on the GPU with the weights.
    """

    rows: Sequence[Mapping[str, torch.Tensor]]
    device: str

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> Condition:
        """Return a batch of rows on the device. ``rows`` may contain a row several times.

        The batch contains the tensors that all of these rows have. Shorter tensors are padded with zeros. If a tensor
        was padded, the batch also contains its mask (:func:`mask_of`).
        """
        selected = [self.rows[row] for row in rows]
        names = [name for name in selected[0] if all(name in row for row in selected)]
        tensors: dict[str, torch.Tensor] = {}
        for name in names:
            parts = [row[name] for row in selected]
            tensors[name] = pad_sequence(parts, batch_first=True)
            if len({len(part) for part in parts}) > 1:
                tensors[mask_of(name)] = pad_sequence(
                    [part.new_ones(len(part), dtype=torch.long) for part in parts], True
                )
        return Condition({n: t if n.endswith(_SHAPES) else t.to(self.device) for n, t in tensors.items()})
