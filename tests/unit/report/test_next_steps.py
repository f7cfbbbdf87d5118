"""Next steps fit the profile, the world and the GPUs of the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config import profiles
from paco_core.config.params import Params, load
from paco_core.report.next_steps import GPU_PROFILES, next_steps
from paco_core.runtime.nvidia_smi import Gpu


@pytest.fixture
def params(repository: Path) -> Params:
    return load(repository / "params.yaml")


def commands(params: Params, gpus: list[Gpu], example: str | None = None) -> list[str]:
    return [command for step in next_steps(params, gpus, example).steps for command in step.commands]


def test_a_machine_without_a_gpu_is_offered_no_training_on_one(params: Params) -> None:
    lines = commands(params, [])
    assert not [line for line in lines if line.startswith("paco profile use")]
    assert "paco check --profile klein" in lines


@pytest.mark.parametrize(("memory", "profile"), [(24.0, "klein"), (48.0, "klein_48gb"), (80.0, "one_gpu")])
def test_a_gpu_gets_the_largest_profile_that_it_holds(params: Params, memory: float, profile: str) -> None:
    lines = commands(params, [Gpu("0", "GPU-0", 16.0), Gpu("1", "GPU-1", memory)])
    assert [line for line in lines if line.startswith("paco profile use")] == [f"paco profile use {profile}"]


def test_a_run_with_too_little_data_is_offered_the_full_demo(params: Params) -> None:
    smoke = params.model_copy(update={"profile": "smoke"})
    lines = commands(smoke, [], "paco paint x")
    assert "paco profile use storybook" in lines
    assert "paco paint x" not in lines  # the gain of a run that learns nothing is chance
    assert "paco profile use storybook" not in commands(params, [])


def test_the_profiles_exist_and_the_example_comes_first(params: Params, repository: Path) -> None:
    assert set(GPU_PROFILES.values()) <= set(profiles.available(repository))
    assert commands(params, [], "paco paint x")[0] == "paco paint x"
