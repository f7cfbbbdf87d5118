"""Pieces of work as a Ray Data pipeline: ``map_batches`` over a pool of actors, each of which loads its model once.

``RAY_ADDRESS`` selects the cluster; without it, a cluster is started on this machine and stopped at the end. Actors
import this project and read its files, so every node needs the environment and the project's folder at the same path.
If an actor dies, Ray starts it again and repeats its piece (``max_restarts`` and ``max_task_retries`` of Ray Data's
pools are unlimited).
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

from paco_core.io.files import DataError

P = TypeVar("P")
R = TypeVar("R")
ACTORS = "PACO_RAY_ACTORS"  # maximum number of actors; by default the capacity of the cluster
LOOPBACK = "127.0.0.1"  # address of a cluster that is started here
# Ray gives a node's helper processes 15 s to start, too few on a busy machine, and no setting changes that
# (github.com/ray-project/ray/issues/65983): a start that timed out is tried again for as long as this.
START_WITHIN_S = 300.0
MAX_BLOCKS = 512  # a block is the unit that Ray gives to an actor, and repeats if the actor dies


class _Actor:
    """One worker of the pool: pieces in, results out, both as bytes in a column."""

    def __init__(self, make: Callable[[int], Callable[[Any], Any]], actors: int, threads: int) -> None:
        # Before torch is imported: with Ray's own number of threads, sums round differently.
        os.environ.update(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", PACO_LAUNCHER="local")
        self._work = make(actors)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from ray import cloudpickle

        results = []
        for piece in batch["piece"]:
            try:
                results.append(cloudpickle.dumps(self._work(cloudpickle.loads(piece))))
            except DataError as error:  # returned, because Ray would wrap it in its own exception
                results.append(cloudpickle.dumps(error))
        return {"number": batch["number"], "result": results}


def map_pieces_on_ray(
    pieces: Sequence[P], make: Callable[[int], Callable[[P], R]], *, gpu: bool, threads: int
) -> Iterator[tuple[int, R]]:
    """See :func:`paco_core.runtime.launchers.map_pieces`."""
    with ray_session() as ray:
        from ray import cloudpickle

        actors = _actors(ray, len(pieces), gpu, threads)
        rows = [{"number": number, "piece": cloudpickle.dumps(piece)} for number, piece in enumerate(pieces)]
        results = ray.data.from_items(rows, override_num_blocks=min(len(rows), MAX_BLOCKS)).map_batches(
            _Actor,
            fn_constructor_args=(make, actors, threads),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=1),
            num_cpus=threads,
            num_gpus=1 if gpu else 0,
        )
        received: set[int] = set()
        for row in results.iter_rows():
            result = cloudpickle.loads(row["result"])
            if isinstance(result, DataError):
                raise result
            received.add(int(row["number"]))
            yield int(row["number"]), result
        if lost := len(pieces) - len(received):
            raise DataError(f"Ray returned {len(received)} of {len(pieces)} pieces of work; {lost} are lost, run again")


def _actors(ray: Any, pieces: int, gpu: bool, threads: int) -> int:
    """The number of actors: limited by the cluster, by the environment and by the number of pieces.

    Raises:
        DataError: when the cluster has no node for an actor.
    """
    resources = ray.cluster_resources()
    capacity = int(resources.get("GPU", 0)) if gpu else int(resources.get("CPU", 0)) // threads
    if capacity < 1:
        need = "a GPU, as the device in params.yaml asks" if gpu else f"{threads} processor threads (`threads`)"
        raise DataError(f"the Ray cluster has no node for a worker that needs {need}; it has {dict(resources)}")
    max_actors = os.environ.get(ACTORS, "")
    if max_actors and not (max_actors.isdigit() and int(max_actors) > 0):
        raise DataError(f"{ACTORS}={max_actors}: expected a whole number above zero")
    return min(capacity, pieces, int(max_actors) if max_actors else capacity)


@contextmanager
def ray_session(**settings: Any) -> Iterator[Any]:
    """Connect to Ray; a cluster that is started here is stopped at the end.

    Args:
        settings: of ``ray.init``, if a cluster is started here.

    Raises:
        DataError: when Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DataError(f"PACO_LAUNCHER=ray needs Ray ({error}): pip install 'paco-rl[ray]'") from None
    is_owner = not ray.is_initialized()
    if is_owner:
        previous_handler = signal.getsignal(signal.SIGTERM)
        try:
            _connect(ray, settings)
        finally:
            signal.signal(signal.SIGTERM, previous_handler)  # Ray replaced it; ours ends the MLflow run as KILLED
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    try:
        yield ray
    finally:
        if is_owner:
            ray.shutdown()


def _connect(ray: Any, settings: dict[str, Any]) -> None:
    address = os.environ.get("RAY_ADDRESS") or "local"
    arguments = {"include_dashboard": False, "_node_ip_address": LOOPBACK, **settings} if address == "local" else {}
    pythonpath = os.environ.get("PYTHONPATH")
    if address == "local":  # workers import the same modules
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        _start(ray, address, arguments)
    finally:
        if pythonpath is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = pythonpath


def _start(ray: Any, address: str, arguments: dict[str, Any]) -> None:
    deadline = time.monotonic() + (START_WITHIN_S if address == "local" else 0.0)
    while True:
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR", **arguments)
            return
        except Exception as error:  # Ray raises plain ones  # noqa: BLE001
            ray.shutdown()
            text = " ".join(str(error).split())[:300]
            if "timed out" not in text or time.monotonic() > deadline:
                raise DataError(f"no Ray cluster at {address} ({text}); RAY_ADDRESS chooses it") from None
