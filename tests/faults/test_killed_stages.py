"""Every stage, killed by signal 9 at seeded moments and run again: the outs of an undisturbed run, to the bit."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from paco_core.runtime.tracking.journal import DamagedJournal, journals
from tests.faults import micro
from tests.faults.verdicts import Breach, Ledger

pytestmark = pytest.mark.thorough

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
def test_every_stage(finished_copy: Path, ledger: Ledger, stage: str) -> None:
    killed(ledger, finished_copy, stage, KILLS[stage])


def killed(ledger: Ledger, root: Path, stage: str, number: int) -> None:
    """Kill a stage at so many moments, each time from its beginning."""
    expected, name = micro.result(root, stage), stage.partition("@")[0]
    micro.start_afresh(root, stage)
    undisturbed = micro.run(root, stage, count=True)
    assert undisturbed.code == 0 and micro.result(root, stage) == expected, (
        f"{stage} is not deterministic\n{undisturbed.text}"
    )
    with ledger.row("signal 9", f"stage {name}") as row:
        for moment in undisturbed.moments(random.Random(stage), number):
            micro.start_afresh(root, stage)
            first = micro.run(root, stage, moment)
            if first.code == 0:
                continue  # it was through before the moment came
            parts = zip(micro.result(root, stage), expected, strict=True)
            half = any(part not in (None, complete) for part, complete in parts)
            states = (root / ".paco" / "checkpoints").rglob("checkpoint-*/state.json") if name in GOES_ON else ()
            progress = max((int(json.loads(path.read_text())["done"]) for path in states), default=0)
            row.judge(
                f"{stage} {moment}",
                None if first.killed else ("unclear", f"ended with {first.code}: {first.text[-300:]}"),
                ("wrong", "a half-written out") if half else None,
                damaged_journal(root),
                ended_otherwise(root, stage, expected, progress),
            )


def damaged_journal(root: Path) -> Breach:
    """Whether all that the killed stage reported for its MLflow run can be read."""
    for journal in journals(root):
        try:
            journal.waiting(0)
        except DamagedJournal as error:
            return "lost", str(error)
    return None


def ended_otherwise(root: Path, stage: str, expected: object, progress: int) -> Breach:
    """What differs, after a second run, from an undisturbed one, where checkpoints held ``done`` epochs or steps."""
    second_run = micro.run(root, stage)
    if second_run.code != 0:
        return "unclear", f"the second run fails or hangs: {second_run.text[-400:]}"
    if micro.result(root, stage) != expected:
        return "wrong", "another out, or other metrics, than an undisturbed run's"
    if progress:
        resumed = GOES_ON[stage.partition("@")[0]].search(second_run.text)
        if not resumed or int(resumed[1]) < progress:
            return "lost", f"a checkpoint held {progress}, the second run went on at {resumed[1] if resumed else 0}"
    left = [path for path in (root / "data").rglob("*.part") if "zoo" not in path.parts]
    return ("wrong", f"left behind: {left[0].name}") if left else None
