"""Memory of a GPU that PyTorch keeps for tensors to come."""

from __future__ import annotations

import gc

import torch


def give_back(device: str) -> None:
    """Give what freed tensors took back to the GPU, where other processes and larger tensors find it in one piece."""
    if device.startswith("cuda"):
        gc.collect()  # models refer to themselves
        torch.cuda.empty_cache()
