"""examples/grpo_loop.py: it runs as a reader would run it, and its rewards rise."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import runpy, sys
runpy.run_path("examples/grpo_loop.py", run_name="__main__")
print(*sorted({"dagster", "dvc", "mlflow", "pipelines"} & set(sys.modules)))
"""


@pytest.mark.slow
def test_the_rewards_of_the_loop_rise_the_same_in_every_run(repository: Path) -> None:
    completed = subprocess.run([sys.executable, "-c", RUN], cwd=repository, capture_output=True, text=True)
    assert completed.returncode == 0, completed.stderr[-2000:]
    *lines, orchestrators = completed.stdout.splitlines()
    assert orchestrators == ""
    rows = [{name: float(value) for name, value in re.findall(r"(follows|consistency) (\S+)", line)} for line in lines]
    assert len(rows) == 7
    for name in ("follows", "consistency"):
        assert rows[-1][name] > rows[0][name] + 0.15, completed.stdout
    code = "import runpy; runpy.run_path('examples/grpo_loop.py')['train'](epochs=10)"
    second_run = subprocess.run([sys.executable, "-c", code], cwd=repository, capture_output=True, text=True)
    assert second_run.stdout.splitlines() == lines[:2]
