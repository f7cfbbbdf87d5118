"""The processes that train one policy or reward model together.

Work is divided into batches before it is distributed, and results are summed into their places. Therefore any number of
processes computes the same numbers. `accelerate launch` or torchrun sets the rank of each process.
"""

from __future__ import annotations

import atexit
import json
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import PartialState
from accelerate.utils import gather, pad_across_processes, reduce

from paco_core.io.files import DataError
from paco_core.runtime.launchers import rendezvous

BUCKET_BYTES = 64 << 20  # of tensors that are summed over processes together


def launched_processes() -> int:
    """Number of processes that were launched together."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def uses_fsdp2() -> bool:
    """Whether the configuration of `accelerate launch` shards the frozen weights by FSDP2.

    Raises:
        DataError: if it contains an option that this trainer does not support.
    """
    if os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        raise DataError("distributed_type: DEEPSPEED was removed in 0.3; use launch/fsdp2.yaml or launch/ddp.yaml")
    if os.environ.get("ACCELERATE_USE_FSDP") != "true":
        return False
    if os.environ.get("FSDP_VERSION") != "2":
        raise DataError("fsdp_version: this trainer shards by FSDP2; use launch/fsdp2.yaml")
    if os.environ.get("FSDP_OFFLOAD_PARAMS", "false") == "true":
        raise DataError("fsdp_offload_params: weights are not offloaded here; set it to false")
    if os.environ.get("FSDP_CPU_RAM_EFFICIENT_LOADING", "false").lower() == "true":
        raise DataError(
            "fsdp_cpu_ram_efficient_loading: with it (accelerate's default), transformers leaves the weights of all "
            "processes but the first empty; set it to false, as launch/fsdp2.yaml does"
        )
    return True


class Processes:
    """This process among ``world_size`` processes. A single process needs no process group."""

    def __init__(self, device: str = "cpu") -> None:
        self.world_size = launched_processes()
        self.rank = int(os.environ.get("RANK", "0")) if self.world_size > 1 else 0
        self.sharded = uses_fsdp2() and self.world_size > 1
        self._state: Any = None
        if self.world_size > 1:
            self._state = PartialState(cpu=device == "cpu", **rendezvous.arguments())
            atexit.register(self._state.destroy_process_group)  # its threads abort an interpreter that ends with them

    @property
    def main(self) -> bool:
        """Whether this process logs and writes."""
        return self.rank == 0

    @property
    def device(self) -> str | None:
        """The device of this process, from accelerate. None for a single process."""
        return None if self._state is None else str(self._state.device)

    def owns(self, number: int) -> bool:
        """Whether this process computes the work item with this number."""
        return number % self.world_size == self.rank

    def dummy_passes(self, numbers: Iterable[int]) -> int:
        """Number of dummy passes of this process: FSDP needs the same number of passes on each rank."""
        if not self.sharded:
            return 0
        counts = [0] * self.world_size
        for number in numbers:
            counts[number % self.world_size] += 1
        return max(counts) - counts[self.rank]

    def barrier(self) -> None:
        """Wait until every process is here."""
        if self._state is not None:
            self._state.wait_for_everyone()

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """The sum over processes, shaped like ``tensor``, in every process.

        If the other processes add zeros, the values of a process stay exact.
        """
        if self._state is None:
            return tensor
        summed: torch.Tensor = reduce(tensor.to(self._state.device), "sum").to(tensor.device)
        return summed

    def all_reduce_many(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The sum of each tensor, of any shape, over processes; all tensors have one dtype and device.

        They are sent together, at most :data:`BUCKET_BYTES` at a time: 56 small tensors take 20 times as long one by
        one.
        """
        if self._state is None:
            return list(tensors)
        buckets: list[list[torch.Tensor]] = []
        room = 0
        for tensor in tensors:
            if tensor.nbytes > room:
                buckets.append([])
                room = BUCKET_BYTES
            buckets[-1].append(tensor)
            room -= tensor.nbytes
        sums: list[torch.Tensor] = []
        for bucket in buckets:
            total = self.all_reduce(torch.cat([tensor.flatten() for tensor in bucket]))
            parts = total.split([tensor.numel() for tensor in bucket])
            sums += [part.view_as(tensor) for tensor, part in zip(bucket, parts, strict=True)]
        return sums

    def all_reduce_array(self, array: np.ndarray) -> np.ndarray:
        """:meth:`all_reduce` of a NumPy array of any shape."""
        if self._state is None:
            return array
        copy = torch.tensor(array)  # the array of an image is read-only
        summed: np.ndarray = self.all_reduce(copy).cpu().numpy()
        return summed

    def gather(self, rows: Sequence[Any]) -> list[Any]:
        """The rows of all processes, ordered by rank, in every process.

        They are sent as JSON, because accelerate's ``gather_object`` would unpickle data of another process.
        """
        if self._state is None:
            return list(rows)
        encoded = torch.frombuffer(bytearray(json.dumps(rows).encode() + b" "), dtype=torch.uint8).to(
            self._state.device
        )
        padded = pad_across_processes(encoded, pad_index=ord(" "))
        gathered = gather(padded).cpu().reshape(self.world_size, -1)
        return [row for text in gathered for row in json.loads(bytes(text.tolist()))]
