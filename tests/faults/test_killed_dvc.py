"""DVC, killed by signal 9 at seeded moments of a run: the next one ends with the same outs and the same dvc.lock.

DVC writes dvc.lock and its own locks in place: a kill may leave half of one. The next run is that of `make demo`; where
its error names dvc.lock, the test does what the error says first.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import dvc_graphs as graphs
from dvc_project.errors import DvcProjectError
from dvc_project.lockfile import Lock
from dvc_project.repro import reproduce
from tests.faults.verdicts import Ledger, Outcome
from tests.support import REPOSITORY, forked

Breach = tuple[Outcome, str] | None
LEFT = re.compile(r"\.[\w-]{22}\.tmp")
OUTS = {"chain": ["a.out", "b.out", "c.out"], "fan": ["tiles", "shiny", "strips", "top"]}


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

    code = main(["repro"])
    raise SystemExit(code)


def _exit(code: int) -> None:
    raise SystemExit(code)


def content(root: Path, shape: str) -> dict[str, Any]:
    """The outs, and dvc.lock but for the order in which stages that run together came to their ends.

    A file that DVC was laying out when it was killed stays under a name that the project's .dvcignore leaves out.
    """
    places = [root / name for name in OUTS[shape]]
    files = [path for place in places for path in ([place] if place.is_file() else sorted(place.rglob("*")))]
    found = {
        str(path.relative_to(root)): path.read_bytes()
        for path in files
        if path.is_file() and not LEFT.fullmatch(path.name)
    }
    return {**found, "dvc.lock": YAML(typ="safe").load(root / "dvc.lock")}


def test_short(tmp_path: Path, ledger: Ledger) -> None:
    killed(tmp_path, ledger, "chain", 2)


@pytest.mark.faults
@pytest.mark.parametrize(("shape", "number"), [("chain", 20), ("fan", 8)])
def test_dvc_repro(tmp_path: Path, ledger: Ledger, shape: str, number: int) -> None:
    killed(tmp_path, ledger, shape, number)


def made(shape: str, root: Path) -> Path:
    """A project of this shape, with the .dvcignore of this one."""
    graphs.SHAPES[shape][0](root)
    shutil.copy(REPOSITORY / ".dvcignore", root)
    return root


def killed(tmp_path: Path, ledger: Ledger, shape: str, number: int) -> None:
    root = made(shape, tmp_path / "whole")
    whole = forked.run(repro, root, count=True)
    assert whole.code == 0, whole.text
    expected = content(root, shape)
    with ledger.row("signal 9", "dvc repro") as row:
        for moment in whole.moments(random.Random(f"dvc {shape}"), number):
            root = made(shape, tmp_path / "killed")
            first = forked.run(repro, root, moment)
            if first.killed:
                row.judge(f"{shape} {moment}", ended_otherwise(root, shape, expected))
            shutil.rmtree(root)


def ended_otherwise(root: Path, shape: str, expected: dict[str, Any]) -> Breach:
    try:
        Lock.read(root)
    except DvcProjectError as error:
        assert "move it away" in str(error)
        (root / "dvc.lock").unlink()
    again = forked.run(lambda: _exit(reproduce(root, 2)), root)
    if again.code is None:
        return "unclear", "the second run hangs"
    if again.code:
        return "unclear", f"the second run fails: {again.text[-400:]}"
    found = content(root, shape)
    if found != expected:
        names = [name for name in {*found, *expected} if found.get(name) != expected.get(name)]
        return "wrong", f"others than an undisturbed run's: {', '.join(sorted(names))}"
    return None
