"""Trainings by two processes of which one is killed: the other ends and says so, and the next run goes on."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from paco_core.io.files import folder_digest
from tests.faults import micro
from tests.faults.verdicts import Ledger, unclear
from tests.support import forked, ranks
from tests.support.grpo_toys import figures, recipe, trainer

pytestmark = pytest.mark.thorough

LIMIT_S = 90.0  # the other rank may wait for a collective call


def rank(number: int, port: int, out: Path) -> None:
    """One of two ranks that train the toy policy."""
    ranks.join_ranks(number, 2, port)
    from paco_core.grpo.trainer import Reports
    from paco_core.training.processes import Processes

    small = recipe(rollout_batch=6, train_batch=6)
    outcome = trainer(processes=Processes("cpu"), recipe=small, reports=Reports(log=print)).run(out, out / "checkpoint")
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
            early = one.code == 0 and results(out) != expected  # rank 0 may end well where rank 1 had done all its work
            done = max((int(p.parent.name[-5:]) for p in out.rglob("checkpoint-*/state.json")), default=0)
            again, other = train(out)
            whole = (again.code, other.code) == (0, 0) and results(out) == expected
            resumed = not done or f"resumes after epoch {done} " in again.text
            row.judge(
                str(moment),
                ("unclear", "rank 0 waits for a rank that is gone") if one.code is None else None,
                ("wrong", "rank 0 ended well without rank 1's work") if early else None,
                None if whole else ("wrong", f"not what an undisturbed training makes: {again.text[-300:]}"),
                None if resumed else ("lost", f"epoch {done} was kept, and the second run began anew"),
            )


@pytest.mark.faults
@pytest.mark.timeout(500)
def test_rank_1_of_the_reward(finished_copy: Path, ledger: Ledger) -> None:
    root = finished_copy
    micro.change(root, {"execution": {"reward": {"processes": 2}}})
    # What one process trained may differ from what two do in the last digits: nothing of it is gone on from.
    micro.start_afresh(root, "reward_lora")
    assert micro.run(root, "reward_lora").code == 0
    expected = micro.result(root, "reward_lora")[0]
    with ledger.row("signal 9", "rank 1 of the reward's training") as row:
        for said in ("", "base: accuracy"):
            micro.start_afresh(root, "reward_lora")
            child = forked.start(lambda: micro.act("reward_lora"), root)
            struck = kill_rank_1_of(child, said)
            ended = child.wait(LIMIT_S)
            again = micro.run(root, "reward_lora")
            same = again.code == 0 and micro.result(root, "reward_lora")[0] == expected
            row.judge(
                f"after {said!r}",
                None if struck else ("unclear", "there was no rank 1"),
                ("unclear", "rank 0 hangs") if ended.code is None else None,
                ("wrong", "rank 0 ended well") if ended.code == 0 else None,
                unclear(ended.text, ["rank 1"]),
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
