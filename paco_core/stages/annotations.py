"""Each instance's candidates ranked by consistency with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Table
from paco_core.runtime.stage import BASE_GB, LIGHT_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from pathlib import Path

    from paco_core.config.params import Params
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview


def _skipped(params: Params) -> str | None:
    return None if params.grids.seeds and params.prompts.engine != "none" else "there is nothing to rank"


def _cost(params: Params, root: Path) -> Cost:
    from paco_core.planning import amounts

    rankings = amounts.instances(params, root)
    memory = BASE_GB if params.annotations.source == "recogniser" else LIGHT_GB
    return Cost(f"{rankings} rankings", memory, amounts.seconds(params, rankings / 400))


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """Rankings whose best and worst candidate lie closest: the annotator could hardly tell them apart."""
    from paco_core.io.files import read_table

    rankings = read_table(data / paths.ANNOTATIONS.name / "rankings.parquet")
    if rankings.empty:
        return {}
    if "scores" not in rankings or rankings["scores"].map(lambda scores: scores is None or len(scores) == 0).any():
        return {"rankings": Table(rankings)}
    score_ranges = rankings["scores"].map(lambda scores: float(max(scores) - min(scores)))
    return {"least_certain_rankings": Table(rankings.assign(spread=score_ranges).sort_values("spread", kind="stable"))}


STAGE = Stage(
    skipped=_skipped,
    cost=_cost,
    headline=(("rankings",), ("kendall_w",)),
    preview=_preview,
    checks=(
        library_check("paco_core.data.checks:annotations_order_all_candidates", "Every ranking orders all candidates"),
        library_check("paco_core.data.checks:annotators_agree", "No annotator's rankings are doubtful"),
    ),
)


def run(ctx: StageContext) -> None:
    import pandas as pd

    from paco_core.data.annotation.agreement import measure_agreement
    from paco_core.data.annotation.people import validate_answered
    from paco_core.data.annotation.rankings import COLUMNS
    from paco_core.data.annotation.sources import collect_votes, workload
    from paco_core.data.annotation.votes import RankingTask, adjudicate, to_table
    from paco_core.data.records.panels import PanelStore
    from paco_core.io import files

    instances = files.read_table(ctx.read(paths.RANKINGS) / "instances.parquet", require=COLUMNS)
    panels = PanelStore.below(ctx.read(paths.GRIDS))
    earlier = {}
    if ctx.round is not None:  # what was ranked before is not asked again
        earlier_instances = files.read_table(ctx.read_before(paths.RANKINGS) / "instances.parquet", require=COLUMNS)
        instances = instances[~instances["instance_id"].isin(earlier_instances["instance_id"])]
        before = ctx.read_before(paths.ANNOTATIONS)
        earlier = {name: files.read_table(before / f"{name}.parquet") for name in ("rankings", "votes")}
        if ctx.params.annotations.source == "people":
            validate_answered(RankingTask(instances, panels, ctx.params.annotations, ctx.root), ctx.round, ctx.label)
    with ctx.progress(*workload(instances, ctx.params.annotations)) as progress:
        votes = collect_votes(
            RankingTask(instances, panels, ctx.params.annotations, ctx.root, progress.advance, ctx.log)
        )
    if not votes.rankings:
        ctx.log(f"annotations: none of {len(instances)} instances is ranked (source {ctx.params.annotations.source!r})")
    agreed = measure_agreement(votes.rankings)
    table = to_table(adjudicate(votes.rankings, votes.undecided).values())
    if 0 < len(table) < len(instances):
        left = len(instances) - len(table)
        ctx.log(
            f"annotations: {left} of {len(instances)} instances ({left / len(instances):.1%}) have no ranking, and "
            f"make no pairs (source {ctx.params.annotations.source!r})"
        )
    with ctx.writing(paths.ANNOTATIONS) as out:
        out.mkdir()
        for name, new in (("rankings", table), ("votes", to_table(votes.rankings))):
            all_rows = pd.concat([earlier[name], new], ignore_index=True) if earlier else new
            all_rows.to_parquet(out / f"{name}.parquet", index=False)
        files.write_json(out / "agreement.json", {"source": ctx.params.annotations.source, **agreed.as_json()})
    if len(agreed.annotators) > 1:
        ctx.log(agreed.text())
    ctx.report(
        {
            "rankings": len(table),
            "votes": len(votes.rankings),
            "annotators": len(agreed.annotators),
            "unranked_instances": len(instances) - len(table),
            "tied_share": float(table["tied"].mean()),
            **agreed.metrics(),
            **votes.counts,
        },
        doubtful=agreed.names_of_doubtful(),
    )
