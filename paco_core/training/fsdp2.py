"""FSDP2: the frozen weights of a model shared out among the processes; its adapter stays whole.

What is shared out is gathered block by block for each pass and dropped after it. Frozen weights have no gradients to
exchange, and those of the adapter are summed as without sharding, so the numbers do not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from paco_core.io.files import DataError


def shard(
    transformer: torch.nn.Module | None, device: str | torch.device, kept: Iterable[torch.nn.Parameter] = ()
) -> None:
    """Shard a transformer whose adapter is attached, block by block.

    Args:
        kept: parameters that stay whole beside the adapter's: of parts that are called by themselves.

    Raises:
        DataError: when there is no transformer.
    """
    if not isinstance(transformer, torch.nn.Module):
        raise DataError("a policy of this family has no transformer to shard; use launch/ddp.yaml")
    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    adapter = {parameter for parameter in transformer.parameters() if parameter.requires_grad} | set(kept)
    again = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true") == "true"
    for unit in [*blocks(transformer), transformer]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=again, ignored_params=adapter)
    for unit in transformer.modules():
        if isinstance(unit, FSDPModule):
            # The first gathering makes the tensors that all later ones fill: not in inference mode, where rollouts run,
            # for a trained pass could not save them for its backward.
            unit.unshard()
            unit.reshard()


def blocks(transformer: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks, of whatever names the architecture gives to their lists."""
    lists = [child for child in transformer.children() if isinstance(child, torch.nn.ModuleList)]
    return [block for found in lists for block in found]
