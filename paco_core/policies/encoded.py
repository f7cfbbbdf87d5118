"""Encoded prompts, kept in main memory, and the batches that a pass takes of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence


def mask_of(name: str) -> str:
    """Name of the tensor (N, length) that is 1 where another one is no padding, else 0."""
    return f"{name} mask"


def shapes_of(name: str) -> str:
    """Name of the tensor (N, parts, 2) of the rows and columns of tokens that another one is put together from.

    It stays in main memory, where it says how a batch is passed; absent parts are (0, 0).
    """
    return f"{name}{_SHAPES}"


_SHAPES = " shapes"


def by_shapes(shapes: torch.Tensor) -> dict[tuple[tuple[int, int], ...], list[int]]:
    """Rows of a batch by the shapes of their parts: all rows of one pass have the same positions.

    Args:
        shapes: (N, parts, 2), as :func:`shapes_of` names it.
    """
    found: dict[tuple[tuple[int, int], ...], list[int]] = {}
    for row, parts in enumerate(shapes.tolist()):
        found.setdefault(tuple((high, wide) for high, wide in parts if high), []).append(row)
    return found


def in_order(found: Sequence[torch.Tensor], groups: Iterable[Sequence[int]]) -> torch.Tensor:
    """What was computed group by group of rows, (N, ...) in the order of the rows."""
    places = [row for rows in groups for row in rows]
    return torch.cat(list(found))[sorted(range(len(places)), key=places.__getitem__)]


@dataclass(frozen=True)
class Condition:
    """What the pictures of one batch are conditioned on: tensors on the policy's device, one row a picture."""

    tensors: dict[str, torch.Tensor]


@dataclass(frozen=True)
class Encoded:
    """Encoded prompts (and whatever else a family conditions on) in main memory, one row a prompt.

    A row holds its own prompt's tensors only: its words without padding and, of an edit, the reference picture at the
    sizes that this prompt's pictures have. At the paper's scale all of them would not fit beside the weights.
    """

    rows: Sequence[Mapping[str, torch.Tensor]]
    device: str

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Sequence[int]) -> Condition:
        """A batch of the named rows in the given order, on the device; a row may be taken many times.

        Holds the tensors that all of these rows have. Shorter ones are padded with zeros; :func:`mask_of` a tensor says
        where it is not, and is there only if something was padded.
        """
        taken = [self.rows[row] for row in rows]
        names = [name for name in taken[0] if all(name in row for row in taken)]
        found: dict[str, torch.Tensor] = {}
        for name in names:
            parts = [row[name] for row in taken]
            found[name] = pad_sequence(parts, batch_first=True)
            if len({len(part) for part in parts}) > 1:
                found[mask_of(name)] = pad_sequence(
                    [part.new_ones(len(part), dtype=torch.long) for part in parts], True
                )
        return Condition({n: t if n.endswith(_SHAPES) else t.to(self.device) for n, t in found.items()})
