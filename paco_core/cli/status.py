"""``paco status``: state of each stage with its reason, champions, and reward servers."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from dvc_project.paths import overlap
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.rwlock import writing
from dvc_project.state import ProjectState, StageState
from paco_core.config.graph_keys import validate_version
from paco_core.config.params import ParamsError
from paco_core.io.answer import Answer
from paco_core.io.text_table import text_table
from paco_core.runtime.code.stage_code import present_code
from paco_core.serving.servers import endpoint

State = Literal["up to date", "running", "out of date", "never run", "waits"]


@dataclass(frozen=True)
class StageLine:
    """The state of a stage. ``why``: its reasons, or the nearest stage that it waits for."""

    stage: str
    state: State
    why: tuple[str, ...] = ()

    @property
    def cells(self) -> tuple[str, str]:
        return self.stage, f"{self.state}{': ' if self.why else ''}{'; '.join(self.why)}"


@dataclass(frozen=True)
class Status:
    """Everything that ``paco status`` prints."""

    stages: tuple[StageLine, ...]
    champions: str
    servers: str
    fault: str = ""  # of the parameters or the graph: no stage can run, and only running stages are listed

    @property
    def current(self) -> int:
        return sum(line.state == "up to date" for line in self.stages)

    def text(self) -> str:
        lines = text_table([line.cells for line in self.stages])
        lines.append(self.fault or f"{self.current} of {len(self.stages)} stages are up to date")
        return "\n".join([*lines, "", "champions", self.champions, "", "reward servers", self.servers])


def status(root: Path) -> Status:
    """The state of a project, from its files and MLflow's registry (if there is one).

    Raises:
        DvcProjectError: if ``dvc.yaml`` or ``dvc.lock`` cannot be read.
    """
    project = DvcProject(root, present_code)
    behind: set[str] = set()
    lines = []
    noted, assets = writing(root), set(project.assets)
    for state in ProjectState(project).all():  # producers first
        if state.stage.group not in assets:  # the stage `code`: its changes are reasons of its readers
            continue
        line = _line(state, _nearest(state.stage.name, behind, project.upstream), noted)
        if line.state != "up to date":
            behind.add(state.stage.name)
        lines.append(line)
    fault = _fault(root)
    stages = tuple(line for line in lines if not fault or line.state == "running")
    return Status(stages, _champions(root), endpoint.server_status(root), fault)


def _fault(root: Path) -> str:
    """Reason why no stage can run; empty if there is none. The code of the stages, and so their state, is unknown
    then.
    """
    try:
        validate_version(root)
    except ParamsError as error:
        return str(error)
    return ""


def _nearest(stage: str, behind: Set[str], upstream: Mapping[str, tuple[str, ...]]) -> str:
    """The nearest stage of ``behind`` that a stage reads, and the number of equally near ones; empty if there is none.

    A stage that another one of them reads is farther away. For example, in prompts -> pairs -> policies, if policies
    reads both, the nearest stage is pairs.
    """
    direct = behind & set(upstream[stage])
    farther, queue = set[str](), list(direct)
    while queue:
        above = behind & set(upstream[queue.pop()]) - farther
        farther |= above
        queue += above
    names = sorted(direct - farther)
    return " and ".join([*names[:1], *([f"{len(names) - 1} more"] if len(names) > 1 else [])])


def _line(state: StageState, behind: str, noted: Mapping[str, int]) -> StageLine:
    name = state.stage.name
    if (process := _writer(state.stage, noted)) is not None:
        return StageLine(name, "running", (f"process {process}",))
    if state.entry is None:
        waits = (f"waits for {behind}",) if behind else ()
        return StageLine(name, "never run", state.reasons[1:] or waits)
    if state.reasons:
        return StageLine(name, "out of date", state.reasons)
    if behind:
        return StageLine(name, "waits", (f"for {behind}",))
    if state.changed_upstream:
        return StageLine(name, "out of date", (f"{', '.join(sorted(state.changed_upstream))} changed",))
    return StageLine(name, "up to date")


def _writer(stage: ResolvedStage, noted: Mapping[str, int]) -> int | None:
    return next((p for path, p in noted.items() if any(overlap(out.path, path) for out in stage.outs)), None)


def _champions(root: Path) -> str:
    """The registry's lines."""
    from paco_core.operations.promotion.champions import NO_MODEL, Champions
    from paco_core.runtime.tracking.store import short

    try:
        registry = Champions.from_store(root)
        return Answer(NO_MODEL, {}) if registry is None else registry.text()
    except Exception as error:  # MLflow raises much: a status is printed without its registry rather than not at all  # noqa: BLE001
        return f"unknown: {short(error)}"
