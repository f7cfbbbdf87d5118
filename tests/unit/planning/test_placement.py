"""Memory of each GPU and of the machine: `paco check` adds it up, and fails if it cannot fit."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paco_core.config import profiles
from paco_core.config.execution import put
from paco_core.config.params import parse
from paco_core.planning import placement
from paco_core.planning.costs import stage_costs
from paco_core.runtime import gpus
from paco_core.runtime.stage import BASE_GB, LIGHT_GB, Stage
from paco_core.stages import declared

pytestmark = pytest.mark.slow

Description = tuple[list[str], list[str]]


@pytest.fixture
def described(repository: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Description]:
    def tell(profile: str, visible: str = "", **changes: Any) -> Description:
        monkeypatch.setenv(gpus.VISIBLE, visible)
        tree = profiles.resolve(repository, profile)
        for key, value in changes.items():
            put(tree, key.replace("__", "."), value)
        params = parse(tree)
        stages = declared(repository)
        return placement.described(params, repository, stages, stage_costs(stages, params, repository))

    return tell


def test_eight_gpus_are_divided_as_in_the_paper(described: Callable[..., Description]) -> None:
    remarks, problems = described("paper", "0,1,2,3,4,5,6,7", execution__devices__memory_gb=80)
    assert remarks == ["GPUs: stages 0, 1, 2, 3, 4, 5, 6 of 80 GB, reward servers 7"] and problems == []
    remarks, problems = described("paper", "4,5", execution__devices__memory_gb=80, execution__devices__gpus=[5, 4])
    assert remarks == ["GPUs: stages 5 of 80 GB, reward servers 4"] and problems == []
    _, (problem,) = described("paper", "4,5", execution__devices__gpus=[4, 6])
    assert problem == "execution.devices.gpus: no GPU 6 is visible; there are: 4, 5"


def test_what_does_not_fit_names_what_to_change(described: Callable[..., Description]) -> None:
    _, problems = described("paper", "0,1", execution__devices__memory_gb=48)
    trained = {problem.partition(":")[0]: problem for problem in problems}
    assert {"policies@qwen_edit", "gedit"} == set(trained)
    assert "about 61 GB on a GPU of 48 GB; lower policies.defaults.rollout_batch" in trained["policies@qwen_edit"]
    assert described("published", "0,1", execution__devices__memory_gb=48)[1] == []
    _, (problem,) = described("published", "0,1", execution__devices__memory_gb=38, policies__defaults__eval_batch=16)
    assert problem.startswith("policies@flux_t2is: about 39 GB on a GPU of 38 GB; ")


def test_one_gpu_is_shared_with_the_server(described: Callable[..., Description]) -> None:
    """vLLM takes its share whatever it needs; the embedded engine what it needs."""
    assert described("one_gpu", "0", execution__devices__memory_gb=80) == (
        ["GPUs: stages 0 of 80 GB, reward servers share them"],
        [],
    )
    for profile, memory in (("klein", 24), ("klein_48gb", 48), ("characters", 24), ("characters", 80)):
        assert described(profile, "0", execution__devices__memory_gb=memory)[1] == []
    assert described("gpu_24gb", "0,1", execution__devices__memory_gb=24)[1] == []
    _, problems = described("published", "0", execution__devices__memory_gb=80)
    assert [problem.partition(":")[0] for problem in problems] == ["policies@flux_t2is", "t2is"]
    assert "about 35 GB and 68 GB of the reward's server" in problems[0]
    assert "lower execution.serving.gpu_share, or give the server a separate GPU" in problems[0]
    _, (problem, *_) = described("one_gpu", "0", execution__devices__memory_gb=40)
    assert problem.startswith("policies@flux_t2is: about 33 GB and 19 GB of the reward's server on a GPU of 40 GB")


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/quickstart.md"])
def test_the_demo_fits_the_memory_that_a_page_names(repository: Path, page: str) -> None:
    match = re.search(r"([\d.]+) GB of memory", (repository / page).read_text())
    assert match is not None
    costs = stage_costs(declared(repository), profiles.read(repository, "storybook"), repository)
    assert 2 * max(cost.memory_gb for cost in costs.values() if cost.device == "cpu") <= float(match[1])


def test_a_stage_that_loads_the_recogniser_or_gives_no_estimate_keeps_that_of_torch(repository: Path) -> None:
    costs = stage_costs({**declared(repository), "own": Stage()}, profiles.read(repository, "storybook"), repository)
    assert {costs[name].memory_gb for name in ("annotations", "cot_labels", "own")} == {BASE_GB}
    costs = stage_costs(declared(repository), profiles.read(repository, "paper"), repository)
    assert {costs[name].memory_gb for name in ("annotations", "cot_labels", "pairs", "report")} == {LIGHT_GB}
