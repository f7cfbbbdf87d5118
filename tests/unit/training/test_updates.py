"""The optimiser of an adapter, whole on a process: what a checkpoint keeps of it is all that its steps depend on."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paco_core.training import optimizers
from paco_core.training.checkpoint import Checkpoint, load_latest_checkpoint, save_checkpoint
from paco_core.training.optimizers import NotFinite
from paco_core.training.processes import Processes
from paco_core.training.updates import Updates
from tests.support.grpo_toys import recipe


def updates(optimizer: str, weights: dict[str, torch.Tensor]) -> Updates:
    parameters = {name: torch.nn.Parameter(value.clone()) for name, value in weights.items()}
    params = recipe(optimizer=optimizer)
    built = optimizers.build_optimizer(parameters.values(), params)
    return Updates(parameters, built, params.max_grad_norm, Processes())


def step(of: Updates, seed: int) -> float:
    """An update of two passes, with gradients drawn from ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    of.begin(single_pass=False)
    for _ in range(2):
        of.backward(sum((p * torch.randn(p.shape, generator=generator)).sum() for p in of.parameters.values()))
    of.finish()
    return of.step()


@pytest.mark.parametrize("optimizer", ["adamw", "adamw_8bit"])
def test_an_optimiser_goes_on_from_a_checkpoint_bit_for_bit(tmp_path: Path, optimizer: str) -> None:
    if optimizer == "adamw_8bit":
        pytest.importorskip("bitsandbytes", reason="needs bitsandbytes: uv pip install 'paco-rl[eight-bit]'")
    begun = {"large": torch.ones(64, 128), "other": torch.ones(64, 64), "small": torch.ones(8)}  # 8 bit from 4096 on
    first = updates(optimizer, begun)
    assert all(step(first, seed) > 0 for seed in (1, 2))
    save_checkpoint(tmp_path, Checkpoint("a recipe", 1, first.moments(), {}))
    saved = load_latest_checkpoint(tmp_path, "a recipe", 9)
    assert saved is not None and {key.split("|")[0] for key in saved.tensors} == set(begun)
    second = updates(optimizer, {name: p.detach() for name, p in first.parameters.items()})
    second.restore(saved.tensors)
    afresh = updates(optimizer, {name: p.detach() for name, p in first.parameters.items()})
    for run in (first, second, afresh):
        step(run, 3)
    for name, parameter in first.parameters.items():
        assert torch.equal(parameter, second.parameters[name]), name
        assert not torch.equal(parameter, afresh.parameters[name]), f"{name}: moments matter"


def test_gradients_are_summed_over_passes_and_clipped() -> None:
    of = updates("adamw", {"a": torch.zeros(4)})
    of.begin(single_pass=False)
    for scale in (1.0, 2.0):
        of.backward((of.parameters["a"] * scale).sum())
    of.backward((of.parameters["a"] * 99.0).sum(), counts=False)
    of.finish()
    assert torch.equal(of.parameters["a"].grad, torch.full((4,), 3.0))
    assert of.step() == pytest.approx(6.0) and of.parameters["a"].grad.norm() == pytest.approx(1.0)


def test_a_gradient_that_is_not_finite_moves_nothing() -> None:
    of = updates("adamw", {"a": torch.ones(4)})
    of.begin(single_pass=True)
    of.backward((of.parameters["a"] * torch.nan).sum())
    of.finish()
    with pytest.raises(NotFinite, match="norm is nan; the last checkpoint is good"):
        of.step()
    assert torch.equal(of.parameters["a"], torch.ones(4))
