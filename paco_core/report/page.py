"""The report: one self-contained HTML page about a whole run, and its numbers as JSON."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from markupsafe import Markup

from dvc_project.lockfile import Lock
from dvc_project.project import GRAPH_FILE, stages_of
from paco_core.config.params import PARAMS_FILE, Params
from paco_core.io import paths
from paco_core.io.answer import to_jsonable
from paco_core.io.files import DataError
from paco_core.io.project import read_declared_outs
from paco_core.report import charts, judges, policies
from paco_core.report.headline import HeadlineRow, headline
from paco_core.report.html import TEMPLATES, Figures, Missing, Skipped, render_page
from paco_core.report.next_steps import next_steps
from paco_core.report.showcase import Showcase, clear_command, showcase
from paco_core.runtime import graph
from paco_core.runtime.nvidia_smi import list_gpus
from paco_core.runtime.provenance.chain import Run
from paco_core.runtime.tracking import flatten, git_state
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.table import recipes_of

STAGE_ROW_PX, GUTTER_PX = 58, 76
#: Whose versions stand on the page.
COMPUTED = (
    "paco-rl", "torch", "diffusers", "transformers", "peft", "open_clip_torch", "dvc", "dagster", "mlflow",
)  # fmt: skip


@dataclass(frozen=True)
class StageRun:
    """A stage of the graph with the run that made its outs.

    ``seconds`` is the sum over the items of a matrix stage, None when none is known; ``pages`` are the addresses of
    their runs in MLflow.
    """

    name: str
    about: str
    parts: int
    seconds: float | None
    recorded: bool  # dvc.lock knows its outs
    pages: tuple[str, ...]
    needs: tuple[int, ...]  # positions of the stages whose outs it reads


@dataclass
class Report:
    """The page and everything that it says in numbers."""

    html: str
    figures: Figures
    curves: charts.Curves
    missing: list[Missing]
    skipped: list[Skipped]
    headline: list[HeadlineRow] = field(default_factory=list)
    example_command: str | None = None  # generates a set with a clear gain again

    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``."""
        return {
            "headline": to_jsonable(self.headline),
            "example_command": self.example_command,
            "figures": self.figures.values,
            "curves": self.curves,
            "missing": [{"what": m.part, "path": m.path, "make": m.make} for m in self.missing],
            "skipped": [{"what": s.part, "reason": s.reason} for s in self.skipped],
        }


def build(
    root: Path, params: Params, lock: Lock, runs: Mapping[str, Run], created_at: datetime | None = None
) -> Report:
    """Read the outs below ``root`` and write the page about them.

    Args:
        lock: what DVC recorded of the stages: which have outs, and their md5s.
        runs: the run that made the outs of each stage (``records.load_runs``).
        created_at: the time on the page; None means now.
    """
    figures = Figures()
    curves: charts.Curves = {}
    missing: list[Missing] = []
    left_out: list[Skipped] = []

    def present_or_none(part: Any) -> Any:
        """The part, or None after noting what it lacks, or why there is none."""
        if isinstance(part, Missing):
            missing.append(part)
        elif isinstance(part, Skipped):
            left_out.append(part)
        else:
            return part
        return None

    stages = stage_runs(root, lock, runs)
    sheet = present_or_none(judges.sample_grid_rows(root))
    cards = present_or_none(judges.pair_cards(root))
    judge = present_or_none(judges.rankings(root, figures))
    edits = present_or_none(judges.edits(root, figures))
    reward = present_or_none(judges.learning(root, curves))
    parts, edited = (
        policies.parts(kind, root, recipes_of(task, params.policies), figures, curves, missing)
        for kind, task in ((policies.PAINTERS, SETS), (policies.EDITORS, EDITS))
    )
    left_out += _untrained(root)
    opening = _opening(root, params, parts, figures)
    command = clear_command(opening.examples) if opening else None
    view = {
        "params": params,
        "made": (created_at or datetime.now(UTC)).strftime("%-d %B %Y, %H:%M UTC"),
        **_stage_view(stages, figures),
        "sheet": sheet,
        "cards": cards,
        "judge": judge,
        "edits": edits,
        "reward_charts": reward,
        "policies": parts,
        "editors": edited,
        "edits_published": policies.published(root, figures) if edited else [],
        "edit_measure": policies.measure_of(params, "editing"),
        "ablation": judges.ablation(figures),
        "marker": charts.legend_marker,
        "sample_measure": policies.measure_of(params, "consistency"),
        **_provenance(root, lock),
        "missing": missing,
        "skipped": left_out,
        "opening": opening,
        "next": next_steps(params, list_gpus().gpus, command),
        "tiles": policies.tiles(params, parts, edited, figures),
    }
    # Marked as HTML here: what our own code drew.
    html = render_page(
        TEMPLATES / "report.html.j2",
        view,
        num=lambda key, form=".3f": Markup(figures.show(key, form)),  # noqa: S704
        range=lambda key, form=".3f": Markup(figures.range(key, form)),  # noqa: S704
    )
    rows = headline(root, params, figures.values)
    return Report(html, figures, curves, missing, left_out, rows, command)


def stage_runs(root: Path, lock: Lock, latest_runs: Mapping[str, Run]) -> list[StageRun]:
    """The stages in the order of ``dvc.yaml``, bookkeeping left out; ``lock`` knows which have outs.

    Raises:
        DataError: when there is no ``dvc.yaml`` at the root.
    """
    if not (declared := stages_of(root)):
        raise DataError(f"{root / GRAPH_FILE}: no stages there")
    stages = {stage.group: stage for stage in declared.values() if stage.dagster.get("group")}
    names, edges = list(stages), graph.edges(declared.values())
    needs = {name: tuple(names.index(a) for a, b in edges if b == name and a in stages) for name in names}
    rows = []
    for name, stage in stages.items():
        runs = [run for label, run in sorted(latest_runs.items()) if label.split("@")[0] == name]
        rows.append(
            StageRun(
                name=name,
                about=(stage.desc or "").partition(". ")[0],
                parts=max(1, len(runs)),
                seconds=sum(known_seconds)
                if (known_seconds := [run.seconds for run in runs if run.seconds is not None])
                else None,
                recorded=any(entry.split("@")[0] == name for entry in lock.entries),
                pages=tuple(run.mlflow_url for run in runs if run.mlflow_url),
                needs=needs[name],
            )
        )
    return rows


def _provenance(root: Path, lock: Lock) -> dict[str, Any]:
    """The parameters, the code, the versions and the data (path, md5) behind the page."""
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    for name in COMPUTED:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    outs = sorted(out for entry in lock.entries.values() for out in entry.outs.items())
    return {
        "parameters": _parameters(lock),
        "git": git_state(root),
        "versions": versions,
        "outs": [(path, md5) for path, md5 in outs if path != paths.REPORT.as_posix() and md5],
    }


def _untrained(root: Path) -> list[Skipped]:
    """The recipes of the graph that no policy is trained by."""
    policies = sorted(read_declared_outs(root / paths.POLICIES))
    skipped = (Skipped.from_folder(f"the policy {folder.name}", folder) for folder in policies)
    return [part for part in skipped if part is not None]


def _stage_view(stages: list[StageRun], figures: Figures) -> dict[str, Any]:
    """The stages, how they depend on each other, and bars as long as their durations."""
    seconds = {s.name: s.seconds for s in stages if s.seconds is not None}
    for stage in stages:
        figures.add(f"seconds.{stage.name}", stage.seconds)
    figures.add("seconds.total", sum(seconds.values()) if seconds else None)
    longest = max(seconds.values(), default=1.0) or 1.0
    edges = [(needed, row) for row, stage in enumerate(stages) for needed in stage.needs]
    return {
        "stages": stages,
        "arcs": charts.arcs(len(stages), edges, STAGE_ROW_PX, GUTTER_PX),
        "row_px": STAGE_ROW_PX,
        "bar_percent": {name: max(1.0, round(100 * s / longest, 1)) for name, s in seconds.items()},
    }


def _parameters(lock: Lock) -> dict[str, dict[str, Any]]:
    """Every parameter that made what the page shows, by section; top-level ones under "general"."""
    grouped: dict[str, dict[str, Any]] = {"general": {}}
    for entry in lock.entries.values():
        for key, value in flatten(entry.inputs.params.get(PARAMS_FILE, {})).items():
            section, _, name = key.partition(".")
            grouped.setdefault(section if name else "general", {})[name or section] = value
    return {section: dict(sorted(values.items())) for section, values in grouped.items() if values}


def _opening(root: Path, params: Params, parts: list[policies.PolicyPart], figures: Figures) -> Showcase | None:
    """What the first policy that was measured learnt, at its largest size."""
    measured = next((part for part in parts if part.tables), None)
    if measured is None:
        return None
    recipe = params.policies.recipes[measured.name]
    return showcase(root, measured, recipe, policies.measure_of(params, "consistency"), figures)
