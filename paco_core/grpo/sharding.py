"""The frozen weights of a policy, shared out among its processes by FSDP2; the adapter stays whole on each.

What is shared out is gathered block by block for each pass and dropped after it. Frozen weights have no gradients to
exchange, and those of the adapter are summed as without sharding, so the numbers do not change.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from paco_core.files import DataError

if TYPE_CHECKING:
    import torch


def is_asked_for() -> bool:
    """Whether the configuration of `accelerate launch` asks for FSDP2 (``launch/fsdp2.yaml``).

    Raises:
        DataError: when it asks for something that this trainer does not do.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        raise DataError(
            "policies are not trained through DeepSpeed: its engine would take over backward and step, where gradients "
            "are summed in fp64; launch/fsdp2.yaml shares out the frozen weights as ZeRO-3 would"
        )
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return False
    if os.environ.get("FSDP_VERSION") != "2":
        raise DataError("fsdp_version: this trainer shards by FSDP2; use launch/fsdp2.yaml")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise DataError("fsdp_offload_params: weights are not offloaded here; set it to false")
    return True


def share_out(policy: Any) -> None:
    """Shard the transformer of a policy whose adapter is attached, block by block.

    Raises:
        DataError: when the policy has no transformer.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import FSDPModule, fully_shard

    transformer = getattr(policy, "transformer", None)
    if not isinstance(transformer, torch.nn.Module):
        raise DataError(f"policies of family {policy.family} have no transformer to shard; use launch/ddp.yaml")
    mesh = init_device_mesh(torch.device(policy.device).type, (torch.distributed.get_world_size(),))
    adapter = {parameter for parameter in transformer.parameters() if parameter.requires_grad}
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
    import torch

    lists = [child for child in transformer.children() if isinstance(child, torch.nn.ModuleList)]
    return [block for found in lists for block in found]
