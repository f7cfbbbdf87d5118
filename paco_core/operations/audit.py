"""Does the recorded graph still give the recorded bytes? Cheap stages run again, aside, and md5s are compared.

Each stage runs in a folder of its own below ``.paco/audit`` that sees the project's code and inputs through
links: neither the workspace nor ``dvc.lock`` is touched, and no cache of an earlier run helps.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from dvc_project.hashing import Workspace
from dvc_project.lockfile import Entry, Lock
from dvc_project.project import ResolvedStage, stages_of
from paco_core.io import paths
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError
from paco_core.runtime.code.inputs import present_inputs
from paco_core.runtime.code.stage_code import FOLDER as CODES
from paco_core.runtime.code.stage_code import StageCodes, is_code, read_recorded_code
from paco_core.runtime.tracking import open_run

FOLDER = Path(".paco") / "audit"
ABOUT = "Cheap stages run again, aside: whether they still give the bytes that dvc.lock records."
#: Its page says when it was made and how long stages took.
NEVER_EQUAL = {paths.REPORT.name}


@dataclass(frozen=True)
class Audited:
    """One out of one stage: as recorded, and as made again (None when it was not made)."""

    stage: str
    out: str
    recorded: str
    again: str | None

    @property
    def agrees(self) -> bool:
        return self.recorded == self.again


@dataclass(frozen=True)
class Audit:
    """Outs that were made again, and stages that were left out, with the reason."""

    outs: tuple[Audited, ...]
    skipped: dict[str, str]
    failed: dict[str, str]  # stage -> end of what it said

    @property
    def check(self) -> CheckReport:
        different = [f"{a.out}: recorded {a.recorded}, made again {a.again}" for a in self.outs if not a.agrees]
        problems = [*different, *(f"{stage} failed: {text}" for stage, text in self.failed.items())]
        stages = len({a.stage for a in self.outs})
        good = f"{stages} stages reproduced the recorded bytes; {len(self.skipped)} were skipped"
        return CheckReport(
            "md5s_agree",
            not problems,
            "ERROR",
            "; ".join(problems) or good,
            {"stages": stages, "outs": len(self.outs), "different": len(different), "left_out": len(self.skipped)},
        )


def to_audit(root: Path, lock: Lock, only: Collection[str] = ()) -> tuple[list[Entry], dict[str, str]]:
    """Recorded stages that read what they are recorded to have read, and the rest with reasons.

    Without ``only`` those that need a GPU pool are left out.
    """
    chosen, skipped, codes = [], {}, StageCodes.present(root)
    for label, entry in lock.entries.items():
        stage = codes.graph.get(label)
        if only and label not in only:
            skipped[label] = "was not selected"
        elif stage is None:
            skipped[label] = "no longer in dvc.yaml"
        elif stage.dagster.get("pool") and not only:
            skipped[label] = f"needs the pool {stage.dagster['pool']}"
        elif label in NEVER_EQUAL:
            skipped[label] = "holds times"
        elif not _reads_the_same(root, entry, stage, codes):
            skipped[label] = "its code, parameters or inputs have changed since"
        else:
            chosen.append(entry)
    return chosen, skipped


def _reads_the_same(root: Path, entry: Entry, stage: ResolvedStage, codes: StageCodes) -> bool:
    code = codes.of(stage.group, stage.item) if any(map(is_code, stage.deps)) else None
    inputs = present_inputs(root, entry.stage, code)
    return inputs is not None and inputs.digest == entry.inputs.digest


def audit(root: Path, only: Collection[str] = (), log: Callable[[str], None] = lambda _line: None) -> Audit:
    """Run stages that need no GPU (or those named) again and compare; an MLflow run keeps the result.

    Raises:
        DataError: when ``dvc.lock`` records no stage of a name.
    """
    lock = Lock.read(root)
    if unknown := set(only) - lock.entries.keys():
        raise DataError(f"{', '.join(sorted(unknown))}: not recorded in dvc.lock, which has {', '.join(lock.entries)}")
    entries, skipped = to_audit(root, lock, only)
    results: list[Audited] = []
    failed: dict[str, str] = {}
    with open_run(root, "paco/audit", "audit", {}, about=ABOUT) as tracker:
        for entry in entries:
            log(f"{entry.stage} runs again")
            entry_results, problem = _run_again(root, entry)
            results += entry_results
            if problem:
                failed[entry.stage] = problem
        result = Audit(tuple(results), skipped, failed)
        tracker.metrics({name: float(value) for name, value in result.check.metadata.items()})
        tracker.tags({"paco.check": result.check.description, "paco.check.passed": str(result.check.passed).lower()})
    return result


def _run_again(root: Path, entry: Entry) -> tuple[list[Audited], str | None]:
    outs = _data_outs(root, entry)
    aside = root / FOLDER / entry.stage.replace("@", "-")
    shutil.rmtree(aside, ignore_errors=True)
    _lay_out(root, aside, entry)
    command = shlex.split(entry.command)
    if command[0] == "python":
        command[0] = sys.executable
    path = os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])
    quiet = {"PACO_TRACKING": "off", "PYTHONPATH": path}
    env = {k: v for k, v in os.environ.items() if not k.startswith("DAGSTER_PIPES")} | quiet
    completed = subprocess.run(command, cwd=aside, env=env, capture_output=True, text=True)
    disk = Workspace(aside)
    results = [Audited(entry.stage, out, entry.outs[out], disk.md5(out)) for out in outs]
    problem = None if completed.returncode == 0 else completed.stderr.strip()[-1000:]
    if problem is None and all(a.agrees for a in results):
        shutil.rmtree(aside, ignore_errors=True)  # what differs is kept, to be looked at
    return results, problem


def _data_outs(root: Path, entry: Entry) -> list[str]:
    """Outs without metrics and plots, which may hold seconds."""
    stage = stages_of(root).get(entry.stage)
    figures = stage.figures if stage else ()
    return [out for out in entry.outs if out not in figures and "/metrics/" not in out]


def _lay_out(root: Path, aside: Path, entry: Entry) -> None:
    """Links to everything that the stage reads; its outs are new."""
    aside.mkdir(parents=True)
    for path in root.iterdir():
        if path.name not in (".paco", ".dvc", ".git", "data", "mlflow.db", "mlartifacts", ".dagster"):
            (aside / path.name).symlink_to(path)
    param_files = [
        path
        for dep, md5 in entry.inputs.deps.items()
        if is_code(dep)
        for path in read_recorded_code(root, dep, md5).files
    ]
    for dep in [*(dep for dep in entry.inputs.deps if not is_code(dep)), *param_files]:
        if dep.startswith("data/"):
            (aside / dep).parent.mkdir(parents=True, exist_ok=True)
            if not (aside / dep).exists():
                (aside / dep).symlink_to(root / dep)
    # What stages further up were made of: a policy names it in its provenance.
    for path in (root / CODES, *(root / ".dvc" / name for name in ("cache", "config", "config.local"))):
        place = aside / path.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            place.symlink_to(path)
