"""Figures on their way to MLflow, with the writer or the deliverer killed: each arrives, and once.

A killed MLflow server is that of tests/e2e/test_mlflow_outage.py.
"""

from __future__ import annotations

import os
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import mlflow
import mlflow.store.tracking.sqlalchemy_store  # what a fork needs, before the first one
import pytest
from PIL import Image

from paco_core.runtime.tracking import open_run, send_left_over
from paco_core.runtime.tracking.journal import journals
from tests.faults import micro
from tests.faults.verdicts import Breach, Ledger
from tests.support import forked

pytestmark = pytest.mark.thorough

STEPS = 25


def project(tmp_path: Path, template: Path, number: int) -> Path:
    root = tmp_path / str(number)
    root.mkdir()
    shutil.copy(template, root / "mlflow.db")
    return root


def write(root: Path) -> None:
    """A run of some figures; each is written down in ``acknowledged`` once the tracker has taken it."""
    micro.quiet_tracking()
    descriptor = os.open(root / "acknowledged", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    with open_run(root, "faults", "run", {}, print_line=print) as tracker:
        for step in range(STEPS):
            tracker.metrics({"loss": step / 7}, step)
            os.write(descriptor, f"{step}\n".encode())
        tracker.image(Image.new("RGB", (4, 4)), "picture")
        tracker.text("a word", "word.txt")


def stored(root: Path) -> tuple[Counter[int], str, int]:
    """How often each step is in the store, the run's status, and how many runs there are."""
    client = mlflow.MlflowClient(f"sqlite:///{root / 'mlflow.db'}")
    runs = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    if not runs:
        return Counter(), "none", 0
    history = client.get_metric_history(runs[0].info.run_id, "loss")
    return Counter(point.step for point in history), str(runs[0].info.status), len(runs)


def miscounted(root: Path, acknowledged: set[int]) -> Breach:
    """Figures that were taken and are not there, or are there twice."""
    steps, status, runs = stored(root)
    if missing := acknowledged - set(steps):
        return "lost", f"{len(missing)} of {len(acknowledged)} figures, e.g. of step {min(missing)}"
    if runs > 1 or any(count > 1 for count in steps.values()):
        return "doubled", f"{runs} runs, {max(steps.values(), default=0)} times the same figure"
    if runs and status not in ("FINISHED", "KILLED"):
        return "wrong", f"the run stands as {status}"
    return None


def delivery_breach(root: Path) -> Breach:
    """Send what is left, as the next stage or `paco sync` does."""
    delivery = send_left_over(root)
    return ("unclear", delivery.text()) if delivery.waiting or delivery.problems else None


def acknowledged(root: Path) -> set[int]:
    file = root / "acknowledged"
    return {int(line) for line in file.read_text().split()} if file.is_file() else set()


def test_the_writer(tmp_path: Path, mlflow_template: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    whole_root = project(tmp_path, mlflow_template, 0)
    undisturbed = forked.run(lambda: write(whole_root), whole_root, count=True)
    assert undisturbed.code == 0, undisturbed.text
    with ledger.row("signal 9", "stage, while it reports figures") as row:
        for number, moment in enumerate(undisturbed.moments(random.Random("writer"), tries(16, 3)), start=1):
            root = project(tmp_path, mlflow_template, number)
            result = forked.run(lambda root=root: write(root), root, moment)
            if result.killed:
                row.judge(str(moment), delivery_breach(root), miscounted(root, acknowledged(root)))


def test_the_deliverer(tmp_path: Path, mlflow_template: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    def make_journal(number: int) -> Path:
        root = project(tmp_path, mlflow_template, number)
        assert forked.run(lambda: write(root), root).code == 0
        return root

    root = make_journal(0)
    undisturbed = forked.run(lambda: send_left_over(root), root, count=True)
    assert undisturbed.code == 0 and set(stored(root)[0].values()) == {1}, undisturbed.text
    with ledger.row("signal 9", "process that sends figures") as row:
        for number, moment in enumerate(undisturbed.moments(random.Random("sender"), tries(14, 2)), start=1):
            root = make_journal(number)
            result = forked.run(lambda root=root: send_left_over(root), root, moment)
            if result.killed:
                left = ("wrong", "a journal is left") if delivery_breach(root) is None and journals(root) else None
                row.judge(str(moment), delivery_breach(root), miscounted(root, set(range(STEPS))), left)
