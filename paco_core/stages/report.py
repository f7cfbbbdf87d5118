"""One page that shows what the whole run did and found; in a round, what each round so far brought."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Page
from paco_core.runtime.stage import Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext


def _cost(_params: Params, _root: Path) -> Cost:
    return Cost("1 page")


STAGE = Stage(
    cost=_cost,
    headline=(("reward.accuracy",), ("*.consistency", "*.editing"), ("*.following", "*.clip_t")),
    preview=lambda data, _item: {"page": Page(data / paths.REPORT.name / "index.html")},
    checks=(
        library_check(
            "paco_core.benchmarks.checks:report_is_complete",
            "Nothing is missing from the page",
            paths.REPORT / "metrics.json",
        ),
    ),
)


def run(ctx: StageContext) -> None:
    if ctx.round is not None:
        return _of_round(ctx)
    from dvc_project.lockfile import Lock
    from dvc_project.project import stages_of
    from paco_core.io.files import write_json
    from paco_core.report import page
    from paco_core.report.headline import headline_metrics
    from paco_core.runtime.code.stage_code import is_code
    from paco_core.runtime.provenance.records import load_runs

    for dep in stages_of(ctx.root)[ctx.label].deps:  # the page says itself what is missing
        if not is_code(dep) and (ctx.root / dep).exists():
            ctx.read(Path(dep))
    lock = Lock.read(ctx.root)
    report = page.build(ctx.root, ctx.params, lock, load_runs(ctx.root, lock))
    with ctx.writing(paths.REPORT) as out:
        out.mkdir()
        (out / "index.html").write_text(report.html, encoding="utf-8")
        write_json(out / "metrics.json", report.metrics())
    ctx.tracker.artifact(ctx.root / paths.REPORT / "index.html")
    ctx.report(headline_metrics(report.headline), missing_parts=len(report.missing))


def _of_round(ctx: StageContext) -> None:
    """The tables of the round before, with this round's rows added."""
    from paco_core.benchmarks.tables import write_result_tables
    from paco_core.report import rounds

    number, recipe = str(ctx.round), ctx.params.rounds.recipe
    figures = rounds.RoundFigures(
        number,
        policy=rounds.changes(ctx.read_before(paths.T2IS), ctx.read(paths.T2IS), recipe, ctx.params.t2is),
        exam=rounds.exam(ctx.read(paths.CONSISTENCY_RANK)),
        training=rounds.training(ctx.read(paths.metrics_file(f"{paths.ROUND}{paths.POLICIES.name}", number))),
    )
    with ctx.writing(paths.REPORT) as out:
        out.mkdir()
        tables = rounds.added(ctx.read_before(paths.REPORT), figures.tables())
        write_result_tables(out, f"Rounds up to {number}", tables, "index")
    ctx.tracker.artifact(ctx.root / ctx.place(paths.REPORT) / "index.html")
    ctx.report(figures.metrics())
