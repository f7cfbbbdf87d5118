"""A recipe's tables: the measures by size, time and health of the trainings, published rows, runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from paco_core.benchmarks.edit_changes import EDIT_MEASURES, published_edits_table
from paco_core.benchmarks.published import GEDIT, T2IS_ABLATION, PublishedRow
from paco_core.benchmarks.statistics import METHODS
from paco_core.benchmarks.tables import ResultTable, interval, number, signed
from paco_core.experiments.reproduction.summary import RecipeSummary
from paco_core.tasks.edits import EDITS

BARE = "before training"  # the row beside the variants
#: Measures by table, in order.
MEASURES = {
    "gold metrics, which no training sees": (
        "gold_consistency", "gold_following", "gold_editing", "gold_reached", "gold_kept",
    ),
    "rewards and diversity": ("consistency", "clip_t", "panel_diversity"),
    "the reward and its two answers": ("editing", "edit_following", "edit_consistency"),
}  # fmt: skip
WORDS = {**EDIT_MEASURES, "consistency": "judge's consistency", "clip_t": "CLIP-T", "editing": "editing reward"}


def head(measure: str) -> str:
    """A measure in words."""
    return WORDS.get(measure, measure.replace("_", " "))


def basis(summary: RecipeSummary) -> str:
    """How the figures were made, in a sentence or two."""
    s = summary.settings
    rule, exam = s[s["recipe"]], s[s["benchmark"]]
    return (
        f"Recipe {s['recipe']} of profile {s['profile']} ({s['world']} world): {rule['epochs']} epochs of "
        f"{rule['prompts_per_epoch']} prompts x {rule['group_size']} pictures at {rule['train_size']} px. Measured on "
        f"{s['groups']} {summary.task.drawn} that the policy was not trained on, {len(exam['seeds'])} images each, "
        f"{exam['steps']} steps without noise, the same noise for every variant, before and after."
    )


def tables(summary: RecipeSummary) -> list[ResultTable]:
    """All of a recipe, in the order of the page."""
    measured = [
        _measured(summary, size, kind, found)
        for kind, names in MEASURES.items()
        if (found := [name for name in names if name in summary.measures])
        for size in summary.sizes
    ]
    return [*measured, _trainings(summary), published(summary), _runs(summary)]


def _measured(summary: RecipeSummary, size: int, kind: str, names: Sequence[str]) -> ResultTable:
    plain = summary.plain if len(summary.variants) > 1 else None  # what else is compared with
    width = 3 if plain else 2  # columns of a measure
    heads = [cell for name in names for cell in (head(name), "change", f"less {plain}'s")[:width]]
    first = next(iter(summary.variants.values())).measures[size]  # all have the same figures before training
    rows = [[BARE, "", *(cell for name in names for cell in (interval(first[name].before), "", "")[:width])]]
    for variant, row in summary.variants.items():
        cells = [variant, str(len(row.trainings))]
        for found in (row.measures[size][name] for name in names):
            over = "" if found.over_plain is None else signed(found.over_plain)
            cells += [interval(found.after), signed(found.change), over][:width]
        rows.append(cells)
    compared = f", change from before, and difference to {plain}" if plain else " and change from before"
    note = (
        f"Mean after training with a 95% interval{compared}, case by case. Intervals are for other "
        f"{summary.task.drawn} and other training seeds, both drawn anew ({METHODS}); with few seeds they are rough."
    )
    return ResultTable(f"Unseen {summary.task.cases} at {size} px: {kind}", ["variant", "seeds", *heads], rows, [note])


def times(value: float, unit: float) -> str:
    """A positive value as a multiple of another one; a dash where that is 0."""
    return number(value / unit if unit and not math.isnan(value) else None, 2)


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean, and the range over seeds."""
    known = [value for value in values if not math.isnan(value)]
    if not known:
        return "–"
    mean = number(float(np.mean(known)), digits)
    return mean if len(known) == 1 else f"{mean} ({number(min(known), digits)} to {number(max(known), digits)})"


def _trainings(summary: RecipeSummary) -> ResultTable:
    """Time and health; columns that say nothing of this recipe are left out."""
    rows = summary.variants.values()

    def spreads(name: str, digits: int) -> list[str]:
        return [spread(row.figures(name), digits) for row in rows]

    columns = {"variant": list(summary.variants), "seconds": spreads("seconds", 0)}
    if summary.plain and len(rows) > 1:
        means = {name: float(np.mean(row.figures("seconds"))) for name, row in summary.variants.items()}
        columns[f"{summary.plain} = 1"] = [times(mean, means[summary.plain]) for mean in means.values()]
    columns["processor s"] = spreads("processor_seconds", 0)
    for name, digits in (("reward_ratio", 2), ("panel_diversity", 3), ("clip_fraction", 2)):
        if {*spreads(name, digits)} != {"–"}:
            columns[name.replace("_", " ")] = spreads(name, digits)
    columns["ended"] = [_ended(list(row.trainings.values())) for row in rows]
    notes = [
        "Seconds of all epochs: sampling, waiting for scores, optimising; evaluations are not counted. Seeds are "
        "trained in turns, one of each variant, so that a busy machine does not slow only some. Processor seconds are "
        "those of the trainer without the reward server: they hardly depend on the load of the machine. If two "
        "commands trained side by side, compare processor seconds. A dash: MLflow lacks the seconds "
        "of some epochs, for example of a training that resumed.",
        "Of the training's samples, mean of the last five epochs: reward ratio (consistency / CLIP-T), panel diversity "
        "and clip fraction, as far as the recipe has them. In brackets the range over seeds.",
    ]
    return ResultTable("Trainings", list(columns), [[*cells] for cells in zip(*columns.values(), strict=True)], notes)


def _ended(trainings: Sequence[Mapping[str, Any]]) -> str:
    early = sum(training["stopped"] for training in trainings)
    return f"{early} of {len(trainings)} early" if early else "all epochs"


def published_rows(summary: RecipeSummary) -> tuple[PublishedRow, ...]:
    """What the paper says of such recipes."""
    return GEDIT if summary.task is EDITS else T2IS_ABLATION


def published(summary: RecipeSummary) -> ResultTable:
    """The paper's rows, for comparison by eye."""
    found = published_rows(summary)
    if summary.task is EDITS:
        return published_edits_table(found)
    names = {"aesthetics": 3, "following": 3, "consistency": 3, "hours": 1}
    rows = [[f"{r.model} (published)", *(number(r.figures[n], d) for n, d in names.items())] for r in found]
    note = f"{found[0].source}: FLUX.1-dev on T2IS-Bench, 8 x H100. Other models, data and judges than here."
    return ResultTable("Published", ["model", *names], rows, [note])


def _runs(summary: RecipeSummary) -> ResultTable:
    rows = [
        [variant, str(seed), training["experiment"], training["run"] or "–", training.get("ended", "–")]
        for variant, row in summary.variants.items()
        for seed, training in row.trainings.items()
    ]
    head = ["variant", "training seed", "DVC experiment", "MLflow run of its training", "ended"]
    return ResultTable("Runs", head, rows, ["`paco compare EXPERIMENT EXPERIMENT` compares their curves and images."])
