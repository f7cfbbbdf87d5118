"""The file of scores that clients know."""

from __future__ import annotations

import errno
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.serving import cache
from paco_core.serving.cache import ScoreCache, question_key
from paco_core.serving.client import RewardClient
from tests.support.serving_fakes import (
    NAME,
    FakeModel,
    panel,
    queries,
    served,
)


def test_scores_survive_in_the_cache_file(tmp_path: Path) -> None:
    model, file = FakeModel(), tmp_path / "scores.db"
    with served(model) as (url, _):
        for _ in range(2):
            with RewardClient(url, NAME, cache=file) as client:
                client.score(queries(6))
        assert len(model.asks) == 6 and client.counts.cached == 6
        with RewardClient(url, NAME, cache=file) as client:
            client.score(queries(6, "Another prompt?"))
            client.score([PairQuery(panel(0, size=9), panel(1), "Same?")])
    assert len(model.asks) == 13 and client.counts.cached == 0


def test_cache_key_depends_on_every_part() -> None:
    parts = [
        ("m", "e", "i", "a", "b"),
        ("n", "e", "i", "a", "b"),
        ("m", "f", "i", "a", "b"),
        ("m", "e", "j", "a", "b"),
        ("m", "e", "i", "b", "a"),
        ("me", "", "i", "a", "b"),
    ]
    keys = {question_key(*five) for five in parts}
    assert len(keys) == len(parts)


def test_pictures_of_equal_bytes_but_another_size_or_mode_are_other_pictures() -> None:
    pixels = bytes(range(24))
    pictures = [Image.frombytes(mode, size, pixels) for mode, size in (("L", (6, 4)), ("L", (4, 6)), ("RGB", (4, 2)))]
    assert len({picture.tobytes() for picture in pictures}) == 1
    assert len({picture_digest(picture) for picture in pictures}) == 3


def test_a_score_of_one_engine_or_number_format_is_never_taken_for_anothers(tmp_path: Path) -> None:
    model, file, asked = FakeModel(), tmp_path / "scores.db", queries(3)
    engines = ["transformers float32", "transformers bfloat16", "vllm bfloat16"]
    with served(model) as (url, _):
        for engine in [*engines, *engines]:
            with RewardClient(url, NAME, cache=file, engine=engine) as client:
                client.score(asked)
    assert len(model.asks) == 3 * len(engines)  # the second time round each knew its own


def test_a_damaged_cache_is_named(tmp_path: Path) -> None:
    file = tmp_path / "scores.db"
    file.write_bytes(b"no database" * 1000)
    with pytest.raises(DataError, match=r"scores\.db.*delete it"):
        ScoreCache(file).get([b"k"])


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
    error = sqlite3.OperationalError("disk I/O error")  # how it is told where the log's index finds no space
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR_SHMSIZE
    with pytest.raises(OSError, match="No space left"), ScoreCache(file)._open():
        raise error


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
