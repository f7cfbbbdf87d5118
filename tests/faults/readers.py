"""Kinds of files that the project reads, one or more of each form: the reader, and what it may read."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dagster_dvc import DvcProject
from dvc_project.lockfile import Lock
from paco_core.config import params
from paco_core.data.annotation import votes
from paco_core.data.annotation.imported import read_imported_rankings
from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.llm import journal as chats
from paco_core.data.records.records import read_prompts
from paco_core.exchange import imported
from paco_core.io.files import DataError, read_table
from paco_core.io.rejected import Rejected
from paco_core.io.shards import ShardReader
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal
from paco_core.serving.cache import ScoreCache
from paco_core.training.checkpoint import load_latest_checkpoint

KEYS = [bytes([n] * 16) for n in range(40)]
SIZES = {f"i{n}": 4 for n in range(6)}
EPOCH = "checkpoint/checkpoint-00003"
#: Digests of the pixels of each grid of the sound shards.
SOUND_DIGESTS: set[str] = set()


@dataclass(frozen=True)
class Kind:
    """A kind of file: one of them in a finished project, and its reader.

    Args:
        fault: what is wrong with a value that is read without an error and is not the sound one; None where it is a
            possible one.
        names: what a clear error names, the file's own name unless said otherwise.
        form: see :func:`tests.faults.damage.damages`.
    """

    name: str
    file: str
    read: Callable[[Path], Any]
    fault: Callable[[Any], str | None] = lambda _value: None
    names: tuple[str, ...] = ()
    form: str = "bytes"


def unsafe_ids(records: Iterable[Any]) -> str | None:
    """Ids become names of files: none may lead elsewhere, hide, or be too long for a name."""
    for idx in (record.idx for record in records):
        too_long = len(idx.encode("utf-8", "replace")) > 240
        if not idx or too_long or idx.startswith(".") or not idx.isprintable() or "/" in idx or "\\" in idx:
            return f"accepted the id {idx[:40]!r}"
    return None


def _pairs(root: Path) -> dict[str, bytes]:
    try:
        imported.import_pairs(root / "paco_dataset", root / "imported")
        return {path.name: path.read_bytes() for path in sorted((root / "imported").glob("*")) if path.is_file()}
    finally:
        shutil.rmtree(root / "imported", ignore_errors=True)


def _rejected_in_silence(files: dict[str, bytes]) -> str | None:
    if not files["rejected.jsonl"].strip():
        return None  # another word in a text
    return None if json.loads(files["summary.json"]) else "nothing is counted"


def _votes(rows: Iterable[Any], rejected: Rejected) -> Any:
    return [(vote.instance_id, vote.annotator, vote.ranking) for vote in rows], rejected


def _jsonl_votes(root: Path) -> Any:
    rejected = Rejected()
    return _votes(list(read_imported_rankings(root / "rankings.jsonl", SIZES, rejected)), rejected)


def _label_studio_votes(root: Path) -> Any:
    rejected = Rejected()
    return _votes(read_export(root / "export.json", SIZES, rejected).rankings, rejected)


def _unsound_rankings(rows_and_rejected: tuple[list[tuple[str, str, Any]], Rejected]) -> str | None:
    """Rankings that were left out have a cause; the others are orders."""
    rows, rejected = rows_and_rejected
    if not all(cause for _, cause in rejected):
        return "a ranking is left out without a cause"
    bad = [r for name, _, r in rows if r is not None and sorted(r) != list(range(SIZES.get(name, len(r))))]
    return f"a ranking {bad[0]} that is no order" if bad else None


def _grids(root: Path) -> dict[str, str]:
    reader = ShardReader.below(root / "data/grids")
    digests = {name: hashlib.md5(reader.read(name).tobytes()).hexdigest() for name in reader.index["id"]}
    SOUND_DIGESTS.update(() if SOUND_DIGESTS else digests.values())  # the sound shards are read first
    return digests


def _never_painted(digests: dict[str, str]) -> str | None:
    if not digests:
        return "no picture is missed"
    return None if SOUND_DIGESTS.issuperset(digests.values()) else "pixels that were never painted"


def _no_number(loaded: Any) -> str | None:
    def walk(value: Any) -> bool:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return any(map(walk, inner)) or (isinstance(value, float) and not math.isfinite(value))

    return "accepted a number that is none" if walk(loaded.model_dump()) else None


def _checkpoint(root: Path) -> Any:
    last = load_latest_checkpoint(root / "checkpoint", "recipe", 9, ("rows",))
    return last and (last.progress, {n: tensor.numpy().tobytes() for n, tensor in last.tensors.items()}, last.notes)


def _other_epoch(last: Any) -> str | None:
    """An epoch to go on after and all tensors; or none, and the training starts afresh."""
    if last is None:
        return None
    epoch, tensors, notes = last
    sane = epoch == 3 and not isinstance(epoch, bool) and set(notes) == {"rows"}
    return None if sane and set(tensors) == {"adapter/a", "adapter/b"} else f"would go on after {epoch!r}, {notes!r}"


def _no_probability(scores: Iterable[Any]) -> str | None:
    bad = [score for score in scores if not (isinstance(score, float) and 0 <= score <= 1)]
    return f"a score of {bad[0]!r}" if bad else None


def _answers(root: Path) -> Any:
    with AnswerStore(root / "answers.sqlite") as store:
        return [(answer.instance_id, answer.verdict, answer.ranking) for answer in store.every()]


def _chats(root: Path) -> Any:
    with chats.Journal(root / "journal.jsonl") as journal:
        return list(journal.rows)


def _run_journal(root: Path) -> Any:
    try:
        return [event for event, _ in RunJournal(root / "tracking").waiting(0)]
    except DamagedJournal as error:
        raise DataError(str(error)) from None


def _rankings(root: Path) -> Any:
    table = read_table(root / "data/annotations/rankings.parquet", require=votes.COLUMNS)
    return _votes(votes.from_table(table), Rejected())


#: Below a root made in test_damaged_files.py.
KINDS = [
    Kind("prompts", "data/prompts/prompts.jsonl", lambda root: read_prompts(root / "data/prompts/prompts.jsonl"),
         unsafe_ids, form="jsonl"),
    Kind("imported ShareGPT pairs", "paco_dataset/train.jsonl", _pairs, _rejected_in_silence, ("paco_dataset",),
         form="jsonl"),
    Kind("imported rankings", "rankings.jsonl", _jsonl_votes, _unsound_rankings, form="jsonl"),
    Kind("export of Label Studio", "export.json", _label_studio_votes, _unsound_rankings, form="json"),
    Kind("index of a tar shard", "data/grids/shard-0/index.parquet", _grids, _never_painted, ("shard-0",), "parquet"),
    Kind("tar shard", "data/grids/shard-0/images.tar", _grids, _never_painted),
    Kind("rankings", "data/annotations/rankings.parquet", _rankings, _unsound_rankings, ("rankings",), "parquet"),
    Kind("dvc.lock", "dvc.lock", Lock.read, form="yaml"),
    Kind("dvc.yaml", "dvc.yaml", lambda root: sorted(DvcProject(root).stages), form="yaml"),
    Kind("params.yaml", "params.yaml", lambda root: params.load(root / "params.yaml"), _no_number, form="yaml"),
    Kind("checkpoint of a policy", f"{EPOCH}/tensors.safetensors", _checkpoint, _other_epoch, ("checkpoint-",)),
    Kind("its state", f"{EPOCH}/state.json", _checkpoint, _other_epoch, ("checkpoint-",), "json"),
    Kind("cache of scores", "scores.db", lambda root: list(ScoreCache(root / "scores.db").get(KEYS).values()),
         _no_probability),
    Kind("people's answers", "answers.sqlite", _answers),
    Kind("journal of chat answers", "journal.jsonl", _chats, form="jsonl"),
    Kind("journal of a run", "tracking/events.jsonl", _run_journal, form="jsonl"),
]  # fmt: skip
