"""Each mistake that a GPU punishes is punished on the pretended one, and what a GPU takes it takes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support import forked
from tests.support.pretended_cuda import pretended
from tests.support.pretended_cuda.machine import VISIBLE

pytestmark = pytest.mark.thorough


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv(VISIBLE, raising=False)
    with pretended(gpus=2):
        yield


def ones(device: str = "cuda", **settings: Any) -> torch.Tensor:
    return torch.ones(3, device=device, **settings)


MIXED = "Expected all tensors to be on the same device"
MISTAKES: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "a tensor of the processor": (lambda: ones() + torch.ones(3), RuntimeError, MIXED),
    "one of another GPU": (lambda: ones("cuda:0") * ones("cuda:1"), RuntimeError, MIXED),
    "a mask of the processor": (lambda: ones().masked_fill(torch.ones(3) > 0, 0), RuntimeError, MIXED),
    "numpy": (lambda: np.asarray(ones()), TypeError, "Use Tensor.cpu"),
    "a generator of the processor": (
        lambda: torch.randn(3, device="cuda", generator=torch.Generator()),
        RuntimeError, "Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "a generator of the GPU": (
        lambda: torch.randn(3, generator=torch.Generator("cuda")),
        RuntimeError, "Expected a 'cpu' device type for generator but found 'cuda'",
    ),
    "no such GPU": (lambda: ones("cuda:2"), RuntimeError, "invalid device ordinal"),
    "a copy of a model without contents": (
        lambda: torch.nn.Linear(3, 2, device="meta").to("cuda"), NotImplementedError, "Cannot copy out of meta",
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_raises(mistake: str) -> None:
    call, error, words = MISTAKES[mistake]
    with pytest.raises(error, match=words):
        call()


def test_what_is_made_in_inference_mode_cannot_be_trained_through() -> None:
    """A copy to the device is a copy: on a processor ``to`` gives back the buffer itself."""
    buffer, weight = torch.ones(3), ones(requires_grad=True)
    with torch.inference_mode():
        cached = buffer.to("cuda")
    assert cached.is_inference() and not buffer.is_inference()
    with pytest.raises(RuntimeError, match="Inference tensors cannot be saved for backward"):
        (cached * weight).sum()
    with torch.no_grad():
        cached = buffer.to("cuda")
    (cached * weight).sum().backward()


def test_what_a_gpu_takes_is_taken() -> None:
    row = ones(requires_grad=True)
    (row * torch.tensor(2.0)).sum().backward()  # a number of the processor
    assert row.grad is not None and row.grad.is_cuda and row.grad.tolist() == [2, 2, 2]
    assert copy.deepcopy(row).is_cuda and row[torch.tensor([0, 1])].is_cuda  # positions on the processor
    target = torch.zeros(3)
    target.copy_(row.detach())
    assert not target.is_cuda and target.numpy().tolist() == [1, 1, 1]
    with torch.autocast("cuda", torch.bfloat16):
        assert (row[None] @ row[:, None]).dtype == torch.bfloat16 and torch.is_autocast_enabled("cuda")


def test_a_gpu_has_random_numbers_of_its_own() -> None:
    torch.cuda.manual_seed_all(3)
    state, processor = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = torch.rand(4, device="cuda")
    assert torch.equal(torch.get_rng_state(), processor), "the processor's go on where they were"
    assert not torch.equal(torch.rand(4, device="cuda").cpu(), first.cpu())
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda").cpu(), first.cpu())


def test_a_fork_after_the_first_use_has_no_cuda(tmp_path: Path) -> None:
    assert forked.run(ones, tmp_path).code == 0
    ones()
    assert "Cannot re-initialize CUDA in forked subprocess" in forked.run(ones, tmp_path).text
