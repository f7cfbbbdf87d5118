"""Pieces of work as a Ray Data pipeline: ``map_batches`` over a pool of actors, each of which loads its model once.

``RAY_ADDRESS`` names the cluster; without it one is started on this machine and stopped at the end. Actors import
this project and read its files, so every node needs the environment and the project's folder at the same path.
Ray starts an actor that died again, and gives it its piece again (``max_restarts`` and ``max_task_retries`` of
Ray Data's pools are unlimited): a kill costs time.
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
ACTORS = "PACO_RAY_ACTORS"  # how many at most; by default as many as the cluster has room for
LOOPBACK = "127.0.0.1"  # a cluster of our own listens to nobody else
# Ray gives a node's helper processes 15 s to start, too few on a busy machine, and no setting changes that
# (github.com/ray-project/ray/issues/65983): a start that timed out is tried again for as long as this.
START_WITHIN_S = 300.0
MOST_BLOCKS = 512  # a block is what Ray hands to an actor at once, and does again when it dies


class _Actor:
    """One worker of the pool: pieces in, results out, both as bytes in a column."""

    def __init__(self, make: Callable[[int], Callable[[Any], Any]], actors: int, threads: int) -> None:
        # Before torch is imported: Ray's own choice would make sums round differently than they do here.
        os.environ.update(OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", PACO_LAUNCHER="local")
        self._work = make(actors)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        from ray import cloudpickle

        made = []
        for piece in batch["piece"]:
            try:
                made.append(cloudpickle.dumps(self._work(cloudpickle.loads(piece))))
            except DataError as error:  # ours: it goes home as it is, not inside Ray's own
                made.append(cloudpickle.dumps(error))
        return {"number": batch["number"], "made": made}


def spread(
    pieces: Sequence[P], make: Callable[[int], Callable[[P], R]], *, gpu: bool, threads: int
) -> Iterator[tuple[int, R]]:
    """See :func:`paco_core.runtime.launchers.spread`."""
    with connected() as ray:
        from ray import cloudpickle

        actors = _actors(ray, len(pieces), gpu, threads)
        rows = [{"number": number, "piece": cloudpickle.dumps(piece)} for number, piece in enumerate(pieces)]
        results = ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS)).map_batches(
            _Actor,
            fn_constructor_args=(make, actors, threads),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=actors, max_tasks_in_flight_per_actor=1),
            num_cpus=threads,
            num_gpus=1 if gpu else 0,
        )
        seen: set[int] = set()
        for row in results.iter_rows():
            made = cloudpickle.loads(row["made"])
            if isinstance(made, DataError):
                raise made
            seen.add(int(row["number"]))
            yield int(row["number"]), made
        if lost := len(pieces) - len(seen):
            raise DataError(f"Ray returned {len(seen)} of {len(pieces)} pieces of work; {lost} are lost, run again")


def _actors(ray: Any, pieces: int, gpu: bool, threads: int) -> int:
    """As many as the cluster has room for, the environment allows and there is work for.

    Raises:
        DataError: when the cluster has room for none.
    """
    has = ray.cluster_resources()
    room = int(has.get("GPU", 0)) if gpu else int(has.get("CPU", 0)) // threads
    if room < 1:
        need = "a GPU, as the device in params.yaml asks" if gpu else f"{threads} processor threads (`threads`)"
        raise DataError(f"the Ray cluster has no node for a worker that needs {need}; it has {dict(has)}")
    given = os.environ.get(ACTORS, "")
    if given and not (given.isdigit() and int(given) > 0):
        raise DataError(f"{ACTORS}={given}: expected a whole number above zero")
    return min(room, pieces, int(given) if given else room)


@contextmanager
def connected(**here: Any) -> Iterator[Any]:
    """Ray, connected; what was started here (with ``here`` as settings) is stopped again.

    Raises:
        DataError: where Ray is not installed, or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.data
    except ImportError as error:
        raise DataError(f"PACO_LAUNCHER=ray needs Ray ({error}): pip install 'paco-rl[ray]'") from None
    ours = not ray.is_initialized()
    if ours:
        stopping = signal.getsignal(signal.SIGTERM)
        try:
            _connect(ray, here)
        finally:
            signal.signal(signal.SIGTERM, stopping)  # Ray puts its own in place; ours ends the MLflow run KILLED
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)
    try:
        yield ray
    finally:
        if ours:
            ray.shutdown()


def _connect(ray: Any, here: dict[str, Any]) -> None:
    address = os.environ.get("RAY_ADDRESS") or "local"
    given = {"include_dashboard": False, "_node_ip_address": LOOPBACK, **here} if address == "local" else {}
    known = os.environ.get("PYTHONPATH")
    if address == "local":  # workers find what this process finds
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    try:
        _start(ray, address, given)
    finally:
        if known is None:
            os.environ.pop("PYTHONPATH", None)
        else:
            os.environ["PYTHONPATH"] = known


def _start(ray: Any, address: str, given: dict[str, Any]) -> None:
    deadline = time.monotonic() + (START_WITHIN_S if address == "local" else 0.0)
    while True:
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR", **given)
            return
        except Exception as error:  # Ray raises plain ones
            ray.shutdown()
            text = " ".join(str(error).split())[:300]
            if "timed out" not in text or time.monotonic() > deadline:
                raise DataError(f"no Ray cluster at {address} ({text}); RAY_ADDRESS chooses it") from None
