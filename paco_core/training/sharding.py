"""Sharding: whether the configuration of `accelerate launch` requests FSDP2."""

from __future__ import annotations

import os

from paco_core.io.files import DataError


def uses_fsdp2() -> bool:
    """Whether the configuration of `accelerate launch` shards the frozen weights by FSDP2.

    Raises:
        DataError: when it requests something that this trainer does not support.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        raise DataError("distributed_type: DEEPSPEED was removed in 0.3; use launch/fsdp2.yaml or launch/ddp.yaml")
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return False
    if os.environ.get("FSDP_VERSION") != "2":
        raise DataError("fsdp_version: this trainer shards by FSDP2; use launch/fsdp2.yaml")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise DataError("fsdp_offload_params: weights are not offloaded here; set it to false")
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true":
        raise DataError(
            "fsdp_cpu_ram_efficient_loading: with it (accelerate's default), transformers leaves the weights of all "
            "processes but the first empty; set it to false, as launch/fsdp2.yaml does"
        )
    return True
