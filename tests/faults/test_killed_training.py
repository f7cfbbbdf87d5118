"""Trainings by two processes of which one is killed: the other ends and says so, and the next run goes on."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from paco_core.io.files import folder_digest
from tests.faults import micro
from tests.faults.verdicts import Ledger, Outcome
from tests.support import forked, ranks
from tests.support.grpo_toys import figures, recipe, trainer

Breach = tuple[Outcome, str] | None
LIMIT_S = 90.0  # the other rank may wait for a collective call


def rank(number: int, port: int, out: Path) -> None:
    """One of two ranks that train the toy policy."""
    ranks.join_ranks(number, 2, port)
    from paco_core.grpo.trainer import Reports
    from paco_core.training.processes import Processes

    small = recipe(rollout_batch=6, train_batch=6)
    outcome = trainer(processes=Processes("cpu"), recipe=small, reports=Reports(say=print)).run(out, out / "checkpoint")
    (out / f"rank{number}.json").write_text(json.dumps(figures(outcome)))


def train(out: Path, kill: forked.Moment | None = None, *, count: bool = False) -> tuple[forked.Ended, forked.Ended]:
    """Both ranks to their ends; ``kill`` is for rank 1."""
    out.mkdir(exist_ok=True)
    both, port = [], ranks.free_port()
    for n in range(2):
        act, log = (lambda n=n: rank(n, port, out)), out / f".{n}"
        both.append(forked.start(act, out, kill if n else None, count=count and bool(n), log=log))
    second = both[1].wait(LIMIT_S)
    return both[0].wait(LIMIT_S), second


def results(out: Path) -> tuple[Any, str]:
    return json.loads((out / "rank0.json").read_text()), folder_digest(out / "adapter")


def test_rank_1_of_a_policy(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    import accelerate  # noqa: F401  (once for all forks)

    first, second = train(tmp_path / "whole", count=True)
    assert (first.code, second.code) == (0, 0), first.text + second.text
    expected = results(tmp_path / "whole")
    with ledger.row("signal 9", "rank 1 of a policy's training") as row:
        for number, moment in enumerate(second.moments(random.Random("ranks"), tries(6, 1))):
            out = tmp_path / f"killed{number}"
            one, two = train(out, moment)
            if not two.killed:
                continue
            ended_early = stayed(out, one, expected)
            done = max((int(p.parent.name[-5:]) for p in out.rglob("checkpoint-*/state.json")), default=0)
            again, other = train(out)
            row.judge(str(moment), ended_early, went_otherwise(out, again, other, expected, done))


def stayed(out: Path, one: forked.Ended, expected: Any) -> Breach:
    """Rank 0 may end well where rank 1 had done all its work."""
    if one.code is None:
        return "unclear", f"rank 0 waits for more than {LIMIT_S:g} s for a rank that is gone"
    if one.code == 0 and results(out) != expected:
        return "wrong", "rank 0 ended well without rank 1's work"
    return None


def went_otherwise(out: Path, again: forked.Ended, other: forked.Ended, expected: Any, done: int) -> Breach:
    if (again.code, other.code) != (0, 0):
        return "unclear", f"the second run ended with {again.code}, {other.code}: {again.text[-300:]}"
    if results(out) != expected:
        return "wrong", "another adapter or log than an undisturbed training's"
    if done and f"resumes after epoch {done} " not in again.text:
        return "lost", f"epoch {done} was kept, and the second run began anew"
    return None


@pytest.mark.faults
@pytest.mark.timeout(500)
def test_rank_1_of_the_reward(finished: Path, tmp_path: Path, ledger: Ledger) -> None:
    root = tmp_path / "project"
    shutil.copytree(finished, root, symlinks=True)
    micro.change(root, {"execution": {"reward": {"processes": 2}}})
    # What one process trained may differ from what two do in the last digits: nothing of it is gone on from.
    for place in (root / micro.out("reward_lora"), root / ".paco" / "checkpoints"):
        shutil.rmtree(place)
    assert micro.run(root, "reward_lora").code == 0
    expected = micro.digest(root, "reward_lora")
    with ledger.row("signal 9", "rank 1 of the reward's training") as row:
        for said in ("", "base: accuracy"):
            for place in (root / micro.out("reward_lora"), root / ".paco" / "checkpoints"):
                shutil.rmtree(place, ignore_errors=True)
            child = forked.start(lambda: micro.act("reward_lora"), root)
            struck = kill_rank_1_of(child, said)
            ended = child.wait(LIMIT_S)
            again = micro.run(root, "reward_lora")
            same = again.code == 0 and micro.digest(root, "reward_lora") == expected
            row.judge(
                f"after {said!r}",
                None if struck else ("unclear", "there was no rank 1"),
                ("unclear", "rank 0 hangs") if ended.code is None else None,
                ("wrong", "rank 0 ended well") if ended.code == 0 else None,
                None if "rank 1" in ended.text else ("unclear", f"does not name the rank: {ended.text[-300:]}"),
                ("unclear", f"a raw traceback: {ended.text[-3000:]}") if "Traceback" in ended.text else None,
                None if same else ("wrong", f"the second run ends with {again.code}: {again.text[-1500:]}"),
            )


def kill_rank_1_of(launcher: forked.Child, said: str) -> bool:
    """Kill the second rank of a training when the first one has printed something."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(launcher.pid).children():
            with suppress(psutil.Error):  # it came or went while it was looked at
                if child.environ().get("RANK") == "1" and said in launcher.log.read_text(errors="replace"):
                    child.kill()
                    return True
        time.sleep(0.01)
    return False
