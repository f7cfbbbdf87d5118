"""What the configuration of `accelerate launch` asks to share out among the processes of a training."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import Literal

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
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true":
        raise DataError(
            "fsdp_cpu_ram_efficient_loading: with it (accelerate's default), transformers leaves the weights of all "
            "processes but the first empty; set it to false, as launch/fsdp2.yaml does"
        )
    return "fsdp2"


def _zero2() -> Literal["zero2"]:
    given = {
        name: os.environ.get(f"ACCELERATE_DEEPSPEED_{name}", "none").lower()
        for name in ("ZERO_STAGE", "OFFLOAD_OPTIMIZER_DEVICE", "OFFLOAD_PARAM_DEVICE", "CONFIG_FILE")
    }
    if given["ZERO_STAGE"] != "2":
        raise DataError(
            f"zero_stage: {given['ZERO_STAGE']} is not supported, 2 is (launch/deepspeed-zero2.yaml); to shard "
            "frozen weights as ZeRO-3 does, use FSDP2 (launch/fsdp2.yaml)"
        )
    if given["CONFIG_FILE"] != "none":
        raise DataError("deepspeed_config_file: the trainer sets what DeepSpeed needs; use launch/deepspeed-zero2.yaml")
    if not {given["OFFLOAD_OPTIMIZER_DEVICE"], given["OFFLOAD_PARAM_DEVICE"]} <= {"none"}:
        raise DataError("offload_optimizer_device, offload_param_device: nothing is offloaded here; set them to none")
    if find_spec("deepspeed") is None:
        raise DataError(
            "DeepSpeed is not installed here: `uv pip install 'paco-rl[deepspeed]'`, or use launch/ddp.yaml"
        )
    return "zero2"
