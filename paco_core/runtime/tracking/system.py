"""How busy the machine is while a run goes on, under the names that MLflow's own monitor uses.

MLflow's monitor writes to the server itself and ends with the first request that fails, and importing it imports all
of MLflow; these samples go the way of all other figures, so that an outage loses none.
``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false`` switches them off, ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL`` says
how many seconds lie between two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

INTERVAL_S = 10.0

LogMetrics = Callable[[Mapping[str, float], int], None]


def is_wanted() -> bool:
    return os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("true", "1")


class SystemMetrics:
    """Samples CPU, memory, disk, network and, where there is one, GPU; one sample at least, at the end."""

    def __init__(self, log: LogMetrics) -> None:
        self._log = log
        self._interval = float(os.environ.get("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL") or INTERVAL_S)
        self._stop = threading.Event()
        self._step = 0
        self._machine, self._gpus = MachineLoad(), gpus()
        self._thread = threading.Thread(target=self._run, name="system-metrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(self._interval)

    def _run(self) -> None:
        while True:
            last = self._stop.wait(self._interval)
            self._sample()
            if last:
                return

    def _sample(self) -> None:
        found = self._machine.sample()
        for number, gpu in enumerate(self._gpus):
            found |= {f"gpu_{number}_{name}": value for name, value in gpu().items()}
        self._log({f"system/{name}": round(value, 3) for name, value in found.items()}, self._step)
        self._step += 1


class MachineLoad:
    """Processor (since the last sample), memory, the disk of ``/``, and network since this was made; in 10⁶ bytes."""

    def __init__(self) -> None:
        import psutil

        self._psutil = psutil
        psutil.cpu_percent()  # the first call has nothing to compare with
        self._before = psutil.net_io_counters()

    def sample(self) -> dict[str, float]:
        memory, disk = self._psutil.virtual_memory(), self._psutil.disk_usage(os.sep)
        found = {
            "cpu_utilization_percentage": self._psutil.cpu_percent(),
            "system_memory_usage_megabytes": memory.used / 1e6,
            "system_memory_usage_percentage": memory.used / memory.total * 100,
            "disk_usage_percentage": disk.percent,
            "disk_usage_megabytes": disk.used / 1e6,
            "disk_available_megabytes": disk.free / 1e6,
        }
        network = self._psutil.net_io_counters()
        if network is not None and self._before is not None:  # None without any network device
            found["network_receive_megabytes"] = (network.bytes_recv - self._before.bytes_recv) / 1e6
            found["network_transmit_megabytes"] = (network.bytes_sent - self._before.bytes_sent) / 1e6
        return found


def gpus() -> list[Callable[[], dict[str, float]]]:
    """A sampler for each NVIDIA GPU; none without a driver, or without ``nvidia-ml-py`` to ask it."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return []

    def sampler(handle: Any) -> dict[str, float]:
        found: dict[str, float] = {}
        with suppress(pynvml.NVMLError):  # what a GPU does not report is left out
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            found["memory_usage_percentage"] = memory.used / memory.total * 100
            found["memory_usage_megabytes"] = memory.used / 1e6
        with suppress(pynvml.NVMLError):
            found["utilization_percentage"] = pynvml.nvmlDeviceGetUtilizationRates(handle).gpu
        with suppress(pynvml.NVMLError):
            watts, most = pynvml.nvmlDeviceGetPowerUsage(handle), pynvml.nvmlDeviceGetEnforcedPowerLimit(handle)
            found["power_usage_watts"], found["power_usage_percentage"] = watts / 1000, watts / most * 100
        return found

    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    return [partial(sampler, handle) for handle in handles]
