"""Every store on a disk that becomes full: what was acknowledged stays, and all goes on once there is room again."""

from __future__ import annotations

import errno
import os
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import torch

from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore, NotStored
from paco_core.data.llm.journal import Journal
from paco_core.io.files import DataError, read_json, write_json
from paco_core.runtime.tracking import send_left_over
from paco_core.runtime.tracking.journal import DamagedJournal, RunJournal
from paco_core.training.checkpoint import Checkpoint, load_latest_checkpoint, save_checkpoint
from tests.faults import micro
from tests.faults.test_killed_tracking import STEPS, delivery_breach, miscounted, write
from tests.faults.verdicts import Breach, Ledger, unclear
from tests.support import forked

pytestmark = pytest.mark.thorough

FULL = ("No space left", "no space left", "disk is full", "disk I/O error", "full")
PAGE = 4096  # a tmpfs counts in these
ROOM = 400_000  # bytes, about what a small stage writes
STAGES = ("prompts", "rankings", "annotations", "edit_prompts", "pairs", "cot_labels", "diverse_prompts", "grids@0")


class Disk:
    """A small file system of its own, full at will."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._filler = folder, folder / ".filler"

    def leave(self, free: int) -> None:
        """Fill all but so many bytes, rounded up to pages."""
        self.empty()
        have = shutil.disk_usage(self.folder).free
        with self._filler.open("wb") as stream:
            os.posix_fallocate(stream.fileno(), 0, max(PAGE, have - (free + PAGE - 1) // PAGE * PAGE))

    def empty(self) -> None:
        """Give back what :meth:`leave` took."""
        self._filler.unlink(missing_ok=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A tmpfs; skips the test where none may be mounted."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if not (mount := shutil.which("mount")):
        pytest.skip("there is no `mount` here, so that no small disk can be made")
    mounted = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here (it takes root): {mounted.stderr.strip()}")
    yield Disk(folder)
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_short(bare: Path, disk: Disk, tmp_path: Path, ledger: Ledger) -> None:
    root = Path(shutil.copytree(bare, disk.folder / "project", symlinks=True))
    assert micro.run(root, "prompts").code == 0
    filled(ledger, disk, root, "prompts", (0, 12_000), tmp_path / "log")


@pytest.mark.faults
@pytest.mark.parametrize("stage", STAGES)
def test_every_small_stage(finished: Path, disk: Disk, tmp_path: Path, ledger: Ledger, stage: str) -> None:
    rng = random.Random(f"full {stage}")
    heavy = shutil.ignore_patterns("policies", "reward_merged", "reward_lora", "tracking", "encodings")
    root = Path(shutil.copytree(finished, disk.folder / "project", symlinks=True, ignore=heavy))
    filled(ledger, disk, root, stage, [rng.randrange(0, ROOM >> (n * 2)) for n in range(5)], tmp_path / "log")


def filled(ledger: Ledger, disk: Disk, root: Path, stage: str, room: Sequence[int], log: Path) -> None:
    with ledger.row("full disk", f"stage {stage.partition('@')[0]}") as row:
        for free in room:
            row.judge(f"{stage}, {free} bytes left", run_full(disk, root, stage, free, log))


def run_full(disk: Disk, root: Path, stage: str, free: int, log: Path) -> Breach:
    """Run a stage with so many bytes left, make room, and run it again."""
    expected = micro.result(root, stage)
    micro.start_afresh(root, stage)
    disk.leave(free)
    first = micro.run(root, stage, log=log)
    digest, _ = micro.result(root, stage)
    disk.empty()
    if first.code != 0 and (breach := unclear(first.text, FULL)):
        return breach
    if digest not in (None, expected[0]) or (first.code == 0 and digest is None):
        return "wrong", "a half-written out"
    second_run = micro.run(root, stage, log=log)
    if second_run.code:
        return "unclear", f"fails with room, too: {second_run.text[-400:]}"
    return None if micro.result(root, stage) == expected else ("wrong", "another out than an undisturbed run's")


Put = Callable[[Path, int], None]  # acknowledges by returning
Stored = Callable[[Path], set[int]]


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
    return {event["step"] for event, _ in RunJournal(folder).waiting(0, limit=2000)}


def _put_json(folder: Path, n: int) -> None:
    write_json(folder / "state.json", [*sorted(_jsons(folder)), n, *["x" * 300] * n])


def _jsons(folder: Path) -> set[int]:
    file = folder / "state.json"
    return {n for n in read_json(file) if isinstance(n, int)} if file.is_file() else set()


def _put_checkpoint(folder: Path, n: int) -> None:
    tensors = {"a": torch.full((300 * (n + 1),), float(n))}
    save_checkpoint(folder / "checkpoint", Checkpoint("recipe", n, tensors, {"n": n}), keep=2)


def _checkpoints(folder: Path) -> set[int]:
    last = load_latest_checkpoint(folder / "checkpoint", "recipe", 2000)
    return set(range(last.progress + 1)) if last and float(last.tensors["a"][0]) == last.progress else set()


STORES: dict[str, tuple[Put, Stored]] = {
    "people's answers": (_put_answer, _answers),
    "journal of chat answers": (_put_chat, _chats),
    "journal of a run": (_put_event, _events),
    "JSON file": (_put_json, _jsons),
    "checkpoint of a policy": (_put_checkpoint, _checkpoints),
}


@pytest.mark.parametrize("name", STORES)
def test_every_store(disk: Disk, ledger: Ledger, tries: Callable[[int, int], int], name: str) -> None:
    rng = random.Random(name)
    with ledger.row("full disk", name) as row:
        for number in range(tries(6, 1)):
            folder = disk.folder / str(number)
            folder.mkdir()
            free = rng.randrange(40_000, 160_000)
            row.judge(f"{free} bytes left", fill(disk, folder, free, *STORES[name]))
            shutil.rmtree(folder)


def fill(disk: Disk, folder: Path, free: int, put: Put, stored: Stored) -> Breach:
    """Put into a store until its disk is full and a little longer, make room, and put again."""
    disk.leave(free)
    acknowledged: list[int] = []
    errors: list[BaseException] = []
    while len(errors) < 5 and len(acknowledged) < 1500:
        try:
            put(folder, len(acknowledged))
            acknowledged.append(len(acknowledged))
        except Exception as error:
            errors.append(error)
    disk.empty()
    if not errors:
        return "unclear", "the disk never became full"
    for error in errors:
        if not isinstance(error, DataError | NotStored) and getattr(error, "errno", None) != errno.ENOSPC:
            return "unclear", f"{type(error).__name__}: {error}"
    try:
        put(folder, 1500)
        missing = {*acknowledged, 1500} - stored(folder)
    except (DataError, DamagedJournal, NotStored, OSError, ValueError) as error:
        return "lost", f"unusable afterwards: {error}"
    return ("lost", f"{len(missing)} of {len(acknowledged)} that it had acknowledged") if missing else None


@pytest.mark.faults
def test_the_store_of_mlflow(disk: Disk, mlflow_template: Path, tmp_path: Path, ledger: Ledger) -> None:
    """Figures wait in the project while MLflow's own disk is full."""
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
            row.judge(
                f"{free} bytes left",
                unclear(first.text, FULL) if first.code else None,
                delivery_breach(root),
                miscounted(root, set(range(STEPS))),
            )
