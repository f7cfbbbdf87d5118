"""ZeRO-2 by DeepSpeed, through accelerate: gradients and moments of the adapter shared out among the processes.

The engine reduces gradients during backward, each to the process that owns its part, clips by the norm of all parts,
steps its part and gathers the new weights. Sums are DeepSpeed's own, in fp32. Checkpoints hold the moments whole and as
safetensors, like those of any other run, so that a run goes on with another number of processes, or without DeepSpeed.
"""

from __future__ import annotations

import torch
from accelerate import Accelerator, DeepSpeedPlugin

from paco_core.io.files import DataError
from paco_core.training.optimizers import NotFinite

MOMENTS = ("exp_avg", "exp_avg_sq")
#: Values that are reduced together. DeepSpeed's own 5e8 would hold 2 GB ready, more than a whole adapter has.
BUCKET = 50_000_000


class SharedUpdates:
    """A DeepSpeed engine around a module; ``parameters`` are its trainable ones.

    Raises:
        DataError: when there is no module, or the optimiser has moments that DeepSpeed cannot share out.
    """

    def __init__(
        self,
        module: torch.nn.Module | None,
        parameters: dict[str, torch.nn.Parameter],
        optimizer: torch.optim.Optimizer,
        max_grad_norm: float,
        world: int,
    ) -> None:
        if not isinstance(module, torch.nn.Module):
            raise DataError("a policy of this family has no transformer to shard; use launch/ddp.yaml")
        if not isinstance(optimizer, torch.optim.AdamW):
            kind = type(optimizer).__name__
            raise DataError(f"{kind} cannot be sharded by ZeRO-2; choose policies.defaults.optimizer: adamw")
        plugin = DeepSpeedPlugin(gradient_accumulation_steps=1, gradient_clipping=max_grad_norm)
        config = plugin.deepspeed_config
        config["train_micro_batch_size_per_gpu"] = 1  # DeepSpeed asks for a number, and uses it in its own log alone
        config["zero_optimization"] |= {"reduce_bucket_size": BUCKET, "allgather_bucket_size": BUCKET}
        accelerator = Accelerator(mixed_precision="no", deepspeed_plugin=plugin)
        self.engine, _ = accelerator.prepare(module, optimizer)
        self.parameters, self.world, self.passes = parameters, world, 0

    @property
    def module(self) -> torch.nn.Module:
        """The engine, whose forward announces to the optimiser that a backward will come."""
        engine: torch.nn.Module = self.engine
        return engine

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """AdamW, which holds one flat tensor: this process's part of all parameters."""
        found: torch.optim.Optimizer = self.engine.optimizer.optimizer
        return found

    def begin(self, passes: int, *, alone: bool) -> None:  # noqa: ARG002
        self.passes = passes

    def backward(self, loss: torch.Tensor, *, counts: bool = True) -> None:
        self.passes -= 1
        self.engine.set_gradient_accumulation_boundary(self.passes == 0)
        # The engine takes the mean over processes where a sum is asked for.
        self.engine.backward(loss * (self.world if counts else 0))

    def finish(self) -> None:
        """Nothing is left to do: the last backward did it."""

    def step(self) -> float:
        self.engine.step()
        norm = float(self.engine.get_global_grad_norm())
        if not self.engine.was_step_applied():
            raise NotFinite(norm)
        return norm

    def moments(self) -> dict[str, torch.Tensor]:
        from deepspeed.utils import safe_get_full_optimizer_state

        found: dict[str, torch.Tensor] = {}
        for state in self.optimizer.state.values():  # one flat tensor's; none before the first step
            for name, parameter in self.parameters.items():
                found |= {f"{name}|{key}": safe_get_full_optimizer_state(parameter, key) for key in MOMENTS}
                found[f"{name}|step"] = state["step"].clone()
        return found

    def restore(self, moments: dict[str, torch.Tensor]) -> None:
        from deepspeed.utils import lazy_init_hp_params_optimizer_state, safe_set_full_optimizer_state

        self.engine.optimizer.refresh_fp32_params()
        if not moments:
            return
        (flat,) = self.optimizer.param_groups[0]["params"]
        step = next(value for key, value in moments.items() if key.endswith("|step"))
        self.optimizer.state[flat] = {"step": step.clone(), **{key: torch.zeros_like(flat) for key in MOMENTS}}
        lazy_init_hp_params_optimizer_state(list(self.parameters.values()), flat, self.optimizer.state)
        for name, parameter in self.parameters.items():
            for key in MOMENTS:
                safe_set_full_optimizer_state(parameter, moments[f"{name}|{key}"].to(flat.device), key)
