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


def train(
    out: Path, kill: forked.Moment | None = None, *, count: bool = False
) -> tuple[forked.ProcessResult, forked.ProcessResult]:
    """Both ranks to their ends; ``kill`` is for rank 1."""
    out.mkdir(exist_ok=True)
    ranks_ended, port = [], ranks.free_port()
    for n in range(2):
        act, log = (lambda n=n: rank(n, port, out)), out / f".{n}"
        ranks_ended.append(forked.start(act, out, kill if n else None, count=count and bool(n), log=log))
    second = ranks_ended[1].wait(LIMIT_S)
    return ranks_ended[0].wait(LIMIT_S), second


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
            rank_0, rank_1 = train(out, moment)
            if not rank_1.killed:
                continue
            early = (
                rank_0.code == 0 and results(out) != expected
            )  # rank 0 may end well where rank 1 had done all its work
            last_epoch = max((int(p.parent.name[-5:]) for p in out.rglob("checkpoint-*/state.json")), default=0)
            rank_0_again, rank_1_again = train(out)
            is_equal = (rank_0_again.code, rank_1_again.code) == (0, 0) and results(out) == expected
            resumed = not last_epoch or f"resumes after epoch {last_epoch} " in rank_0_again.text
            row.judge(
                str(moment),
                ("unclear", "rank 0 waits for a rank that is gone") if rank_0.code is None else None,
                ("wrong", "rank 0 ended well without rank 1's work") if early else None,
                None if is_equal else ("wrong", f"not what an undisturbed training makes: {rank_0_again.text[-300:]}"),
                None if resumed else ("lost", f"epoch {last_epoch} was kept, and the second run began anew"),
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
        for marker in ("", "base: accuracy"):
            micro.start_afresh(root, "reward_lora")
            child = forked.start(lambda: micro.act("reward_lora"), root)
            struck = kill_rank_1_of(child, marker)
            result = child.wait(LIMIT_S)
            second_run = micro.run(root, "reward_lora")
            is_equal = second_run.code == 0 and micro.result(root, "reward_lora")[0] == expected
            row.judge(
                f"after {marker!r}",
                None if struck else ("unclear", "there was no rank 1"),
                ("unclear", "rank 0 hangs") if result.code is None else None,
                ("wrong", "rank 0 ended well") if result.code == 0 else None,
                unclear(result.text, ["rank 1"]),
                None
                if is_equal
                else ("wrong", f"the second run ends with {second_run.code}: {second_run.text[-1500:]}"),
            )


def kill_rank_1_of(launcher: forked.Child, marker: str) -> bool:
    """Kill the second rank of a training when the first one has printed something."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        for child in psutil.Process(launcher.pid).children():
            with suppress(psutil.Error):  # it came or went while it was looked at
                if child.environ().get("RANK") == "1" and marker in launcher.log.read_text(errors="replace"):
                    child.kill()
                    return True
        time.sleep(0.01)
    return False
