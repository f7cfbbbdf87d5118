"""A run launcher that detects runs whose process has gone: after a power cut, or after the end of the code server.

Dagster's default launcher leaves this to the code server. If the code server dies too, such a run stays STARTED and
keeps its slots of concurrency pools. With this launcher and ``run_monitoring`` the daemon reports the run as failed.
"""

from __future__ import annotations

import socket

import dagster as dg
import psutil

# Private: what `check_run_worker_health` has to return. No public module exports it; the launchers of Dagster's own
# libraries (dagster-k8s, dagster-docker) import it from here, too.
from dagster._core.launcher import CheckRunHealthResult, WorkerStatus
from dagster._core.storage.tags import GRPC_INFO_TAG

HOST_TAG = "dvc/host"  # the machine of a run's process, see dagster_dvc.executor


class LocalRunLauncher(dg.DefaultRunLauncher):
    """``DefaultRunLauncher`` that also checks the processes of runs on this machine, for ``run_monitoring``."""

    @property
    def supports_check_run_worker_health(self) -> bool:
        return True

    def check_run_worker_health(self, run: dg.DagsterRun) -> CheckRunHealthResult:
        """FAILED if the run's process was on this machine and has gone, else RUNNING."""
        is_local = "socket" in run.tags.get(GRPC_INFO_TAG, "") or run.tags.get(HOST_TAG) == socket.gethostname()
        for entry in self._instance.all_logs(run.run_id, of_type=dg.DagsterEventType.ENGINE_EVENT) if is_local else ():
            pid = entry.get_dagster_event().engine_event_data.metadata.get("pid")
            if pid is not None:  # of the first event with one: the process of the run
                return _health(int(str(pid.value)), entry.timestamp)
        return CheckRunHealthResult(WorkerStatus.RUNNING)


def _health(pid: int, reported: float) -> CheckRunHealthResult:
    """Whether a process still runs that reported its id at a time (seconds since the epoch)."""
    try:
        process = psutil.Process(pid)
        if process.create_time() <= reported and process.status() != psutil.STATUS_ZOMBIE:
            return CheckRunHealthResult(WorkerStatus.RUNNING)
    except psutil.NoSuchProcess:
        pass
    return CheckRunHealthResult(WorkerStatus.FAILED, f"process {pid} of the run has gone")
