"""The process of a Dagster run, killed by signal 9: the next run makes the same outs, and Dagster shows those."""

from __future__ import annotations

import random
from pathlib import Path

import dagster as dg
import pytest

import dvc_graphs as graphs
from dagster_dvc import DvcProject
from tests.faults.verdicts import Breach, Ledger
from tests.support import forked

pytestmark = [pytest.mark.faults, pytest.mark.timeout(500)]
GRAPH = """
stages:
  a: {cmd: python put.py a.out hello, deps: [put.py], outs: [a.out]}
  b: {cmd: python put.py b.out a.out, deps: [put.py, a.out], outs: [b.out]}
"""


def materialise(root: Path, home: Path) -> None:
    """A whole run in this process, as the worker of a run does."""
    defs = graphs.definitions(root)
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        result = dg.materialize(list(defs.assets), resources=defs.resources, instance=instance, raise_on_error=False)
    raise SystemExit(0 if result.success else 1)


def data_versions(home: Path) -> dict[str, str]:
    """The data version of the last materialisation of each asset."""
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        events = {name: instance.get_latest_materialization_event(dg.AssetKey(name)) for name in "ab"}
    materializations = {name: event.asset_materialization for name, event in events.items() if event}
    return {
        name: (materialization.tags or {}).get("dagster/data_version", "")
        for name, materialization in materializations.items()
        if materialization
    }


def test_the_run_worker(tmp_path: Path, ledger: Ledger) -> None:
    graphs.definitions(graphs.make(tmp_path / "imported", GRAPH))
    root, home = graphs.make(tmp_path / "whole", GRAPH), tmp_path / "home"
    home.mkdir()
    undisturbed = forked.run(lambda: materialise(root, home), root, count=True)
    assert undisturbed.code == 0, undisturbed.text
    lock, versions = (root / "dvc.lock").read_bytes(), data_versions(home)
    with ledger.row("signal 9", "worker of a Dagster run") as row:
        for number, moment in enumerate(undisturbed.moments(random.Random("dagster"), 8)):
            root, home = graphs.make(tmp_path / f"killed{number}", GRAPH), tmp_path / f"home{number}"
            home.mkdir()
            first = forked.run(lambda root=root, home=home: materialise(root, home), root, moment)
            if first.killed:
                row.judge(str(moment), ended_otherwise(root, home, lock, versions))


def ended_otherwise(root: Path, home: Path, lock: bytes, versions: dict[str, str]) -> Breach:
    second_run = forked.run(lambda: materialise(root, home), root)
    if second_run.code != 0:
        return "unclear", f"the second run fails or hangs: {second_run.text[-400:]}"
    if (root / "dvc.lock").read_bytes() != lock or (root / "b.out").read_text() != "hello":
        return "wrong", "other outs than an undisturbed run's"
    if data_versions(home) != versions:
        return "wrong", f"Dagster shows {data_versions(home)}, not {versions}"
    state = DvcProject(root).lock()
    return None if set(state) == {"a", "b"} else ("lost", "a finished stage is not in dvc.lock")
