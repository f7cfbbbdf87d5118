"""Launchers by environment variable. The tests of Ray itself are in test_launchers_ray.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from paco_core import stages
from paco_core.config.params import ParamsError
from paco_core.io.files import DataError
from paco_core.runtime import launchers
from paco_core.runtime.launchers import accelerated, rendezvous
from tests.support.launcher_workers import Square


def test_local_is_the_default_and_keeps_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(launchers.VARIABLE, raising=False)
    results = list(launchers.map_pieces([3, 1, 2], Square))
    assert results == [(0, (9, os.getpid())), (1, (1, os.getpid())), (2, (4, os.getpid()))]
    monkeypatch.setenv(launchers.VARIABLE, "")
    assert launchers.current_launcher() == "local"


def test_an_unknown_launcher_is_refused_with_the_valid_ones(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setenv(launchers.VARIABLE, "rays")
    with pytest.raises(ParamsError, match="PACO_LAUNCHER=rays"):
        stages.run_stage("prompts", None, project)
    assert not (project / "data").exists()


def test_without_ray_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(launchers.VARIABLE, "ray")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert list(launchers.map_pieces([], Square)) == [], "nothing to do needs nobody"
    with pytest.raises(DataError, match=r"paco-rl\[ray\]"):
        list(launchers.map_pieces([1], Square))


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
        {"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
    ],
)
def test_a_rank_that_no_launcher_gave_is_refused(
    monkeypatch: pytest.MonkeyPatch, project: Path, variables: dict[str, str]
) -> None:
    for environment in ({}, {"SLURM_PROCID": "1"}, {"RANK": "0", "WORLD_SIZE": "1"}, {"RANK": ""}):
        with monkeypatch.context() as patch:
            for name, value in environment.items():
                patch.setenv(name, value)
            assert rendezvous.launched_rank() is None
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(DataError, match=next(iter(variables))):
        stages.run_stage("prompts", None, project)


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


def test_accelerate_starts_the_stage_with_the_configuration_of_its_device_or_a_chosen_one(
    monkeypatch: pytest.MonkeyPatch, repository: Path
) -> None:
    folder = repository / "paco_core/launch"
    for stage, item, device, name in (("policies", "flux_t2is", "cpu", "cpu"), ("reward_lora", None, "cuda", "ddp")):
        head = [sys.executable, "-m", "paco_core.runtime.launchers.accelerated", "--config_file"]
        words = ["-m", "paco_core", "run", stage, *(["--item", item] if item else [])]
        assert accelerated.launch_command(stage, item, repository, device) == [
            *head,
            str(folder / f"{name}.yaml"),
            *words,
        ]
    monkeypatch.setenv(accelerated.CONFIG, "launch/gpu.yaml")
    with pytest.raises(DataError, match="launch/gpu.yaml"):
        accelerated.launch_command("policies", "flux_t2is", repository, "cpu")
