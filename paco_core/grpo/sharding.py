"""What a launch configuration asks to share out; and FSDP2, which shares out frozen weights, the adapter stays whole.

What is shared out is gathered block by block for each pass and dropped after it. Frozen weights have no gradients to
exchange, and those of the adapter are summed as without sharding, so the numbers do not change.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard

from paco_core.io.files import DataError


def asked_for() -> Literal["fsdp2", "zero2"] | None:
    """What the configuration of `accelerate launch` asks to share out: the frozen weights, or the optimiser.

    Raises:
        DataError: when it asks for something that this trainer does not do, or that is not installed.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        return _zero2()
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return None
    if os.environ.get("FSDP_VERSION") != "2":
        raise DataError("fsdp_version: this trainer shards by FSDP2; use launch/fsdp2.yaml")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise DataError("fsdp_offload_params: weights are not offloaded here; set it to false")
    return "fsdp2"


def _zero2() -> Literal["zero2"]:
    given = {
        name: os.environ.get(f"ACCELERATE_DEEPSPEED_{name}", "none").lower()
        for name in ("ZERO_STAGE", "OFFLOAD_OPTIMIZER_DEVICE", "OFFLOAD_PARAM_DEVICE", "CONFIG_FILE")
    }
    if given["ZERO_STAGE"] != "2":
        raise DataError(
            f"zero_stage: {given['ZERO_STAGE']} is not done here, 2 is (launch/deepspeed-zero2.yaml); frozen weights, "
            "which ZeRO-3 shares out beside, FSDP2 shares out (launch/fsdp2.yaml)"
        )
    if given["CONFIG_FILE"] != "none":
        raise DataError("deepspeed_config_file: the trainer sets what DeepSpeed needs; use launch/deepspeed-zero2.yaml")
    if not {given["OFFLOAD_OPTIMIZER_DEVICE"], given["OFFLOAD_PARAM_DEVICE"]} <= {"none"}:
        raise DataError("offload_optimizer_device, offload_param_device: nothing is offloaded here; set them to none")
    if find_spec("deepspeed") is None:
        raise DataError("DeepSpeed is not installed here: `uv pip install 'paco[deepspeed]'`, or use launch/ddp.yaml")
    return "zero2"


def share_out(policy: Any) -> None:
    """Shard the transformer of a policy whose adapter is attached, block by block.

    Raises:
        DataError: when the policy has no transformer.
    """
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
    lists = [child for child in transformer.children() if isinstance(child, torch.nn.ModuleList)]
    return [block for found in lists for block in found]
