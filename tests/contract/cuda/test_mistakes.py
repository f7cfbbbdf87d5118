"""Each mistake that a GPU punishes is punished on the pretended one, and what a GPU takes it takes."""

from __future__ import annotations

import copy
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.pretended_cuda import pretended
from tests.support.pretended_cuda.machine import VISIBLE, uuid


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
    "one among several": (lambda: torch.cat([ones(), torch.ones(3)]), RuntimeError, MIXED),
    "a module left behind": (lambda: torch.nn.Linear(3, 2)(ones()), RuntimeError, MIXED),
    "a mask of the processor": (lambda: ones().masked_fill(torch.ones(3) > 0, 0), RuntimeError, MIXED),
    "numpy": (lambda: ones().numpy(), TypeError, "Use Tensor.cpu"),
    "numpy by another name": (lambda: np.asarray(ones()), TypeError, "Use Tensor.cpu"),
    "a generator of the processor": (
        lambda: torch.randn(3, device="cuda", generator=torch.Generator()),
        RuntimeError, "Expected a 'cuda' device type for generator but found 'cpu'",
    ),
    "in place": (
        lambda: ones().normal_(generator=torch.Generator()),
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


def test_values_and_gradients_are_those_of_the_processor_on_their_own_devices() -> None:
    torch.manual_seed(0)
    module, rows = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 1)), torch.randn(5, 4)
    moved = copy.deepcopy(module).to("cuda")
    assert copy.deepcopy(moved)[0].weight.device == moved[0].weight.device == torch.device("cuda:0")
    given = rows.clone().requires_grad_()
    result = moved(given.to("cuda"))
    assert result.device.type == "cuda" and given.device.type == "cpu"
    result.sum().backward()
    module(rows).sum().backward()
    for name, parameter in module.named_parameters():
        gradient = moved.get_parameter(name).grad
        assert gradient.device.type == "cuda" and torch.equal(gradient.cpu(), parameter.grad)
    assert given.grad is not None and given.grad.device.type == "cpu"


def test_what_a_gpu_takes_is_taken() -> None:
    a = ones()
    assert (a + torch.tensor(2.0)).device == torch.device("cuda:0"), "a number of the processor"
    assert a[torch.tensor([0, 1])].device.type == "cuda", "positions on the processor"
    assert a.cpu().numpy().tolist() == [1, 1, 1] and a.tolist() == [1, 1, 1] and a.sum().item() == 3
    target = torch.zeros(3)
    target.copy_(a)
    assert target.device.type == "cpu" and target.tolist() == [1, 1, 1]
    assert torch.randn(3, device="cuda", generator=torch.Generator("cuda").manual_seed(1)).device.type == "cuda"
    with torch.autocast("cuda", torch.bfloat16):
        assert (a[None] @ a[:, None]).dtype == torch.bfloat16 and torch.is_autocast_enabled("cuda")


@pytest.mark.parametrize("inference", [True, False])
def test_what_is_made_of_values_lies_on_the_gpu_in_every_thread_and_mode(inference: bool) -> None:
    found: list[torch.device] = []

    def make() -> None:
        with torch.inference_mode(inference):
            for made in (
                torch.tensor([1.0], device="cuda"),
                torch.as_tensor([1], device="cuda"),
                ones().new_tensor([1]),
            ):
                found.append((made * 2).device)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    make()
    assert found == [torch.device("cuda:0")] * 6
    leaf = torch.tensor([1.0], device="cuda", requires_grad=True)
    assert torch.as_tensor(leaf) is leaf and leaf.is_leaf and leaf.requires_grad


def test_within_a_device_everything_is_made_on_it() -> None:
    with torch.device("cuda"):
        made = [torch.tensor([1.0]), torch.as_tensor([1]), torch.zeros(1), torch.randn(1), torch.nn.Linear(1, 1).weight]
        assert torch.tensor([1.0], device="cpu").device.type == "cpu"
    assert [one.device for one in made] == [torch.device("cuda:0")] * 5


def test_a_gpu_has_random_numbers_of_its_own() -> None:
    torch.cuda.manual_seed_all(3)
    state, processor = torch.cuda.get_rng_state(), torch.get_rng_state()
    first = torch.rand(4, device="cuda")
    assert torch.equal(torch.get_rng_state(), processor), "the processor's go on where they were"
    assert not torch.equal(torch.rand(4, device="cuda").cpu(), first.cpu())
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand(4, device="cuda").cpu(), first.cpu())


def test_the_visible_gpus_are_read_at_the_first_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, uuid(1))
    assert torch.cuda.device_count() == 1 and torch.zeros(1, device="cuda").device == torch.device("cuda:0")
    monkeypatch.setenv(VISIBLE, uuid(0))
    with pytest.raises(RuntimeError, match=f"{VISIBLE} became .* after CUDA's first use"):
        torch.zeros(1, device="cuda")


def test_without_a_visible_gpu_there_is_no_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VISIBLE, "")
    assert not torch.cuda.is_available() and torch.cuda.device_count() == 0
    with pytest.raises(RuntimeError, match="No CUDA GPUs are available"):
        ones()


def test_each_thread_has_a_current_gpu() -> None:
    torch.cuda.set_device(1)
    found: list[torch.device] = []
    thread = threading.Thread(target=lambda: found.append((ones() * 2).device))
    thread.start()
    thread.join()
    with torch.cuda.device(0):
        inside = ones().device
    assert found == [torch.device("cuda:0")] == [inside] and ones().device == torch.device("cuda:1")
    torch.cuda.set_device(0)


@pytest.mark.parametrize("used", [True, False])
def test_a_fork_after_the_first_use_has_no_cuda(used: bool) -> None:
    if used:
        ones()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            ones()
            os.write(write, b"fine")
        except RuntimeError as error:
            os.write(write, str(error).encode())
        os._exit(0)
    os.waitpid(child, 0)
    answer = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    assert answer.startswith("Cannot re-initialize CUDA in forked subprocess") if used else answer == "fine"


def test_memory_is_counted_and_given_back() -> None:
    before = torch.cuda.memory_allocated()
    held = torch.zeros(1000, device="cuda")
    assert torch.cuda.memory_allocated() - before == 4000
    free, whole = torch.cuda.mem_get_info()
    assert free == whole - torch.cuda.memory_allocated()
    del held
    assert torch.cuda.memory_allocated() == before
