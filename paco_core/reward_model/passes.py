"""Efficient forward passes: only the positions that are read, and parallel passes on CPU cores."""

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
    """Runs independent passes, at most ``at_once`` at a time.

    On a CPU, two parallel passes on one core each are faster than two consecutive passes on two cores, because a layer
    of a small model is too little work to divide. A single pass also uses one core, so rounding does not depend on the
    number of passes.
    """

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self._threads = ThreadPoolExecutor(at_once, thread_name_prefix="pass") if at_once > 1 else None

    @classmethod
    def on(cls, device: torch.device) -> Passes:
        """As many parallel passes as torch has threads on a CPU, and one on other devices."""
        return cls(torch.get_num_threads() if device.type == "cpu" else 1)

    def share(self, items: int, limit: int) -> int:
        """Number of items per pass, at most ``limit``, such that each thread has equally many passes of equal size.

        Passes of the maximum size would leave threads idle at the end.
        """
        rounds = max(1, -(-items // (limit * self.at_once)))
        return max(1, -(-items // (rounds * self.at_once)))

    def run(self, function: Callable[[Batch], Result], batches: Sequence[Batch]) -> Iterator[Result]:
        """Call ``function`` for each batch, without gradients. Results are in order."""

        def run_single_threaded(batch: Batch) -> Result:
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
            yield from self._threads.map(run_single_threaded, batches)
        finally:
            torch.set_num_threads(threads)  # later threads use all cores again


class ReadPositions:
    """Hooks that restrict the last layer's MLP to the positions that are read.

    At other positions, the layer adds zero. Their states are meaningless, and nothing reads them.
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
        states = picked.new_zeros(self._here.shape)
        return states.flatten(0, 1).index_copy(0, self._here.flat, picked).view(states.shape)

    @contextmanager
    def only(self, row: torch.Tensor, position: torch.Tensor) -> Iterator[None]:
        """Context whose forward passes in this thread compute these positions only; int64 (m,), no duplicates."""
        self._here.places = row, position
        try:
            yield
        finally:
            self._here.places = None
