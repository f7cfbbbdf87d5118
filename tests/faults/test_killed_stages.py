"""Every stage, killed by signal 9 at seeded moments and run again: the outs of an undisturbed run, to the bit."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.io.files import folder_digest
from paco_core.io.paths import in_round
from paco_core.runtime.tracking.journal import DamagedJournal, journals
from tests.faults import micro
from tests.faults.verdicts import Ledger, Outcome
from tests.support import forked

Breach = tuple[Outcome, str] | None
#: Moments a stage is killed at, by what a run of it takes.
KILLS = dict.fromkeys(micro.STAGES, 5) | dict.fromkeys(
    ("prompts", "rankings", "annotations", "edit_prompts", "pairs", "cot_labels"), 14
)
#: Stages that keep checkpoints, and how they say where they go on.
GOES_ON = {
    "policies": re.compile(r"resumes after epoch (\d+)"),
    "reward_lora": re.compile(r"resuming after step (\d+)"),
}


def test_short(bare: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    for stage in ("prompts", "edit_prompts"):
        assert micro.run(bare, stage).code == 0
        killed(ledger, bare, stage, tries(1, 4))


@pytest.mark.faults
@pytest.mark.parametrize("stage", micro.STAGES)
def test_every_stage(finished: Path, tmp_path: Path, ledger: Ledger, stage: str) -> None:
    root = tmp_path / "project"
    shutil.copytree(finished, root, symlinks=True)
    killed(ledger, root, stage, KILLS[stage])


@pytest.mark.faults
def test_a_round_goes_on(finished: Path, tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    root = tmp_path / "project"
    shutil.copytree(finished, root, symlinks=True)
    micro.change(root, micro.ROUND)
    for stage in micro.ROUND_STAGES:
        ended = micro.run(root, stage)
        assert ended.code == 0, f"{stage}: {ended.code}\n{ended.text}"
        killed(ledger, root, stage, tries(5, 1))


def killed(ledger: Ledger, root: Path, stage: str, number: int) -> None:
    """Kill a stage at so many moments, each time from its beginning."""
    expected, figures = micro.digest(root, stage), figures_of(root, stage)
    rng = random.Random(stage)
    start_afresh(root, stage)
    whole = micro.run(root, stage, count=True)
    assert whole.code == 0 and micro.digest(root, stage) == expected, f"{stage} is not deterministic\n{whole.text}"
    with ledger.row("signal 9", f"stage {stage.partition('@')[0]}") as row:
        for moment in whole.moments(rng, number):
            start_afresh(root, stage)
            first = micro.run(root, stage, moment)
            if first.code == 0:
                continue  # it was through before the moment came
            done = progress(root, stage)
            breach = half_written(root, stage, expected) or damaged_journal(root)
            if not first.killed:
                breach = breach or ("unclear", f"ended with {first.code}: {first.text[-300:]}")
            again = micro.run(root, stage)
            row.judge(f"{stage} {moment}", breach, ended_otherwise(root, stage, again, expected, figures, done))


def start_afresh(root: Path, stage: str) -> None:
    """As a stage is started that never ran: DVC removes its outs, and nothing is left of earlier attempts."""
    for path in (root / micro.out(stage), root / ".paco" / "checkpoints"):
        shutil.rmtree(path, ignore_errors=True)
    (root / micro.metrics(stage)).unlink(missing_ok=True)


def half_written(root: Path, stage: str, expected: str | None) -> Breach:
    """An out or metrics file that is there after the kill, and is not what it should be."""
    metrics = root / micro.metrics(stage)
    if metrics.exists():
        try:
            json.loads(metrics.read_text())
        except ValueError:
            return "wrong", f"half a file: {metrics.name}"
    found = micro.digest(root, stage)
    return None if found in (None, expected) else ("wrong", "a half-written out")


def figures_of(root: Path, stage: str) -> dict[str, float]:
    """The stage's metrics but for its speed, which is no result."""
    figures = json.loads((root / micro.metrics(stage)).read_text())
    return {name: value for name, value in figures.items() if "second" not in name}


def plain(stage: str) -> str:
    """The file of a stage, without its item; in a round that of the graph's stage."""
    name = stage.partition("@")[0]
    return in_round(name) or name


def damaged_journal(root: Path) -> Breach:
    """Whether all that the killed stage reported for its MLflow run can be read."""
    for journal in journals(root):
        try:
            journal.waiting(0)
        except DamagedJournal as error:
            return "lost", str(error)
    return None


def progress(root: Path, stage: str) -> int:
    """Epochs or steps that a checkpoint on the disk holds."""
    if plain(stage) not in GOES_ON:
        return 0
    states = (root / ".paco" / "checkpoints").rglob("checkpoint-*/state.json")
    return max((int(json.loads(path.read_text())["done"]) for path in states), default=0)


def ended_otherwise(
    root: Path, stage: str, again: forked.Ended, expected: str | None, figures: dict[str, float], done: int
) -> Breach:
    """What differs, after the second run, from an undisturbed one."""
    if again.code is None:
        return "unclear", "the second run hangs"
    if again.code:
        return "unclear", f"the second run fails: {again.text[-400:]}"
    if micro.digest(root, stage) != expected:
        return "wrong", "another out than an undisturbed run's"
    if figures_of(root, stage) != figures:
        return "wrong", "other metrics than an undisturbed run's"
    name = plain(stage)
    if done and name in GOES_ON:
        found = GOES_ON[name].search(again.text)
        if not found or int(found[1]) < done:
            return "lost", f"a checkpoint held {done}, the second run went on at {found[1] if found else 0}"
    left = [path for path in (root / "data").rglob("*.part") if "zoo" not in path.parts]
    return ("wrong", f"left behind: {left[0].name}") if left else None


def test_the_digest_sees_one_byte(tmp_path: Path) -> None:
    """The verdict has teeth: one changed byte in an out is another digest."""
    (tmp_path / "a").write_bytes(b"one")
    before = folder_digest(tmp_path)
    (tmp_path / "a").write_bytes(b"two")
    assert folder_digest(tmp_path) != before
