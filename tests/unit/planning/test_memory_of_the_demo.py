"""What `paco check` estimates for the demo is what the documentation asks for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from paco_core.config import profiles
from paco_core.planning.costs import stage_costs
from paco_core.runtime.stage import BASE_GB, LIGHT_GB, Stage
from paco_core.stages import declared

#: The peak is the process's own: what the system counts for a child begins with its parent's.
MEASURED = """
import re, sys
from pathlib import Path
from paco_core.cli.commands import main
main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/five-minutes.md"])
def test_the_demo_fits_the_memory_that_a_page_names(repository: Path, page: str) -> None:
    named = re.search(r"([\d.]+) GB of memory; no GPU", (repository / page).read_text())
    assert named is not None
    costs = stage_costs(declared(repository), profiles.read(repository, "storybook"), repository)
    assert 2 * max(cost.memory_gb for cost in costs.values() if cost.device == "cpu") <= float(named[1])


@pytest.mark.slow
@pytest.mark.parametrize("stage", ["prompts", "edit_prompts"])
def test_a_stage_without_torch_takes_less_than_is_estimated(project: Path, stage: str) -> None:
    estimated = stage_costs(declared(project), profiles.read(project, "storybook"), project)[stage].memory_gb
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, "run", stage], env={**os.environ, "PACO_TRACKING": "off"},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    peak = int(done.stdout.split()[-1]) * 1024 / 1e9
    assert 0.03 < peak < estimated == LIGHT_GB < BASE_GB


def test_a_stage_that_loads_the_recogniser_or_gives_no_estimate_keeps_that_of_torch(repository: Path) -> None:
    costs = stage_costs({**declared(repository), "own": Stage()}, profiles.read(repository, "storybook"), repository)
    assert {costs[name].memory_gb for name in ("annotations", "cot_labels", "own")} == {BASE_GB}
    costs = stage_costs(declared(repository), profiles.read(repository, "paper"), repository)
    assert {costs[name].memory_gb for name in ("annotations", "cot_labels", "pairs", "report")} == {LIGHT_GB}
