"""Forward passes without waste: what nobody reads is not computed, and independent passes share a processor's cores."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

Batch = TypeVar("Batch")
Result = TypeVar("Result")


class Passes:
    """Runs passes that do not depend on one another, ``at_once`` of them at a time.

    On a processor, two passes side by side on a core each end sooner than one after the other on two cores:
    a layer of a small model is too little work to be worth cutting up and waiting for. A lone pass takes one core,
    too: how many threads share a sum must not depend on what else there is to do.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="pass") if at_once > 1 else None

    @classmethod
    def on(cls, device: torch.device) -> Passes:
        """As many as torch has threads on a processor; one at a time elsewhere."""
        return cls(torch.get_num_threads() if device.type == "cpu" else 1)

    def share(self, items: int, limit: int) -> int:
        """Items of one pass, ``limit`` at most, for all of them to be shared out evenly: as many passes for each
        thread, of one size. Passes of the largest size would leave one thread waiting for the other at the end."""
        rounds = max(1, -(-items // (limit * self.at_once)))
        return max(1, -(-items // (rounds * self.at_once)))

    def run(self, function: Callable[[Batch], Result], batches: Sequence[Batch]) -> Iterator[Result]:
        """What ``function`` gives for each batch, in order, without gradients."""

        def one(batch: Batch) -> Result:
            torch.set_num_threads(1)
            with torch.no_grad():
                return function(batch)

        if self._threads is None:
            for batch in batches:
                with torch.no_grad():
                    result = function(batch)
                yield result
            return
        threads = torch.get_num_threads()
        try:
            yield from self._threads.map(one, batches)
        finally:
            torch.set_num_threads(threads)  # threads to come use all of them again


class ReadPositions:
    """Lets the last layer's MLP see only the positions that are read; hooks, so the model stays as it is.

    To the other positions, which nothing reads after the last layer, the layer adds zero: their states are meaningless.
    """

    def __init__(self, mlp: torch.nn.Module) -> None:
        self._here = threading.local()
        mlp.register_forward_pre_hook(self._pick)
        mlp.register_forward_hook(self._place)

    def _pick(self, _module: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
        places = getattr(self._here, "places", None)
        if places is None:
            return None
        (states,) = inputs
        row, position = places
        self._here.shape, self._here.flat = states.shape, row * states.shape[1] + position
        return (states.flatten(0, 1).index_select(0, self._here.flat),)

    def _place(self, _module: Any, _inputs: Any, picked: torch.Tensor) -> torch.Tensor | None:
        if getattr(self._here, "places", None) is None:
            return None
        whole = picked.new_zeros(self._here.shape)
        return whole.flatten(0, 1).index_copy(0, self._here.flat, picked).view(whole.shape)

    @contextmanager
    def only(self, row: torch.Tensor, position: torch.Tensor) -> Iterator[None]:
        """Within, forwards of this thread are read at these places only; int64 (m,) each, no place twice."""
        self._here.places = row, position
        try:
            yield
        finally:
            self._here.places = None
