"""Which launcher the environment names; Ray itself is in test_launchers_ray.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paco_core import stages
from paco_core.config.params import ParamsError
from paco_core.io.files import DataError
from paco_core.runtime import launchers
from paco_core.runtime.launchers import accelerated, ray_data, rendezvous
from tests.support import children
from tests.support.launcher_workers import Square


def test_local_is_the_default_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launchers.VARIABLE, raising=False)
    made = list(launchers.spread([3, 1, 2], Square))
    assert made == [(0, (9, os.getpid())), (1, (1, os.getpid())), (2, (4, os.getpid()))]
    monkeypatch.setenv(launchers.VARIABLE, "")
    assert launchers.chosen() == "local"


def test_an_unknown_launcher_is_refused_with_the_valid_ones(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv(launchers.VARIABLE, "rays")
    with pytest.raises(ParamsError, match="PACO_LAUNCHER=rays: no such launcher; valid ones: local, accelerate, ray"):
        stages.run_stage("prompts", None, project)
    assert not (project / "data").exists()


@pytest.mark.slow
def test_ray_is_not_imported_unless_it_is_chosen(repository: Path) -> None:
    code = """
import sys
from tests.support.launcher_workers import Square
from paco_core import stages
from paco_core.runtime import launchers
from paco_core.stages import annotations, cot_labels, grids
from paco_core.cli import score_table
from paco_core.data.llm import openai_chat
list(launchers.spread([1], Square))
assert "ray" not in sys.modules
"""
    environment = {**os.environ, "PYTHONPATH": children.PATH, launchers.VARIABLE: "local"}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launchers.VARIABLE, "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(launchers.spread([], Square)) == [], "nothing to do needs nobody"
    with pytest.raises(DataError, match=r"needs Ray .*pip install 'paco-rl\[ray\]'"):
        list(launchers.spread([1], Square))


class SlowRay:
    """A Ray whose node gets up at the third try, or never, or that refuses."""

    def __init__(self, *errors: Exception) -> None:
        self.errors, self.asked, self.ended = list(errors), 0, 0

    def init(self, _address: str, **_given: object) -> None:
        self.asked += 1
        if self.errors:
            raise self.errors.pop(0)

    def shutdown(self) -> None:
        self.ended += 1


def test_a_ray_that_starts_slowly_is_tried_again_and_one_that_refuses_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    late = RuntimeError("The current node timed out during startup.")
    slow = SlowRay(late, late)
    ray_data._start(slow, "local", {})
    assert (slow.asked, slow.ended) == (3, 2), "what was left of a start is ended before the next"
    for address, error in (("local", ValueError("no such setting")), ("10.0.0.1:6379", late)):
        wrong = SlowRay(error, late)
        with pytest.raises(DataError, match=rf"no Ray cluster at {address} \({error}\); RAY_ADDRESS chooses it"):
            ray_data._start(wrong, address, {})
        assert wrong.asked == 1
    monkeypatch.setattr(ray_data, "START_WITHIN_S", -1.0)
    with pytest.raises(DataError, match="timed out"):
        ray_data._start(SlowRay(late, late), "local", {})


def join_launch(monkeypatch: pytest.MonkeyPatch, rank: int, world_size: int) -> None:
    """What torchrun sets for a process of one machine."""
    values = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size, "MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    for name, value in values.items():
        monkeypatch.setenv(name, str(value))


@pytest.mark.parametrize(
    "variables",
    [
        {"RANK": "1"},
        {"WORLD_SIZE": "2"},
        {"LOCAL_RANK": "1"},
        {"RANK": "one"},
        {"RANK": "1", "WORLD_SIZE": "2"},
        {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ],
)
def test_a_rank_that_no_launcher_gave_is_refused(
    monkeypatch: pytest.MonkeyPatch, project: Path, variables: dict[str, str]
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=f"unset .*{next(iter(variables))}"):
        stages.run_stage("prompts", None, project)


@pytest.mark.parametrize("variables", [{}, {"SLURM_PROCID": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": ""}])
def test_a_process_that_is_the_only_one_has_no_rank(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert rendezvous.launched_rank() is None


def test_a_further_rank_of_what_runs_in_one_process_is_refused(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    """It would end at once, as if the stage had run."""
    join_launch(monkeypatch, 1, 2)
    assert rendezvous.launched_rank() == 1
    with pytest.raises(DataError, match="RANK=1"):
        stages.run_stage("prompts", None, project)


def test_accelerate_that_gives_no_rank_is_not_started_again(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    """distributed_type: NO starts the stage as it is, which would start accelerate, and so on."""
    monkeypatch.setenv(accelerated.STARTED, "1")
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("started again"))
    with pytest.raises(DataError, match=r"cpu.yaml.*distributed_type"):
        accelerated.replace_process("policies", "flux_t2is", repository, "cpu")


@pytest.mark.slow
def test_accelerate_takes_the_place_of_a_training_and_of_nothing_else(
    monkeypatch: pytest.MonkeyPatch, project: Path, repository: Path
) -> None:
    started: list[list[str]] = []

    class Replaced(Exception):
        pass

    def execve(_path: str, command: list[str], environment: dict[str, str]) -> None:
        assert accelerated.STARTED in environment
        started.append(command)
        raise Replaced

    monkeypatch.setattr(os, "execve", execve)
    monkeypatch.setenv(launchers.VARIABLE, "accelerate")
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv(accelerated.CONFIG, "launch/gpu.yaml")
    with pytest.raises(
        DataError, match=r"launch/gpu.yaml: no such file; PACO_ACCELERATE_CONFIG names .*launch/cpu.yaml"
    ):
        stages.run_stage("policies", "flux_t2is", project)
    monkeypatch.delenv(accelerated.CONFIG)
    with pytest.raises(Replaced):
        stages.run_stage("policies", "flux_t2is", project)
    config = str(repository / "paco_core/launch/cpu.yaml")
    head = [sys.executable, "-m", "paco_core.runtime.launchers.accelerated", "--config_file", config]
    assert started == [[*head, "-m", "paco_core", "run", "policies", "--item", "flux_t2is"]]
    with pytest.raises(Replaced):
        stages.run_stage("reward_lora", None, project)
    assert started.pop() == [*head, "-m", "paco_core", "run", "reward_lora"]
    stages.run_stage("prompts", None, project)  # runs here
    assert (project / "data/prompts/prompts.jsonl").is_file() and len(started) == 1
    join_launch(monkeypatch, 0, 2)  # a rank that accelerate started trains itself: it lacks its inputs here
    with pytest.raises(DataError, match="is missing"):
        stages.run_stage("policies", "flux_t2is", project)
    assert len(started) == 1
    assert accelerated.command("policies", None, repository, "cuda")[4] == str(repository / "paco_core/launch/ddp.yaml")
