"""ConsistencyRank as tables: measured judges, published rows beside them, paired differences."""

from __future__ import annotations

from collections.abc import Sequence

from paco_core.benchmarks.consistency_rank import ConsistencyRankResult
from paco_core.benchmarks.published import PublishedRow
from paco_core.benchmarks.ranking_metrics import TIE_RULE
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, with_published

COLUMNS = {
    "accuracy": "accuracy",
    "t1_b1": "T1-B1",
    "tau": "tau",
    "rho": "rho",
    "tau_paper": "tau (index order)",
    "rho_paper": "rho (index order)",
    "footrule": "footrule",
}


def tables(result: ConsistencyRankResult, published: Sequence[PublishedRow], template: str) -> list[ResultTable]:
    """The judges with intervals, the published rows, and the reward's difference to each of the others.

    The published rows stand below the measured ones only where those were asked in the same words.
    """
    rows = [
        [
            judgement.label,
            *(interval(result.estimates[name][metric]) for metric in COLUMNS),
            str(result.unscorable(name)),
        ]
        for name, judgement in result.judgements.items()
    ]
    others = [
        [f"{row.model} (published)", *(number(row.figures.get(metric)) for metric in COLUMNS), ""] for row in published
    ]
    prompts = len({instance.prompt_id for instance in result.instances})
    notes = [
        f"{len(result.instances)} rankings of {prompts} prompts; means with 95% bootstrap intervals over prompts. "
        "A random order gets its mean over all orders, exactly; annotators' ties raise it.",
        TIE_RULE,
        f"Asked by the template “{template}”.",
    ]
    head = ["judge", *COLUMNS.values(), "not judged"]
    sources = ", ".join(dict.fromkeys(row.source for row in published))
    note = (
        f"Rows marked “published” ({sources}) were measured by others on the public benchmark, not on these rankings."
    )
    alike = template == "marked"
    if not alike:
        note += " Their judges were asked in other words than above (template “marked”)."
    measured = ResultTable("ConsistencyRank", head, rows, notes)
    found = with_published(measured, ResultTable("ConsistencyRank, published", head, others, [note]), alike=alike)
    shown = ("accuracy", "t1_b1", "tau", "rho")
    differences = [[name, *(signed(row[metric]) for metric in shown)] for name, row in result.comparisons.items()]
    if differences:
        note = "Paired by ranking, with 95% intervals over prompts."
        head = ["judges", *(COLUMNS[metric] for metric in shown)]
        found.append(ResultTable("Paired differences", head, differences, [note], detail=True))
    return found
