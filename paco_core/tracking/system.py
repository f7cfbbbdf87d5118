"""How busy the machine is while a run goes on, under the names that MLflow's own monitor uses.

MLflow's monitor writes to the server itself and ends with the first request that fails; these samples go
the way of all other figures, so that an outage loses none. ``MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING=false``
switches them off, ``MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL`` says how many seconds lie between two.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from typing import Any

INTERVAL_S = 10.0

Tell = Callable[[Mapping[str, float], int], None]


def is_wanted() -> bool:
    return os.environ.get("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true").lower() in ("true", "1")


class SystemMetrics:
    """Samples CPU, memory, disk, network and, where there is one, GPU; one sample at least, at the end."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._interval = float(os.environ.get("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL") or INTERVAL_S)
        self._stop = threading.Event()
        self._step = 0
        self._monitors = _monitors()
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
        found: dict[str, float] = {}
        for monitor in self._monitors:
            monitor.collect_metrics()
            found |= {f"system/{name}": float(value) for name, value in monitor.aggregate_metrics().items()}
            monitor.clear_metrics()
        self._tell(found, self._step)
        self._step += 1


def _monitors() -> list[Any]:
    from mlflow.system_metrics.metrics.cpu_monitor import CPUMonitor
    from mlflow.system_metrics.metrics.disk_monitor import DiskMonitor
    from mlflow.system_metrics.metrics.network_monitor import NetworkMonitor

    found: list[Any] = [CPUMonitor(), DiskMonitor(), NetworkMonitor()]
    try:
        from mlflow.system_metrics.metrics.gpu_monitor import GPUMonitor

        found.append(GPUMonitor())
    except Exception:  # no NVIDIA driver, or no nvidia-ml-py to ask it
        return found
    return found
