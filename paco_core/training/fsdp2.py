"""FSDP2: the frozen weights of a model are sharded among processes; its adapter is not.

The weights of each block are gathered for a pass and freed after it. Frozen weights have no gradients, and those of the
adapter are summed as without sharding, so results do not change.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from paco_core.io.files import DataError


def shard(
    transformer: torch.nn.Module | None, device: str | torch.device, unsharded: Iterable[torch.nn.Parameter] = ()
) -> None:
    """Shard a transformer whose adapter is attached, block by block.

    Args:
        unsharded: parameters that are not sharded, in addition to the adapter: those of parts that are called directly.

    Raises:
        DataError: if there is no transformer.
    """
    if not isinstance(transformer, torch.nn.Module):
        raise DataError("a policy of this family has no transformer to shard; use launch/ddp.yaml")
    mesh = init_device_mesh(torch.device(device).type, (torch.distributed.get_world_size(),))
    adapter = {parameter for parameter in transformer.parameters() if parameter.requires_grad} | set(unsharded)
    reshard = os.environ.get("FSDP_RESHARD_AFTER_FORWARD", "true") == "true"
    for unit in [*blocks(transformer), transformer]:
        fully_shard(unit, mesh=mesh, reshard_after_forward=reshard, ignored_params=adapter)
    for unit in transformer.modules():
        if isinstance(unit, FSDPModule):
            # The first unshard allocates the tensors for all later ones. It must not be in the inference mode of
            # rollouts, because a training pass could not save these tensors for backward.
            unit.unshard()
            unit.reshard()


def blocks(transformer: torch.nn.Module) -> list[torch.nn.Module]:
    """The repeated blocks of all module lists, independent of their names."""
    lists = [child for child in transformer.children() if isinstance(child, torch.nn.ModuleList)]
    return [block for blocks_of_list in lists for block in blocks_of_list]
