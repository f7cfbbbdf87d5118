"""Grids, questions and scores on a Ray cluster of two workers: the bytes of a local run, also when one is killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from paco_core.data.grids import grids
from paco_core.data.grids.grids import generate_grids_on_workers
from paco_core.data.grids.text_to_image import TextToImage
from paco_core.data.llm.openai_chat import Chat, query_all
from paco_core.io.files import DataError, folder_digest
from paco_core.runtime import launchers
from paco_core.runtime.launchers import ray_data
from tests.support.annotation_world import make_world
from tests.support.chat_server import ChatServer, Raw, completion
from tests.support.dataset_world import records
from tests.support.launcher_workers import Square, halting, halting_question
from tests.support.tiny import tiny_flux
from tests.unit.data.test_annotation_judge import colours, run, similarity
from tests.unit.data.test_grids import params

pytestmark = pytest.mark.slow

ray = pytest.importorskip("ray", reason="PACO_LAUNCHER=ray needs the extra paco-rl[ray]")
DEADLINE_S = 240.0


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A local cluster with room for two workers, shared by the tests of this file."""
    with ray_data.ray_session(num_cpus=2, object_store_memory=80_000_000):
        yield


@pytest.fixture
def on_ray(cluster: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launchers.VARIABLE, "ray")


@contextmanager
def killed(folder: Path) -> Iterator[list[int]]:
    """SIGKILL for the worker that writes down in ``folder`` that it is stuck; who was killed."""
    victims: list[int] = []
    over = threading.Event()

    def kill() -> None:
        end = time.monotonic() + DEADLINE_S
        while not over.is_set() and time.monotonic() < end:
            if (folder / "stuck").is_file():
                victims.append(int((folder / "stuck").read_text()))
                os.kill(victims[0], signal.SIGKILL)
                return
            time.sleep(0.05)

    folder.mkdir()
    watch = threading.Thread(target=kill)
    watch.start()
    try:
        yield victims
    finally:
        over.set()
        watch.join()


def test_pieces_come_back_whole_and_our_errors_as_they_are(on_ray: None) -> None:
    results = dict(launchers.map_pieces(range(6), Square))
    assert {number: square for number, (square, _) in results.items()} == {n: n * n for n in range(6)}
    assert os.getpid() not in {process for _, process in results.values()}
    with pytest.raises(DataError, match=r"^-1: below zero$"):
        list(launchers.map_pieces([1, -1], Square))
    with pytest.raises(DataError, match="no node for a worker that needs a GPU"):
        list(launchers.map_pieces([1], Square, gpu=True))


def test_a_killed_painter_costs_time_and_no_byte(on_ray: None, tmp_path: Path) -> None:
    flux = tiny_flux(tmp_path / "flux")
    grid_params = params(flux, batch_size=2)
    jobs = grids.grid_jobs(
        records(4, side=32), grid_params.seeds, grids.GenerationSettings.from_params(grid_params, Path())
    )
    here, there = grids.GridFiles(tmp_path / "here"), grids.GridFiles(tmp_path / "there")
    grids.generate_grids(jobs, here.save, lambda: TextToImage.load(flux, grid_params), batch_size=2, log=print)
    counted: list[int] = []
    with killed(tmp_path / "flags") as victims:
        batch_size = generate_grids_on_workers(
            jobs, there.save, halting(flux, grid_params, tmp_path / "flags"), batch_size=2, gpu=False, threads=1,
            log=print,
            advance=counted.append,
        )  # fmt: skip
    assert len(victims) == 1, "no worker was killed"
    assert (batch_size, sum(counted)) == (2, 8)
    for name, finished in (("a", here), ("b", there)):
        grids.write_grids(tmp_path / name, jobs, finished)
    assert folder_digest(tmp_path / "a") == folder_digest(tmp_path / "b")


def test_a_killed_judge_is_asked_again_and_says_the_same(
    on_ray: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(body: dict[str, Any], _n: int) -> Raw:
        first, second = colours(body)
        return completion({"score": similarity(first, second)})

    make_world(tmp_path / "world", prompts=1, seeds=2)
    with ChatServer(answer) as server:
        monkeypatch.setenv(launchers.VARIABLE, "local")
        expected = run(tmp_path / "world", server, "pairwise")
        (tmp_path / "world/.paco/annotations/journal.jsonl").unlink()
        monkeypatch.setenv(launchers.VARIABLE, "ray")
        _stuck_once(monkeypatch, tmp_path / "flags")
        with killed(tmp_path / "flags") as victims:
            actual = run(tmp_path / "world", server, "pairwise")
        assert len(victims) == 1 and server.most_at_once <= 4, "in_flight holds for all workers together"
        assert actual.rankings == expected.rankings and actual.counts == expected.counts
        num_requests = len(server.bodies)
        repeated = run(tmp_path / "world", server, "pairwise")
    assert len(server.bodies) == num_requests and repeated.rankings == expected.rankings, (
        "answers came home to the journal"
    )


def _stuck_once(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    def stuck(chat: Chat, items: Any, question: Callable[..., Any], advance: Any) -> Any:
        return query_all(chat, items, partial(halting_question, question, folder), advance)

    monkeypatch.setattr("paco_core.data.annotation.judge.query_all", stuck)
