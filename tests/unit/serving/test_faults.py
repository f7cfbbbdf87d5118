"""Faults of a server and its clients, at the sizes of a training run."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from paco_core.config.params import ServingParams, load
from paco_core.reward_model.yes_probability import Score
from paco_core.serving.servers import endpoint
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.serving.servers.registry import Registry
from tests.support import waiting
from tests.support.serving_fakes import diarist_launch, queries, true_score

LIMIT_S = 240


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("faults") / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def diary(model: Path) -> Path:
    return model.parent / "diary"


@pytest.fixture(scope="module")
def up(repository: Path, model: Path, diary: Path) -> Iterator[Callable[..., RewardEndpoint]]:
    """Starts the server of the made-up model, wherever there is a free port."""
    settings = load(repository / "params.yaml").serving.model_copy(update={"start_timeout_s": LIMIT_S})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(endpoint, "launch", diarist_launch(diary))

        def start(**changes: object) -> RewardEndpoint:
            serving: ServingParams = settings.model_copy(update=changes)
            endpoint.up(model, serving, model.parent)
            served = RewardEndpoint.living(model, serving, model.parent)
            assert served is not None
            return served

        yield start
        endpoint.down(model.parent)


until = partial(waiting.until, seconds=LIMIT_S)


def server_of(supervisor: int) -> int:
    """The process that a supervisor keeps."""
    return int(Path(f"/proc/{supervisor}/task/{supervisor}/children").read_text().split()[0])


def memory(pid: int, field: str = "VmRSS") -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) << 10


def written(diary: Path) -> Counter[str]:
    return Counter(diary.read_text().split()) if diary.is_file() else Counter()


@pytest.mark.slow
def test_a_server_that_is_killed_in_a_batch_of_500_and_comes_back_elsewhere(
    up: Callable[..., RewardEndpoint], diary: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """All 500 are scored; none that was answered is asked again; none is zero."""
    pair_queries, in_flight = queries(500), 40
    first = up(wait_for_server_s=LIMIT_S, requests_in_flight=in_flight, score_cache=None)
    scores: list[Score] = []
    with first.client() as client, caplog.at_level(logging.WARNING, "paco.serving"):
        caller = threading.Thread(target=lambda: scores.extend(client.score(pair_queries)))
        caller.start()
        until(lambda: len(written(diary)) > 150)
        os.kill(server_of(first.pid), signal.SIGKILL)
        until(lambda: Registry(first.folder.parent).living(first.model) is None)
        before = len(written(diary))
        second = up(port=0)
        assert second.url != first.url
        caller.join(LIMIT_S)
        assert not caller.is_alive() and client.url == second.url
        counts = client.counts
    times = written(diary)
    num_repeated = sum(times.values()) - len(times)
    assert [score.value for score in scores] == pytest.approx([true_score(query) for query in pair_queries])
    assert len(times) == 500 and 150 < before < 500
    assert counts.requests == 500  # none was scored twice: an answer that arrived is never asked for again
    assert num_repeated <= in_flight and max(times.values()) <= 2  # at most what was in flight
    assert "is down; waiting for it" in caplog.text
