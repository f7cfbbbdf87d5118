"""A reward server that is killed while it scores, and a client that is: every score is right, none is asked twice."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.reward_model.yes_probability import Score
from paco_core.serving.cache import ScoreCache
from paco_core.serving.client import RewardClient
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.serving.servers.registry import Registry
from tests.faults.verdicts import Breach, Ledger
from tests.support import forked
from tests.support.serving_fakes import FakeModel, queries, served, true_score
from tests.support.waiting import until
from tests.unit.serving.test_faults import diary, model, server_of, up, written  # noqa: F401  (fixtures)

pytestmark = pytest.mark.thorough

LIMIT_S = 120.0
NUM_QUERIES = 400


def wrong_scores(scores: list[Score]) -> Breach:
    true = [true_score(query) for query in queries(len(scores))]
    off = [score for score, value in zip(scores, true, strict=True) if not abs(score.value - value) <= 1e-6]
    return ("lost" if off[0].failed else "wrong", f"{len(off)} scores, e.g. {off[0]}") if off else None


@pytest.mark.faults
def test_the_server(up: Callable[..., RewardEndpoint], diary: Path, ledger: Ledger) -> None:  # noqa: F811
    """Killed several times within one call of a client that waits for it."""
    first = up(wait_for_server_s=LIMIT_S, requests_in_flight=20, score_cache=None)
    scores: list[Score] = []
    moments = sorted(random.Random("reward server").sample(range(20, NUM_QUERIES - 40), 4))
    with first.client() as client, ledger.row("signal 9", "reward server") as row:
        caller = threading.Thread(target=lambda: scores.extend(client.score(queries(NUM_QUERIES))))
        caller.start()
        pid = first.pid
        for moment in moments:
            until(lambda moment=moment: len(written(diary)) >= moment, LIMIT_S)
            os.kill(server_of(pid), signal.SIGKILL)
            until(lambda: Registry(first.folder.parent).living(first.model) is None, LIMIT_S)
            pid = up(port=0).pid
        caller.join(LIMIT_S)
        num_repeated = sum(written(diary).values()) - len(written(diary))
        for moment in moments:
            row.judge(
                f"after {moment} of {NUM_QUERIES} answers",
                ("unclear", "the client waits for ever") if caller.is_alive() else wrong_scores(scores),
                ("doubled", f"{client.counts.requests} answers counted")
                if client.counts.requests != NUM_QUERIES
                else None,
                ("doubled", f"{num_repeated} asked again") if num_repeated > 20 * len(moments) else None,
            )


def test_the_client(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    """What a killed client had written into its cache is true, and is not asked again."""
    pairs = queries(40)

    def score(url: str, cache: Path) -> None:
        with RewardClient(url, "paco-reward@0123456789ab", cache=cache) as client:
            for start in range(0, len(pairs), 8):
                client.score(pairs[start : start + 8])

    fake = FakeModel()
    with served(fake) as (url, _), ledger.row("signal 9", "reward client with a cache") as row:
        undisturbed = forked.run(lambda: score(url, tmp_path / "whole.db"), tmp_path, count=True)
        assert undisturbed.code == 0, undisturbed.text
        for number, moment in enumerate(undisturbed.moments(random.Random("client"), tries(12, 2))):
            cache = tmp_path / f"{number}.db"
            if not forked.run(lambda cache=cache: score(url, cache), tmp_path, moment).killed:
                continue
            ScoreCache(cache).get([])  # rolls back what the kill left half done
            with sqlite3.connect(cache) as connection:
                ((num_cached,),) = connection.execute("SELECT count(*) FROM scores")
            before = len(fake.requests)
            with RewardClient(url, "paco-reward@0123456789ab", cache=cache) as client:
                scores = client.score(pairs)
            news = len(fake.requests) - before
            twice: Breach = ("doubled", f"{news} asked although {num_cached} were known")
            row.judge(str(moment), wrong_scores(scores), twice if news > len(pairs) - num_cached else None)
