"""A training of the zoo that was stopped anywhere ends with the weights of one that was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from zoo.fitting import CHECKPOINT, Muon, Schedule, fit

SCHEDULE = Schedule(steps=10, learning_rate=0.05, warmup=2, checkpoint_every=3)
Optimizer = Callable[[nn.Module], torch.optim.Optimizer | None]


class Killed(Exception):
    pass


def train(
    folder: Path, optimizer: Optimizer, *, stop: int | None = None, stop_after: int | None = None
) -> tuple[nn.Module, list[int], list[int]]:
    """The model, its steps, and where ``after`` was called; it is stopped in a step, or in a call of ``after``."""
    torch.manual_seed(0)
    model, steps, saved_steps = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1)), list[int](), list[int]()

    def loss_at(step: int) -> torch.Tensor:
        steps.append(step)
        if step == stop:
            raise Killed
        batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(step))
        return (model(batch) - batch.prod(dim=1, keepdim=True)).square().mean()

    def after(step: int) -> None:
        saved_steps.append(step)
        if step == stop_after:
            raise Killed

    try:
        fit(model, loss_at, SCHEDULE, folder, "toy", None, after, optimizer(model))
    except Killed:
        assert stop is not None or stop_after is not None
    return model, steps, saved_steps


@pytest.mark.parametrize(
    "optimizer", [lambda _model: None, lambda model: Muon(model, 0.05, lambda _name, weight: weight.ndim == 2)]
)
def test_a_stopped_training_ends_as_one_that_was_not(tmp_path: Path, optimizer: Optimizer) -> None:
    uninterrupted, steps, saved_steps = train(tmp_path / "whole", optimizer)
    assert steps == list(range(10)) and saved_steps == [3, 6, 9, 10]
    stopped, first, _ = train(tmp_path / "stopped", optimizer, stop=7)
    assert first == list(range(8)) and not torch.equal(stopped[0].weight, uninterrupted[0].weight)
    resumed, remaining_steps, saved_steps = train(tmp_path / "stopped", optimizer)
    assert remaining_steps == [6, 7, 8, 9] and saved_steps == [9, 10]
    for a, b in zip(uninterrupted.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(a, b)


def test_who_was_killed_after_the_last_step_still_exports(tmp_path: Path) -> None:
    """Else an export of an earlier checkpoint would stand for the whole training."""
    train(tmp_path, lambda _model: None, stop_after=10)
    _, steps, saved_steps = train(tmp_path, lambda _model: None)
    assert steps == [] and saved_steps == [10]


def test_a_checkpoint_is_one_file_and_a_kill_in_it_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train(tmp_path, lambda _model: None, stop=4)
    assert [path.name for path in tmp_path.iterdir()] == [CHECKPOINT]
    before = (tmp_path / CHECKPOINT).read_bytes()

    def cut(_tensors: object, path: Path, _metadata: object) -> None:
        Path(path).write_bytes(before[:100])
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr("zoo.fitting.save_file", cut)
        train(tmp_path, lambda _model: None, stop=-1)
    assert (tmp_path / CHECKPOINT).read_bytes() == before
    _, steps, _ = train(tmp_path, lambda _model: None)
    assert steps == list(range(3, 10))
