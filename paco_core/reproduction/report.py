"""The report of a table: Markdown, HTML and JSON, written whole or not at all, from kept cells alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from paco_core.benchmarks.published import T2IS_ABLATION
from paco_core.benchmarks.tables import Table, interval, number
from paco_core.files import write_json, write_text
from paco_core.reproduction.cells import Kept
from paco_core.reproduction.exam import read_table
from paco_core.reproduction.findings import Finding, findings, signed
from paco_core.reproduction.summary import Row, Summary, of_one_basis, summarise

NAME = "report"
#: Measures by table, in order -> their heads.
MEASURES = {
    "gold metrics, which no training sees": {
        "gold_consistency": "gold consistency",
        "gold_following": "gold following",
    },
    "rewards and diversity": {
        "consistency": "judge's consistency",
        "clip_t": "CLIP-T",
        "panel_diversity": "panel diversity",
    },
}


def before_folder(out: Path) -> Path:
    """Where the bare model's examination lies."""
    return out / "before"


def write(out: Path, cells: Sequence[Kept], resamples: int) -> str:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown.

    Raises:
        DataError: when the cells cannot stand in one table (:func:`of_one_basis`), or a file of theirs is missing.
    """
    from paco_core.reproduction.page import render

    cells = of_one_basis(cells)
    summary = summarise(out.name, cells, read_table(before_folder(out)), resamples)
    said = findings(summary)
    text = markdown(summary, said)
    write_text(out / f"{NAME}.md", text)
    page = render(summary, said, tables(summary), cells, before_folder(out))
    write_text(out / f"{NAME}.html", page)
    published = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in T2IS_ABLATION]
    whole = {**summary.as_dict(), "findings": [f.as_dict() for f in said], "published": published}
    write_json(out / f"{NAME}.json", whole)
    return text


def markdown(summary: Summary, said: Sequence[Finding]) -> str:
    """The report as text."""
    lines = [f"# Ablations in small: {summary.name}", "", basis(summary), ""]
    if said:
        claims = Table("What came out", ["claim", "here", "figures"], [[f.claim, f.verdict, f.evidence] for f in said])
        lines.append(claims.markdown())
    return "\n".join([*lines, *(table.markdown() for table in tables(summary))])


def basis(summary: Summary) -> str:
    """How the figures were made, in a sentence or two."""
    s = summary.settings
    grpo, rule, exam = s["policies"], s[s["recipe"]], s["t2is"]
    epochs = grpo["epochs"] if rule["epochs"] is None else rule["epochs"]
    return (
        f"Recipe {s['recipe']} of profile {s['profile']} ({s['world']} world): {epochs} epochs of "
        f"{grpo['prompts_per_epoch']} prompts x {grpo['group_size']} pictures at {rule['train_size']} px. Measured on "
        f"{s['prompts']} prompts that no seed can have trained on, {len(exam['seeds'])} pictures each, {exam['steps']} "
        "steps without noise, the same noise for every variant, before and after."
    )


def tables(summary: Summary) -> list[Table]:
    """By size, the measures; then time and health of the trainings; the published rows; the runs."""
    measured = [
        _measured(summary, size, kind, heads)
        for kind, heads in MEASURES.items()
        if set(heads) & set(summary.measures)
        for size in summary.sizes
    ]
    return [*measured, _trainings(summary), published(), _runs(summary)]


def _measured(summary: Summary, size: int, kind: str, heads: Mapping[str, str]) -> Table:
    names = [name for name in heads if name in summary.measures]
    first = summary.rows[0].measures[size]
    head = ["variant", "seeds", *(cell for name in names for cell in (heads[name], "change", "less full's"))]
    rows = [["before training", "", *(cell for name in names for cell in (interval(first[name].before), "", ""))]]
    for row in summary.rows:
        cells = [row.variant, str(len(row.seeds))]
        for found in (row.measures[size][name] for name in names):
            over = "" if found.over_full is None else signed(found.over_full)
            cells += [interval(found.after), signed(found.change), over]
        rows.append(cells)
    note = (
        "Mean after training with a 95% interval, change from before, and difference to the full recipe, case by case. "
        "Intervals are bootstrap intervals over prompts and training seeds, both drawn anew; with few seeds they are "
        "rough."
    )
    return Table(f"Unseen prompts at {size} px: {kind}", head, rows, [note])


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean, and the range over seeds."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    mean = number(float(np.mean(known)), digits)
    return mean if len(known) == 1 else f"{mean} ({number(min(known), digits)} to {number(max(known), digits)})"


def _trainings(summary: Summary) -> Table:
    own = summary.full
    base = float(np.mean(own.told("seconds"))) if own else math.nan
    rows = [
        [
            row.variant,
            spread(row.told("seconds"), 0),
            number(float(np.mean(row.told("seconds"))) / base, 2),
            spread(row.told("processor_seconds"), 0),
            spread(row.told("reward_ratio")),
            spread(row.told("panel_diversity"), 3),
            spread(row.told("clip_fraction")),
            _ended(row),
        ]
        for row in summary.rows
    ]
    head = [
        "variant",
        "seconds",
        "full = 1",
        "processor s",
        "reward ratio",
        "panel diversity",
        "clip fraction",
        "ended",
    ]
    notes = [
        "Seconds of all epochs: sampling, waiting for scores, optimising; evaluations are not counted. Seeds are "
        "trained in turns, one of each variant, so that a busy machine slows none alone; load averages are in "
        "report.json. Processor seconds are the trainer's own, without the reward server's: they hardly depend on what "
        "else the machine does.",
        "Reward ratio (consistency / CLIP-T), panel diversity and clip fraction: of the training's samples, mean of "
        "the last five epochs. In brackets the range over seeds.",
    ]
    return Table("Trainings", head, rows, notes)


def _ended(row: Row) -> str:
    early = sum(t["stopped"] is not None for t in row.trainings.values())
    return f"{early} of {len(row.seeds)} early" if early else "all epochs"


def published() -> Table:
    """The paper's ablation, for comparison by eye."""
    names = {"aesthetics": 3, "following": 3, "consistency": 3, "hours": 1}
    rows = [[f"{r.model} (published)", *(number(r.figures[n], d) for n, d in names.items())] for r in T2IS_ABLATION]
    note = f"{T2IS_ABLATION[0].source}: FLUX.1-dev on T2IS-Bench, 8 x H100. Other models, data and judges than here."
    return Table("Published", ["model", *names], rows, [note])


def _runs(summary: Summary) -> Table:
    rows = [
        [row.variant, str(seed), run or "not in MLflow yet", str(row.trainings[seed]["ended"])]
        for row in summary.rows
        for seed, run in row.runs.items()
    ]
    return Table("Runs", ["variant", "training seed", "MLflow run", "ended"], rows, ["Experiment paco/reproduce."])
