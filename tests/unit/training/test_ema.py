"""The moving average of an adapter's weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from paco_core.config import profiles
from paco_core.training.ema import Ema


def test_ema_closed_form() -> None:
    """Constant target 1 from 0: 1 - product of the decays at the steps that were due."""
    parameters = {"w": torch.zeros(3)}
    ema = Ema(parameters, decay=0.9, every=4)
    parameters["w"] = torch.ones(3)
    for _ in range(3):
        ema.update(parameters)
    assert not ema.shadow["w"].any(), "the fourth step is the first that counts"
    for _ in range(47):
        ema.update(parameters)
    left = 1.0
    for step in range(4, 51, 4):
        left *= min((1 + step) / (10 + step), 0.9)
    assert torch.allclose(ema.shadow["w"], torch.full((3,), 1.0 - left), atol=1e-6)


def test_ema_swap_restores_bit_for_bit_even_after_an_error() -> None:
    parameters = {"w": torch.randn(64)}
    ema = Ema(parameters, 0.9, 1)
    before = parameters["w"].clone()
    parameters["w"].mul_(3)
    live = parameters["w"].clone()
    with pytest.raises(KeyError), ema.applied(parameters):
        assert torch.equal(parameters["w"], before)
        raise KeyError
    assert torch.equal(parameters["w"], live)


def test_the_papers_average_lags_as_the_released_one_does(repository: Path) -> None:
    """Weights that grow by 1 a step: the released average lies 1 to 5 steps behind at each evaluation."""
    params = profiles.read(repository, "paper").policies.defaults
    parameters = {"w": torch.zeros(1)}
    ema = Ema(parameters, params.ema_decay, params.ema_every)
    lags = []
    for step in range(1, params.epochs * params.updates_per_epoch + 1):
        parameters["w"] += 1
        ema.update(parameters)
        if step % (params.eval_every * params.updates_per_epoch) == 0:
            lags.append(float(parameters["w"] - ema.shadow["w"]))
    assert len(lags) == 10 and min(lags) >= 1 and max(lags) <= 5
