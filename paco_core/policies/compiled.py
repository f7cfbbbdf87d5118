"""Transformers whose repeated blocks are compiled, each kind of block once ("regional compilation" of PyTorch).

The operations between two matrix products become one kernel, which moves less memory. This changes rounding, in
rollouts and in training passes.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from paco_core.io.files import DataError

if TYPE_CHECKING:
    import torch

KEY = "policies.defaults.compile"
#: Maximum number of programs per kind of block: with and without gradient, for each adapter, in each number format.
PROGRAMS = 64


def validate_compile(enabled: bool, sharded: bool = False) -> None:
    """Check the requirements of compiled blocks before the training starts.

    Args:
        enabled: ``compile`` of the recipe.
        sharded: whether FSDP2 shards the weights among processes.

    Raises:
        DataError: if the weights are sharded, or there is no C++ compiler, which PyTorch calls.
    """
    if not enabled:
        return
    if sharded:
        raise DataError(
            f"{KEY}: FSDP2 runs hooks around each block, which cannot be compiled; set it to false, or use "
            "launch/ddp.yaml"
        )
    compiler = os.environ.get("CXX", "g++")
    if shutil.which(compiler) is None:
        raise DataError(f"{KEY} needs a C++ compiler, and {compiler} is not installed; install it, or set it to false")


def compile_blocks(transformer: torch.nn.Module | None) -> None:
    """Compile the blocks of a transformer at their first pass. Attach its adapter before.

    Complete blocks are compiled for all shapes. If programs depended on the first shapes, they would differ after a
    training resumes from a checkpoint.

    Raises:
        DataError: if diffusers defines no repeated blocks for the transformer.
    """
    if not getattr(transformer, "_repeated_blocks", None):
        raise DataError(f"{KEY}: a policy of this family has no blocks that diffusers compiles; set it to false")
    import torch._dynamo

    torch._dynamo.config.recompile_limit = PROGRAMS
    transformer.compile_repeated_blocks(fullgraph=True, dynamic=True)  # type: ignore[union-attr, operator]
