"""Peak memory of the paper's trainings on a GPU, phase by phase, on fake tensors of the public models' real sizes.

    python -m speed.memory

Fake tensors have shapes, formats and lifetimes, and no contents: a phase's peak is what PyTorch would have allocated at
once, without a GPU and without the weights. Not counted are what a GPU adds: the allocator's rounding, workspaces of
kernels, CUDA's own context. Prints it beside the estimate of `paco plan`, which is a formula; writes JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paco_core.config import profiles
from paco_core.config.params import Params, PolicyRecipe
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.sizes import grids_of
from paco_core.planning.device_memory import device_memory
from paco_core.planning.footprint import KEPT_BYTES, KNOWN
from paco_core.planning.foreseen import paintable, usable
from paco_core.policies.adapters import rounded
from paco_core.policies.base import Size, sized
from paco_core.policies.encoded import shapes_of
from paco_core.policies.families import predecessors_of
from speed.policy_models import build, encoded

RESULT = Path(__file__).with_suffix(".json")
RECIPES = ("flux_t2is", "kontext_edit", "qwen_edit")


class Allocated(TorchDispatchMode):
    """Bytes of all tensors that live, now and at the peak since :meth:`restart`."""

    def __init__(self) -> None:
        super().__init__()
        self._sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def restart(self) -> None:
        self.peak = self.now

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: Any) -> None:
        if storage._cdata not in self._sizes:
            self._sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, storage._cdata)

    def _free(self, key: int) -> None:
        self.now -= self._sizes.pop(key)


def allocate(module: torch.nn.Module) -> None:
    """Give each weight that has no contents a fake tensor, which counts."""
    for part in module.modules():
        for found in (part._parameters, part._buffers):
            for name, tensor in found.items():
                if tensor is not None:
                    fake = torch.empty(tensor.shape, dtype=tensor.dtype)
                    grad = tensor.requires_grad
                    found[name] = torch.nn.Parameter(fake, grad) if isinstance(tensor, torch.nn.Parameter) else fake


@contextmanager
def peak(allocated: Allocated, found: dict[str, float], phase: str) -> Iterator[None]:
    """Note the peak of a block in GB, under the name of its phase; the largest where there are several."""
    allocated.restart()
    yield
    found[phase] = max(found.get(phase, 0.0), allocated.peak / 1e9)


@dataclass(frozen=True)
class Picture:
    """What a pass paints, a picture or a story's panel, and how many reference pictures stand beside it."""

    size: Size
    references: int | None = None


def largest(recipe: PolicyRecipe, records: Sequence[PromptRecord], side: int, patch: int) -> Picture:
    """The largest that the records' pages have, beside as many reference pictures as one has at most."""
    pages = grids_of(recipe, records, side, patch)
    size = max((page.part_size for page in pages), key=math.prod, default=(side, side))
    before = predecessors_of(recipe)
    if before:
        return Picture(size, min(before, max(page.parts for page in pages) - 1))
    counts = [len(record.references) for record in records if isinstance(record, EditRecord)]
    return Picture(size, max(counts, default=None))


def measure(params: Params, name: str, root: Path) -> dict[str, float]:
    """GB at the peak of each phase that `paco plan` names, but for the encoding of prompts."""
    recipe = params.policies.recipes[name]
    found, peaks = KNOWN[recipe.model], dict[str, float]()
    trained, painted = paintable(usable(params, root), recipe, root)
    policy = build(recipe, found, "meta", root)
    with FakeTensorMode(allow_non_fake_inputs=True), Allocated() as allocated:
        allocate(policy.transformer)
        allocate(policy.vae)
        weights = list(policy.trainable().values())
        # As the learner holds them: the average, two moments, and the sum of an update's gradients in float64.
        kept = [torch.empty(w.shape, dtype=d) for w in weights for d in (*[torch.float32] * 3, torch.float64)]

        def passed(one: Picture, batch: int, *, train: bool = False) -> torch.Tensor:
            size = one.size
            row = encoded(policy, recipe, found, size, one.references)
            given, shapes = row.take([0] * batch), shapes_of(sized("reference", size))
            if shapes in given.tensors:
                with unset_fake_temporarily():  # these numbers are read, so they have contents
                    given.tensors[shapes] = row.rows[0][shapes].expand(batch, -1, -1)
            latents = torch.empty(batch, math.prod(size) // found.patch**2, found.channels)
            with torch.set_grad_enabled(train), nullcontext() if train else rounded(policy.transformer):
                velocity: torch.Tensor = policy.velocity(latents, 0.9, given, recipe.guidance, size)
                if train:
                    velocity.square().mean().backward()
            return latents

        def decoded(latents: torch.Tensor, size: Size) -> None:
            with torch.no_grad(), rounded(policy.transformer):  # as `decode` does
                for part in policy.decoded_at_once(latents, size):
                    policy._pixels(policy._unpacked(part, size))
                    break  # the others are like it

        for weight in weights:
            weight.grad = torch.empty(weight.shape)
        with peak(allocated, peaks, "training"):
            one = largest(recipe, trained, recipe.train_size, found.patch)
            passed(one, recipe.train_batch, train=True)
            decoded(passed(one, recipe.rollout_batch), one.size)
        side = max(recipe.eval_sizes)
        with peak(allocated, peaks, f"evaluation at {side} px"):
            one = largest(recipe, painted, side, found.patch)
            decoded(passed(one, recipe.eval_batch or recipe.rollout_batch), one.size)
        del kept
    spared = _spared(policy.transformer, recipe.base) / 1e9
    return {phase: gb - spared for phase, gb in peaks.items()}


def _spared(transformer: torch.nn.Module, base: str | None) -> float:
    """Bytes that frozen layers of fewer bits spare, but for the largest one's copy, which is multiplied by."""
    if base is None:
        return 0.0
    layers = [m.weight for m in transformer.modules() if isinstance(m, torch.nn.Linear) and not m.weight.requires_grad]
    sizes = [weight.numel() for weight in layers]
    return sum(sizes) * (2 - KEPT_BYTES[base]) - 2 * max(sizes)


def compare(params: Params, root: Path, recipes: Sequence[str] = RECIPES) -> list[dict[str, Any]]:
    """Each phase of each recipe: the peak, and the estimate of `paco plan`."""
    rows = []
    for name in recipes:
        planned = device_memory(params, name, root)
        assert planned is not None
        for phase, gb in measure(params, name, root).items():
            rows.append(
                {"recipe": name, "phase": phase, "peak_gb": round(gb, 2), "plan_gb": round(planned.phases[phase], 2)}
            )
    return rows


def main() -> None:
    argparse.ArgumentParser(prog="python -m speed.memory", description=__doc__).parse_args()
    root = Path.cwd()
    rows = compare(profiles.read(root, "paper"), root)
    for row in rows:
        print("{recipe:<13} {phase:<22} peak {peak_gb:6.1f} GB   plan {plan_gb:6.1f} GB".format(**row))
    RESULT.write_text(json.dumps(rows, indent=2) + "\n")


if __name__ == "__main__":
    main()
