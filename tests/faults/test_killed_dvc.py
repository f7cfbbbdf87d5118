"""DVC, killed by signal 9 at seeded moments of a run: the next one ends with the same outs and the same dvc.lock.

DVC writes dvc.lock and its own locks in place: a kill may leave half of one. The next run is that of `make demo`; where
its error names dvc.lock, the test does what the error says first.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import dvc_graphs as graphs
from dvc_project.errors import DvcProjectError
from dvc_project.lockfile import Lock
from dvc_project.repro import reproduce
from tests.faults.verdicts import Breach, Ledger
from tests.support import REPOSITORY, forked

pytestmark = pytest.mark.thorough

OUTS = ("a.out", "b.out", "c.out")


@pytest.fixture(scope="module", autouse=True)
def imported() -> None:
    """What a fork of DVC needs, and ``python`` on the path of its stages."""
    import dvc.cli
    import dvc.commands.repro
    import dvc.repo
    import dvc.repo.reproduce  # noqa: F401

    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])


def repro() -> None:
    from dvc.cli import main

    sys.exit(main(["repro"]))


def content(root: Path) -> dict[str, Any]:
    """The outs, and dvc.lock but for the order in which stages that run together came to their ends."""
    outs = {name: (root / name).read_bytes() for name in OUTS}
    return {**outs, "dvc.lock": YAML(typ="safe").load(root / "dvc.lock")}


def make_project(root: Path) -> Path:
    """A chain of stages, with the .dvcignore of this project."""
    graphs.make_chain(root)
    shutil.copy(REPOSITORY / ".dvcignore", root)
    return root


def test_dvc_repro(tmp_path: Path, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    root = make_project(tmp_path / "whole")
    undisturbed = forked.run(repro, root, count=True)
    assert undisturbed.code == 0, undisturbed.text
    expected = content(root)
    with ledger.row("signal 9", "dvc repro") as row:
        for moment in undisturbed.moments(random.Random("dvc chain"), tries(20, 2)):
            root = make_project(tmp_path / "killed")
            if forked.run(repro, root, moment).killed:
                row.judge(str(moment), ended_otherwise(root, expected))
            shutil.rmtree(root)


def ended_otherwise(root: Path, expected: dict[str, Any]) -> Breach:
    try:
        Lock.read(root)
    except DvcProjectError as error:
        assert "move it away" in str(error)
        (root / "dvc.lock").unlink()
    second_run = forked.run(lambda: sys.exit(reproduce(root, 2)), root)
    if second_run.code != 0:
        return "unclear", f"the second run fails or hangs: {second_run.text[-400:]}"
    return None if content(root) == expected else ("wrong", "others than an undisturbed run's")
