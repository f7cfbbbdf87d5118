"""Every store on a disk that becomes full: what was acknowledged stays, and all goes on once there is room again."""

from __future__ import annotations

import errno
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dvc_graphs as graphs
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore, NotStored
from paco_core.data.llm.journal import Journal
from paco_core.io.files import DataError, read_json, write_json
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal
from paco_core.serving.cache import ScoreCache
from tests.faults import disks, micro
from tests.faults.test_killed_stages import figures_of, start_afresh
from tests.faults.verdicts import Ledger, Outcome, unclear
from tests.support import forked

Breach = tuple[Outcome, str] | None
FULL = ("No space left", "no space left", "disk is full", "disk I/O error", "full")
ROOM = 400_000  # bytes, about what a small stage writes
STAGES = ("prompts", "rankings", "annotations", "edit_prompts", "pairs", "cot_labels", "diverse_prompts", "grids@0")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[disks.Disk]:
    with disks.mounted(tmp_path / "disk", 64) as made:
        yield made


def test_a_stage(bare: Path, disk: disks.Disk, tmp_path: Path, ledger: Ledger) -> None:
    """The short part: one stage, two sizes."""
    root = disk.folder / "project"
    shutil.copytree(bare, root, symlinks=True)
    assert micro.run(root, "prompts").code == 0
    with ledger.row("full disk", "stage prompts") as row:
        for free in (0, 12_000):
            row.judge(f"{free} bytes left", run_full(disk, root, "prompts", free, tmp_path / "log"))


@pytest.mark.faults
@pytest.mark.parametrize("stage", STAGES)
def test_every_small_stage(finished: Path, disk: disks.Disk, tmp_path: Path, ledger: Ledger, stage: str) -> None:
    root, rng = disk.folder / "project", random.Random(f"full {stage}")
    heavy = shutil.ignore_patterns("policies", "reward_merged", "reward_lora", "tracking", "encodings")
    shutil.copytree(finished, root, symlinks=True, ignore=heavy)
    with ledger.row("full disk", f"stage {stage.partition('@')[0]}") as row:
        for n in range(5):
            free = rng.randrange(0, ROOM >> (n * 2))
            row.judge(f"{stage}, {free} bytes left", run_full(disk, root, stage, free, tmp_path / "log"))


def run_full(disk: disks.Disk, root: Path, stage: str, free: int, log: Path) -> Breach:
    """Run a stage with so many bytes left, make room, and run it again."""
    expected, figures = micro.digest(root, stage), figures_of(root, stage)
    start_afresh(root, stage)
    disk.leave(free)
    first = micro.run(root, stage, log=log)
    found = micro.digest(root, stage)
    disk.empty()
    if first.code is None:
        return "unclear", "hangs"
    if first.code and (breach := unclear(first.text, FULL)):
        return breach
    if found not in (None, expected) or (first.code == 0 and found is None):
        return "wrong", "a half-written out"
    again = micro.run(root, stage, log=log)
    if again.code:
        return "unclear", f"fails with room, too: {again.text[-400:]}"
    same = micro.digest(root, stage) == expected and figures_of(root, stage) == figures
    return None if same else ("wrong", "another out than an undisturbed run's")


@dataclass(frozen=True)
class Store:
    """Something that keeps what it is given: ``put(n)`` acknowledges by returning, ``kept()`` tells which it has."""

    name: str
    put: Callable[[Path, int], None]
    kept: Callable[[Path], set[int]]


def _put_score(folder: Path, n: int) -> None:
    ScoreCache(folder / "scores.db").put({n.to_bytes(16, "big") + bytes(200): 0.5})


def _scores(folder: Path) -> set[int]:
    keys = {n.to_bytes(16, "big") + bytes(200): n for n in range(2000)}
    return {keys[key] for key in ScoreCache(folder / "scores.db").get(list(keys))}


def _put_answer(folder: Path, n: int) -> None:
    with AnswerStore(folder / "answers.sqlite", create=True) as store:
        store.recruit(1)
        store.record(AnnotatorAnswer("annotator-1", f"i{n}", 1, "ranked", (1, 0), (0, 1), 1.0))


def _answers(folder: Path) -> set[int]:
    with AnswerStore(folder / "answers.sqlite", create=True) as store:
        return {int(answer.instance_id[1:]) for answer in store.every()}


def _put_chat(folder: Path, n: int) -> None:
    with Journal(folder / "journal.jsonl") as journal:
        journal.append({"n": n, "answer": "x" * 300})


def _chats(folder: Path) -> set[int]:
    with Journal(folder / "journal.jsonl") as journal:
        return {row["n"] for row in journal.rows}


def _put_event(folder: Path, n: int) -> None:
    RunJournal(folder).append({"kind": "metrics", "step": n, "values": {"loss": 0.5, "x" * 300: 1.0}})


def _events(folder: Path) -> set[int]:
    journal, found, offset = RunJournal(folder), set(), 0
    while waiting := journal.waiting(offset):
        found |= {event["step"] for event, _ in waiting}
        offset = waiting[-1][1]
    return found


def _put_json(folder: Path, n: int) -> None:
    known = read_json(folder / "state.json") if (folder / "state.json").is_file() else []
    write_json(folder / "state.json", [*known, {"n": n, "text": "x" * 300}])


def _jsons(folder: Path) -> set[int]:
    return {row["n"] for row in read_json(folder / "state.json")} if (folder / "state.json").is_file() else set()


def _put_checkpoint(folder: Path, n: int) -> None:
    import torch

    from paco_core.training.checkpoint import Checkpoint, save

    save(
        folder / "checkpoint", Checkpoint("recipe", n, {"a": torch.full((300 * (n + 1),), float(n))}, {"n": n}), keep=2
    )


def _checkpoints(folder: Path) -> set[int]:
    from paco_core.training.checkpoint import latest

    found = latest(folder / "checkpoint", "recipe", 2000)
    return set(range(found.done + 1)) if found and float(found.tensors["a"][0]) == found.done else set()


STORES = [
    Store("cache of scores", _put_score, _scores),
    Store("people's answers", _put_answer, _answers),
    Store("journal of chat answers", _put_chat, _chats),
    Store("journal of a run", _put_event, _events),
    Store("JSON file", _put_json, _jsons),
    Store("checkpoint of a policy", _put_checkpoint, _checkpoints),
]


@pytest.mark.parametrize("store", STORES, ids=lambda store: store.name)
def test_every_store(disk: disks.Disk, ledger: Ledger, tries: Callable[[int, int], int], store: Store) -> None:
    rng = random.Random(store.name)
    with ledger.row("full disk", store.name) as row:
        for number in range(tries(6, 1)):
            folder = disk.folder / str(number)
            folder.mkdir()
            free = rng.randrange(40_000, 160_000)
            row.judge(f"{free} bytes left", fill(disk, folder, store, free))
            shutil.rmtree(folder)


def fill(disk: disks.Disk, folder: Path, store: Store, free: int) -> Breach:
    """Put into a store until its disk is full and a little longer, make room, and put again."""
    disk.leave(free)
    taken: list[int] = []
    refused: list[BaseException] = []
    for n in range(1500):
        try:
            store.put(folder, n)
            taken.append(n)
        except Exception as error:
            refused.append(error)
            if len(refused) == 5:
                break
    disk.empty()
    if not refused:
        return "unclear", "the disk never became full"
    clear = [error for error in refused if isinstance(error, DataError | NotStored) or _is_full(error)]
    if len(clear) < len(refused):
        odd = next(error for error in refused if error not in clear)
        return "unclear", f"{type(odd).__name__}: {odd}"
    try:
        store.put(folder, 1500)
        kept = store.kept(folder)
    except (DataError, DamagedJournal, NotStored, OSError, ValueError) as error:
        return "lost", f"unusable afterwards: {error}"
    if missing := {*taken, 1500} - kept:
        return "lost", f"{len(missing)} of {len(taken)} that it had acknowledged"
    return None


def _is_full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno == errno.ENOSPC


@pytest.mark.faults
def test_dvc(disk: disks.Disk, tmp_path: Path, ledger: Ledger) -> None:
    """The cache of DVC, and dvc.lock."""
    from tests.faults.test_killed_dvc import content, repro

    whole = graphs.make_chain(tmp_path / "whole")
    assert forked.run(repro, whole).code == 0
    expected, rng = content(whole, "chain"), random.Random("full dvc")
    with ledger.row("full disk", "dvc repro") as row:
        for _ in range(5):
            root = graphs.make_chain(disk.folder / "chain")
            free = rng.randrange(0, 300_000)
            disk.leave(free)
            first = forked.run(repro, root, log=tmp_path / "log")
            disk.empty()
            again = forked.run(repro, root, log=tmp_path / "log")
            row.judge(
                f"{free} bytes left",
                unclear(first.text, FULL) if first.code else None,
                ("unclear", f"fails with room, too: {again.text[-300:]}") if again.code else None,
                None if content(root, "chain") == expected else ("wrong", "another out or dvc.lock"),
            )
            shutil.rmtree(root)


@pytest.mark.faults
def test_the_store_of_mlflow(disk: disks.Disk, mlflow_template: Path, tmp_path: Path, ledger: Ledger) -> None:
    """Figures wait in the project while MLflow's own disk is full."""
    from paco_core.runtime.tracking import send_left_over
    from tests.faults.test_killed_tracking import STEPS, miscounted, write

    rng = random.Random("full mlflow")
    with ledger.row("full disk", "store of MLflow") as row:
        for number in range(4):
            root, far = tmp_path / str(number), disk.folder / str(number)
            root.mkdir()
            far.mkdir()
            shutil.copy(mlflow_template, far / "mlflow.db")
            (root / "mlflow.db").symlink_to(far / "mlflow.db")
            assert forked.run(lambda root=root: write(root), root).code == 0
            free = rng.randrange(0, 60_000)
            disk.leave(free)
            first = forked.run(lambda root=root: print(send_left_over(root).text()), root)
            disk.empty()
            second = forked.run(lambda root=root: print(json.dumps(send_left_over(root).waiting)), root)
            row.judge(
                f"{free} bytes left",
                unclear(first.text, FULL) if first.code else None,
                ("lost", f"{second.text[-200:]}") if second.code or second.text.split()[-1] != "0" else None,
                miscounted(root, set(range(STEPS))),
            )


def test_the_disk_is_small(disk: disks.Disk) -> None:
    """The disk has teeth: beyond what is left, writing fails."""
    disk.leave(8192)
    with pytest.raises(OSError, match="No space left"):
        (disk.folder / "big").write_bytes(bytes(20_000))
    disk.empty()
    value: Any = bytes(20_000)
    assert (disk.folder / "big").write_bytes(value) == 20_000
