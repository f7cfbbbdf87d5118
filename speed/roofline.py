"""How long the passes of the paper's trainings take an H100 at best, on fake tensors of the public models' real sizes.

    python -m speed.roofline

Each operation takes the longer of two times: its arithmetic at the speed of its number format, and its bytes, read and
written, at the memory's (the roofline model, Williams et al. 2009). Both are what kernels reach, not the data sheet's
peaks. The sum over a pass is what PyTorch's operations take one after another, with nothing lost between them. `paco
plan` prints the share of the peak from here (`reached.ROOFLINE`) beside what a GPU measured.

Fused is the same sum for a compiler at its best (`policies.defaults.compile`): all that stands between products is one
kernel, which reads what products made and writes what products take, each once. Prints one line a pass, and one an
epoch; writes JSON.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe
from paco_core.planning.footprint import Architecture, architecture
from paco_core.planning.reached import H100_FLOPS
from paco_core.policies.adapters import rounded
from paco_core.policies.families import family_of
from speed.memory import RECIPES, allocate
from speed.policy_models import build, encoded

RESULT = Path(__file__).with_suffix(".json")
GPUS = 7  # that share an epoch of the paper
#: Sampling with the adapter in float32, as a step that is trained; without any, as if it were merged into the weights.
EXACT, MERGED = "sampling, adapter in float32", "sampling, adapter merged"
#: Of the data sheet's peak, what the best matrix products reach (794.5 TFLOP/s in bfloat16, by mamf-finder of "Machine
#: Learning Engineering", S. Bekman), and what copies reach of 3.35 TB/s.
REACHED, H100_BYTES = 0.803, 0.9 * 3.35e12
#: Operations a second in a number format; float32 products of a training beside bfloat16 are TF32.
SPEED = {torch.bfloat16: H100_FLOPS * REACHED, torch.float32: H100_FLOPS / 2 * REACHED}


@dataclass
class Roofline(TorchDispatchMode):
    """Adds up the time of all operations within: ``seconds`` in all, ``products`` of those that multiply matrices.

    ``between`` is that of the bytes which other operations must still read and write where they are fused.
    """

    seconds: float = 0.0
    products: float = 0.0
    between: float = 0.0

    def __post_init__(self) -> None:
        super().__init__()
        self._unread: dict[int, Any] = {}  # what a product made and no other operation has read yet, by its storage
        self._unwritten: dict[int, Any] = {}  # what others made and no product has taken yet

    @property
    def fused(self) -> float:
        """Seconds in all, where all between products is fused."""
        return self.products + self.between

    def _pass_on(self, given: list[torch.Tensor], made: list[torch.Tensor], *, product: bool) -> None:
        """Count the bytes that change hands between products and what stands between them, each once."""
        wanted, left = (self._unwritten, self._unread) if product else (self._unread, self._unwritten)
        for tensor in given:
            if wanted.pop(tensor.untyped_storage()._cdata, None) is not None:
                self.between += _bytes(tensor) / H100_BYTES
        # Kept alive, so that no other storage takes its place.
        left |= {tensor.untyped_storage()._cdata: tensor for tensor in made}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        if func.is_view or not _touches(func):
            return out
        found = flop_registry.get(func._overloadpacket)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, torch.Tensor)]
        moved = sum(_bytes(tensor) for tensor in (*given, *made)) / H100_BYTES
        self._pass_on(given, made, product=found is not None)
        if found is None:
            self.seconds += moved if made else 0.0
            return out
        flops = found(*args, **kwargs, out_val=out)
        time = max(flops / SPEED[given[0].dtype], moved)
        self.products += time
        self.seconds += time
        return out


def _bytes(tensor: torch.Tensor) -> int:
    """That are read or written: of a tensor that was expanded, each once."""
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride else 1
    return numbers * tensor.element_size()


def _touches(func: Any) -> bool:
    """Whether an operation that is no view reads or writes its tensors at all."""
    aten = torch.ops.aten
    return func._overloadpacket not in (aten.empty, aten.empty_like, aten.detach, aten._unsafe_view)


@dataclass(frozen=True)
class Pass:
    """One pass of a batch: what it takes by the roofline, and the share of the peak that its formula then comes to."""

    policy: str
    phase: str
    batch: int
    seconds: float
    in_products: float
    utilisation: float
    fused_seconds: float


def passes(name: str, recipe: PolicyRecipe, found: Architecture, root: Path) -> Iterator[Pass]:
    """The passes that sample and the pass that trains, of one recipe."""
    policy = build(recipe, found, "meta", root)
    side, each = recipe.train_size, family_of(recipe.family).passes_a_step(recipe.guidance)
    flops = found.pass_flops(*found.tokens(recipe, side)) * each

    def run(batch: int, around: AbstractContextManager[None], *, train: bool) -> None:
        given = encoded(policy, recipe, found, (side, side)).take([0] * batch)
        latents = torch.empty(batch, (side // found.patch) ** 2, found.channels)
        with torch.set_grad_enabled(train), around, Roofline() as line:
            velocity: torch.Tensor = policy.velocity(latents, 0.9, given, recipe.guidance, (side, side))
            if train:
                velocity.square().mean().backward()
        lines.append(line)

    lines: list[Roofline] = []
    sampling = recipe.rollout_batch, 1
    ways: dict[str, tuple[tuple[int, int], Callable[[], AbstractContextManager[None]]]] = {
        "sampling": (sampling, lambda: rounded(policy.transformer)),
        EXACT: (sampling, nullcontext),
        MERGED: (sampling, lambda: policy.using(None)),
        "training": ((recipe.train_batch, 3 if recipe.gradient_checkpointing else 2), nullcontext),
    }
    with FakeTensorMode(allow_non_fake_inputs=True):
        allocate(policy.transformer)
        for phase, ((batch, counted), around) in ways.items():
            for _ in range(1 if lines and phase != "training" else 2):  # the first makes what is computed once
                run(batch, around(), train=phase == "training")
            line = lines[-1]
            share = batch * flops * counted / H100_FLOPS / line.seconds
            yield Pass(name, phase, batch, line.seconds, line.products / line.seconds, share, line.fused)


def epoch(recipe: PolicyRecipe, rows: Iterable[Pass]) -> dict[str, float]:
    """Seconds of the passes of an epoch, shared by :data:`GPUS`: as they are, and with what they once were or may be.

    ``before``: all steps were sampled as trained ones are.
    """
    found = {row.phase: row for row in rows}
    pictures, steps = recipe.pictures_an_epoch / GPUS, recipe.sampling_steps
    kept = len(recipe.train_steps or recipe.noise_steps)
    batches, updates = pictures / recipe.rollout_batch, pictures * kept / recipe.train_batch

    def seconds(of: Callable[[Pass], float], untrained: str) -> float:
        sampled = kept * of(found[EXACT]) + (steps - kept) * of(found[untrained])
        return batches * sampled + updates * of(found["training"])

    def plain(row: Pass) -> float:
        return row.seconds

    def fused(row: Pass) -> float:
        return row.fused_seconds

    return {"before": seconds(plain, EXACT), "plain": seconds(plain, "sampling"), "fused": seconds(fused, "sampling")}


def measure(root: Path, profile: str = "paper", recipes: tuple[str, ...] = RECIPES) -> list[Pass]:
    """All passes of a profile's recipes."""
    params, found = profiles.read(root, profile), list[Pass]()
    for name in recipes:
        recipe = params.policies.recipes[name]
        shape = architecture(root, recipe.model)
        assert shape is not None
        found += passes(name, recipe, shape, root)
    return found


def main() -> None:
    argparse.ArgumentParser(
        prog="python -m speed.roofline", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    params, rows = profiles.read(Path.cwd(), "paper"), measure(Path.cwd())
    for row in rows:
        print(
            f"{row.policy:<13} {row.phase:<29} batch {row.batch:2}  {row.seconds:6.3f} s, {row.in_products:.0%} in "
            f"products, {row.utilisation:.0%} of an H100's peak; fused {row.fused_seconds:.3f} s"
        )
    epochs = {
        name: epoch(params.policies.recipes[name], [row for row in rows if row.policy == name]) for name in RECIPES
    }
    for name, seconds in epochs.items():
        print(f"{name:<13} an epoch on {GPUS} GPUs: " + ", ".join(f"{way} {s:.0f} s" for way, s in seconds.items()))
    RESULT.write_text(json.dumps({"passes": [vars(row) for row in rows], "epochs": epochs}, indent=2) + "\n")


if __name__ == "__main__":
    main()
