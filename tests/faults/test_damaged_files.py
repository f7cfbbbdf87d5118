"""Every kind of file that the project reads, damaged: a clear error that names it, or nothing lost by it."""

from __future__ import annotations

import io
import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ruamel.yaml import YAML

from tests.faults import corpus, damage
from tests.faults.readers import Kind, kinds
from tests.faults.verdicts import Ledger

SIDE_FILES = ("-wal", "-shm", "-journal")
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def sound(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return corpus.make(finished, tmp_path_factory.mktemp("corpus") / "project")


@pytest.mark.parametrize("kind", kinds(), ids=lambda kind: kind.name)
def test_every_kind_of_file(sound: Path, tmp_path: Path, ledger: Ledger, kind: Kind) -> None:
    path, rng = sound / kind.file, random.Random(kind.name)
    data, mode = path.read_bytes(), path.stat().st_mode
    whole = kind.read(sound)
    aside = {p: p.read_bytes() for p in path.parent.glob(f"{path.name}*") if p.name.endswith(SIDE_FILES)}
    try:
        with ledger.row("damaged file", kind.name) as row:
            for found in damages(kind, data, rng):
                for left in path.parent.glob(f"{path.name}-*"):
                    left.unlink()
                damage.place(path, found.data)
                row.judge(found.name, judged(kind, sound, whole, tmp_path))
            path.unlink()
            path.mkdir()
            row.judge("a folder", judged(kind, sound, whole, tmp_path))
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(data)
        path.chmod(mode)
        for place, text in aside.items():
            place.write_bytes(text)
    assert str(kind.read(sound)) == str(whole), "the sound file is back"


def judged(kind: Kind, sound: Path, whole: Any, folder: Path) -> damage.Breach:
    return damage.read_as(lambda: kind.read(sound), whole, kind.named(), kind.sound, folder)


def damages(kind: Kind, data: bytes, rng: random.Random) -> Iterator[damage.Damage]:
    yield from damage.damages(data, rng, 14, b'{"a": 1}\n' if kind.form == "parquet" else b"PAR1 no such thing PAR1")
    if kind.form == "jsonl":
        yield from damage.wrong_values(corpus.lines(data), rng, 10, _as_lines)
    elif kind.form == "json":
        yield from damage.wrong_values(json.loads(data), rng, 10, _as_json)
    elif kind.form == "yaml":
        yield damage.Damage("alias bomb", damage.BOMB)
        yield from damage.wrong_values(_plain(data), rng, 12, _as_yaml)
    elif kind.form == "parquet":
        yield from wrong_tables(pd.read_parquet(io.BytesIO(data)), rng, 10)


def _as_lines(rows: Any) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _as_json(tree: Any) -> bytes:
    return json.dumps(tree).encode()


def _plain(data: bytes) -> Any:
    return json.loads(json.dumps(YAML(typ="safe").load(data), default=str))


def _as_yaml(tree: Any) -> bytes:
    return json.dumps(tree).encode()  # YAML 1.2 holds JSON


def wrong_tables(table: pd.DataFrame, rng: random.Random, number: int) -> Iterator[damage.Damage]:
    """The table with a column gone, or one of its values or types another."""
    changes: list[tuple[str, Callable[[pd.DataFrame, str], pd.DataFrame]]] = [
        ("is gone", lambda t, c: t.drop(columns=[c])),
        ("is null", lambda t, c: t.assign(**{c: None})),
        ("is -1", lambda t, c: t.assign(**{c: -1})),
        ("is 2**62", lambda t, c: t.assign(**{c: 2**62})),
        ("is NaN", lambda t, c: t.assign(**{c: float("nan")})),
        ("is text", lambda t, c: t.assign(**{c: "../../x"})),
        ("is a list", lambda t, c: t.assign(**{c: [[0, 0]] * len(t)})),
        ("is of its neighbour", lambda t, c: t.assign(**{c: list(t[c])[1:] + list(t[c])[:1]})),
    ]
    for n in range(number):
        column = rng.choice(list(table.columns))
        name, change = changes[n % len(changes)]
        buffer = io.BytesIO()
        change(table, column).to_parquet(buffer, index=False)
        yield damage.Damage(f"column {column} {name}", buffer.getvalue())
    buffer = io.BytesIO()
    table[:0].to_parquet(buffer, index=False)
    yield damage.Damage("no rows", buffer.getvalue())
