"""Muon: orthogonal updates for hidden matrices, AdamW for the rest, and a state that resumes exactly."""

from __future__ import annotations

import pytest
import torch

from zoo.fitting import Muon, orthogonalised


def hidden(name: str, weight: torch.Tensor) -> bool:
    return weight.ndim == 2


@pytest.mark.parametrize("shape", [(16, 16), (8, 32), (32, 8)])
def test_all_singular_values_come_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    values = torch.linalg.svdvals(orthogonalised(matrix))
    assert values.min() > 0.5
    assert values.max() < 1.3


def problem() -> tuple[torch.nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    inputs = torch.randn(64, 6) * torch.tensor([10.0, 1, 1, 1, 0.1, 0.1])
    return torch.nn.Linear(6, 6), inputs, torch.randn(64, 6) * 0.01 + inputs @ torch.randn(6, 6)


def train(model: torch.nn.Module, optimizer: Muon, steps: int, data: tuple[torch.Tensor, torch.Tensor]) -> float:
    loss = torch.tensor(0.0)
    for _ in range(steps):
        loss = (model(data[0]) - data[1]).square().mean()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return loss.item()


def test_a_restored_state_goes_on_as_if_it_had_not_stopped() -> None:
    straight, inputs, targets = problem()
    train(straight, Muon(straight, 0.02, hidden), 6, (inputs, targets))
    first, _, _ = problem()
    optimizer = Muon(first, 0.02, hidden)
    train(first, optimizer, 3, (inputs, targets))
    second = torch.nn.Linear(6, 6)
    second.load_state_dict(first.state_dict())
    resumed = Muon(second, 0.02, hidden)
    resumed.load_state_dict(optimizer.state_dict())
    train(second, resumed, 3, (inputs, targets))
    assert all(torch.equal(a, b) for a, b in zip(straight.parameters(), second.parameters(), strict=True))
