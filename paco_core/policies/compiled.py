"""Transformers whose repeated blocks are compiled, each kind of block once ("regional compilation" of PyTorch).

What stands between two matrix products becomes one kernel, which moves less memory. Rounding changes by that, in
rollouts and in trained passes alike.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch

KEY = "policies.defaults.compile"
#: Programs of a kind of block: with and without gradient, with each adapter or none, in each number format.
PROGRAMS = 64


def check_compile(wanted: bool, sharded: bool = False) -> None:
    """Say early why blocks cannot be compiled.

    Args:
        wanted: ``compile`` of the recipe.
        sharded: whether FSDP2 shards the weights among processes.

    Raises:
        DataError: if it does, and without a C++ compiler, which PyTorch calls.
    """
    if not wanted:
        return
    if sharded:
        raise DataError(
            f"{KEY}: FSDP2 runs code of its own around each block, which is not compiled; set it to false, or use "
            "launch/ddp.yaml"
        )
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise DataError(
            f"{KEY} needs a C++ compiler, and {compiler} is not installed here; install it, or set it to false"
        )


def compile_blocks(transformer: torch.nn.Module | None) -> None:
    """Compile a transformer's blocks at their first pass; its adapter is attached before.

    Whole blocks or an error, and for all shapes at once: programs for the shapes that came first would be others after
    a training went on from a checkpoint.

    Raises:
        DataError: when diffusers names no blocks to compile.
    """
    if not getattr(transformer, "_repeated_blocks", None):
        raise DataError(f"{KEY}: a policy of this family has no blocks that diffusers compiles; set it to false")
    import torch._dynamo

    torch._dynamo.config.recompile_limit = PROGRAMS
    transformer.compile_repeated_blocks(fullgraph=True, dynamic=True)  # type: ignore[union-attr, operator]
