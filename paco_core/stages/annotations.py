"""Each instance's candidates ranked by consistency with the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from paco_core.data.annotation.agreement import agreement
from paco_core.data.annotation.sources import annotate, workload
from paco_core.data.annotation.votes import Task, adjudicate, to_table
from paco_core.data.pairs.rankings import COLUMNS
from paco_core.data.records.panels import PanelStore
from paco_core.io import files, paths

if TYPE_CHECKING:
    from paco_core.runtime.context import StageContext


def run(ctx: StageContext) -> None:
    instances = files.read_table(ctx.read(paths.RANKINGS) / "instances.parquet", require=COLUMNS)
    panels = PanelStore.below(ctx.read(paths.GRIDS))
    with ctx.progress(*workload(instances, ctx.params.annotations)) as progress:
        votes = annotate(Task(instances, panels, ctx.params.annotations, ctx.root, progress.advance, ctx.say))
    if not votes.rankings:
        ctx.say(f"annotations: none of {len(instances)} instances is ranked (source {ctx.params.annotations.source!r})")
    agreed = agreement(votes.rankings, votes.habits)
    table = to_table(adjudicate(votes.rankings, votes.undecided).values())
    if 0 < len(table) < len(instances):
        left = len(instances) - len(table)
        ctx.say(
            f"annotations: {left} of {len(instances)} instances ({left / len(instances):.1%}) have no ranking, and "
            f"make no pairs (source {ctx.params.annotations.source!r})"
        )
    with ctx.writing(paths.ANNOTATIONS) as out:
        out.mkdir()
        table.to_parquet(out / "rankings.parquet", index=False)
        to_table(votes.rankings).to_parquet(out / "votes.parquet", index=False)
        files.write_json(out / "agreement.json", {"source": ctx.params.annotations.source, **agreed.as_json()})
    if len(agreed.annotators) > 1:
        ctx.say(agreed.text())
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
