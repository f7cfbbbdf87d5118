"""The state of an optimiser as named tensors, for a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def moments_of(optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What an optimiser keeps of each parameter, by ``parameter|key``; nothing before its first step.

    Moments are shaped like their parameter, counts of steps are scalars.
    """
    # bitsandbytes counts steps in an int and shares quantisation maps; a file of tensors holds each by itself.
    return {
        f"{name}|{key}": value.clone() if key.startswith("qmap") else torch.as_tensor(value)
        for name, parameter in parameters.items()
        for key, value in optimizer.state[parameter].items()
    }


def restore_moments(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, torch.Tensor], kept: Mapping[str, torch.Tensor]
) -> None:
    """Put back what :func:`moments_of` gave, shaped like that, after the weights were put back.

    Raises:
        KeyError: when it is of a parameter that is not there.
    """
    of_torch = isinstance(optimizer, torch.optim.AdamW)
    for label, value in kept.items():
        name, _, key = label.rpartition("|")
        parameter = parameters[name]
        state = optimizer.state[parameter]
        if key == "step":
            state[key] = value.cpu() if of_torch else int(value)
        else:
            state[key] = value.to(parameter.device)
