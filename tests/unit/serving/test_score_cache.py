"""The file of scores that clients know: no entry of it becomes a score that the model did not give."""

from __future__ import annotations

import errno
import logging
import math
import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving import cache
from paco_core.serving.cache import ScoreCache, query_key
from paco_core.serving.client import RewardClient
from tests.support.serving_fakes import NAME, FakeModel, panel, queries, served


def test_cache_key_depends_on_every_part() -> None:
    parts = [
        ("m", "e", "i", "a", "b"),
        ("n", "e", "i", "a", "b"),
        ("m", "f", "i", "a", "b"),
        ("m", "e", "j", "a", "b"),
        ("m", "e", "i", "b", "a"),
        ("me", "", "i", "a", "b"),
    ]
    keys = {query_key(*five) for five in parts}
    assert len(keys) == len(parts)


def test_scores_survive_and_no_question_or_engine_gets_anothers(tmp_path: Path) -> None:
    model, file = FakeModel(), tmp_path / "scores.db"
    pair_queries = [*queries(3), *queries(3, "Another prompt?"), PairQuery(panel(0, size=9), panel(1), "Same?")]
    engines = ["transformers float32", "transformers bfloat16", "vllm bfloat16"]
    with served(model) as (url, _):
        for engine in [*engines, *engines]:
            with RewardClient(url, NAME, cache=file, engine=engine) as client:
                client.score(pair_queries)
    assert len(model.requests) == len(pair_queries) * len(engines)  # the second time round each knew its own
    assert client.counts.cached == len(pair_queries)


def test_a_full_disk_is_not_blamed_on_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, real = tmp_path / "scores.db", sqlite3.connect
    ScoreCache(file).put({b"a": 0.5})

    def limited(*args: Any, **settings: Any) -> sqlite3.Connection:
        connection = real(*args, **settings)
        connection.execute("PRAGMA max_page_count=8")
        return connection

    monkeypatch.setattr(sqlite3, "connect", limited)
    with pytest.raises(OSError, match="No space left") as raised:
        ScoreCache(file).put({b"%d" % number: 0.5 for number in range(10_000)})
    assert (raised.value.errno, raised.value.filename) == (errno.ENOSPC, str(file))
    assert ScoreCache(file).get([b"a", b"1"]) == {b"a": 0.5}


def test_a_cache_in_use_is_waited_for_and_not_to_be_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "scores.db"
    ScoreCache(file).put({b"a": 0.5})
    monkeypatch.setattr(cache, "WAIT_S", 0.1)
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(DataError, match=r"scores\.db: in use by another process.*wait") as raised:
            ScoreCache(file).put({b"b": 0.5})
        assert "delete" not in str(raised.value)
        other.execute("COMMIT")
    ScoreCache(file).put({b"b": 0.5})
    assert ScoreCache(file).get([b"a", b"b"]) == {b"a": 0.5, b"b": 0.5}


def test_several_processes_may_meet_a_cache_of_an_older_version(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some of its zeros were made up, and nothing tells which: none is kept."""
    file = tmp_path / "scores.db"
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute("CREATE TABLE scores (key BLOB PRIMARY KEY, value REAL NOT NULL) WITHOUT ROWID")
        connection.executemany("INSERT INTO scores VALUES (?, ?)", [(b"old", 0.0), (b"0", 0.5)])
    start, wrong = threading.Barrier(8), []

    def use(number: int) -> None:
        start.wait(30)
        try:
            ScoreCache(file).put({b"%d" % number: number / 8})
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
    with caplog.at_level(logging.WARNING, "paco.serving"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong and caplog.text.count(f"{file}: 2 scores of an older version") == 1
    keys = [b"old", *(b"%d" % number for number in range(8))]
    assert ScoreCache(file).get(keys) == {b"%d" % number: number / 8 for number in range(8)}


def test_a_newer_cache_is_left_alone_and_a_damaged_one_named(tmp_path: Path) -> None:
    file, damaged = tmp_path / "scores.db", tmp_path / "damaged.db"
    damaged.write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"damaged\.db"):
        ScoreCache(damaged).get([b"k"])
    ScoreCache(file).put({b"a": 0.5})
    with closing(sqlite3.connect(file)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {cache.VERSION + 1}")
    with pytest.raises(DataError, match=r"scores\.db"):
        ScoreCache(file).put({b"b": 0.5})
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("SELECT key, value FROM scores").fetchall() == [(b"a", 0.5)]


@pytest.mark.parametrize("value", [1.01, -0.1, math.inf, math.nan, "half"])
def test_what_is_no_score_is_neither_kept_nor_read(tmp_path: Path, value: Any) -> None:
    file = tmp_path / "scores.db"
    ScoreCache(file).put({b"good": 0.5})
    if isinstance(value, float):
        with pytest.raises(ValueError, match="1 of 2"):
            ScoreCache(file).put({b"a": 0.5, b"b": value})
    with closing(sqlite3.connect(file)) as connection, connection:
        with pytest.raises(sqlite3.IntegrityError):
            connection.execute("INSERT INTO scores VALUES (?, ?)", (b"bad", value))
        if value == value:  # SQLite has no NaN
            connection.execute("PRAGMA ignore_check_constraints = ON")
            connection.execute("INSERT INTO scores VALUES (?, ?)", (b"bad", value))
    assert ScoreCache(file).get([b"good", b"a"]) == {b"good": 0.5}
    if value == value:
        with pytest.raises(DataError, match=r"scores\.db: 1 of its entries"):
            ScoreCache(file).get([b"good", b"bad"])
