"""Report of `paco reproduce`: Markdown, HTML and JSON with the tables of each recipe, from finished cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from paco_core.benchmarks.edit_changes import published_edits_table
from paco_core.benchmarks.published import GEDIT, T2IS_ABLATION, PublishedRow
from paco_core.benchmarks.statistics import METHODS
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, write_page
from paco_core.config.params import Params
from paco_core.experiments.grid import Result
from paco_core.experiments.reproduction_summary import HEALTH, RecipeSummary, summarise_recipes
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.files import DataError, write_json, write_text
from paco_core.models.metric_meanings import label_of
from paco_core.tasks.edits import EDITS

NAME = "report"
BARE = "before training"  # the row beside the variants
#: Measures by table, in order.
MEASURES = {
    "ground-truth metrics, which no policy is trained on": (
        "gold_consistency", "gold_following", "gold_editing", "gold_reached", "gold_kept",
    ),
    "rewards and diversity": ("consistency", "clip_t", "panel_diversity"),
    "the reward and its two answers": ("editing", "edit_following", "edit_consistency"),
}  # fmt: skip


def write_reproduction_report(out: Path, results: Sequence[Result], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the JSON.

    Args:
        results: in the order of the variants and seeds.

    Raises:
        DataError: when there is none, or one of their files is missing.
    """
    if not results:
        raise DataError("no cell of the files in git as they are now is finished; run `paco reproduce`")
    title, figures = f"Reproduced in small: {out.name}", {}
    markdown, page = [f"# {title}", ""], []
    for recipe, summary in summarise_recipes(results, params).items():
        tables = _tables(summary)
        markdown += [f"# {recipe}", "", _basis(summary), "", *(table.markdown() for table in tables)]
        page += [f"<h2>{escape(recipe)}</h2>", f"<p>{escape(_basis(summary))}</p>", *(table.html() for table in tables)]
        figures[recipe] = {
            "settings": summary.settings,
            "resamples": summary.resamples,
            "variants": summary.variants,
            "published": _published_rows(summary),
        }
    answer = Answer("\n".join(markdown), to_jsonable({"name": out.name, "recipes": figures}))
    write_text(out / f"{NAME}.md", answer)
    write_page(out / f"{NAME}.html", title, "\n".join(page))
    write_json(out / f"{NAME}.json", answer.figures)
    return answer


def _basis(summary: RecipeSummary) -> str:
    """How the figures were made, in a sentence or two."""
    s = summary.settings
    rule, exam = s[s["recipe"]], s[s["benchmark"]]
    return (
        f"Recipe {s['recipe']} of profile {s['profile']} ({s['world']} world): {rule['epochs']} epochs of "
        f"{rule['prompts_per_epoch']} prompts x {rule['group_size']} pictures at {rule['train_size']} px. Measured on "
        f"{s['groups']} {summary.task.sampling_units} that the policy was not trained on, "
        f"{len(exam['seeds'])} images each, "
        f"{exam['steps']} steps without noise, the same noise for every variant, before and after."
    )


def _tables(summary: RecipeSummary) -> list[ResultTable]:
    measured = [
        _measured(summary, size, kind, present)
        for kind, names in MEASURES.items()
        if (present := [name for name in names if name in summary.measures])
        for size in summary.sizes
    ]
    return [*measured, _trainings(summary), _published(summary), _runs(summary)]


def _measured(summary: RecipeSummary, size: int, kind: str, names: Sequence[str]) -> ResultTable:
    rival = summary.plain if len(summary.variants) > 1 else None  # what else is compared with
    width = 3 if rival else 2  # columns of a measure
    words = [label_of(name) for name in names]
    heads = [cell for word in words for cell in (word, "change", f"less {rival}'s")[:width]]
    first = next(iter(summary.variants.values()))["measures"][size]  # all have the same figures before training
    rows = [[BARE, "", *(cell for name in names for cell in (interval(first[name]["before"]), "", "")[:width])]]
    for variant, row in summary.variants.items():
        cells = [variant, str(len(row["trainings"]))]
        for change in (row["measures"][size][name] for name in names):
            over = "" if change["over_plain"] is None else signed(change["over_plain"])
            cells += [interval(change["after"]), signed(change["change"]), over][:width]
        rows.append(cells)
    compared = f", change from before, and difference to {rival}" if rival else " and change from before"
    note = (
        f"Mean after training with a 95% interval{compared}, case by case. Intervals are for other "
        f"{summary.task.sampling_units} and other training seeds, both resampled ({METHODS}); "
        "with few seeds they are rough."
    )
    return ResultTable(f"Unseen {summary.task.cases} at {size} px: {kind}", ["variant", "seeds", *heads], rows, [note])


def _trainings(summary: RecipeSummary) -> ResultTable:
    """Time and health; columns that no variant of this recipe has are left out."""
    trainings = [list(row["trainings"].values()) for row in summary.variants.values()]

    def means(name: str, digits: int) -> list[str]:
        return [_mean_and_range(_values(of_variant, name), digits) for of_variant in trainings]

    columns = {"variant": list(summary.variants), "seconds": means("seconds", 0)}
    if summary.plain and len(trainings) > 1:
        seconds = [float(np.mean(_values(of_variant, "seconds"))) for of_variant in trainings]
        unit = seconds[columns["variant"].index(summary.plain)]
        columns[f"{summary.plain} = 1"] = [
            number(value / unit if unit and not math.isnan(value) else None, 2) for value in seconds
        ]
    columns["processor s"] = means("processor_seconds", 0)
    for name, digits in zip(HEALTH, (2, 3, 2), strict=True):
        if {*means(name, digits)} != {"–"}:
            columns[name.replace("_", " ")] = means(name, digits)
    early = [sum(training["stopped"] for training in of_variant) for of_variant in trainings]
    columns["ended"] = [
        f"{stopped} of {len(of_variant)} early" if stopped else "all epochs"
        for stopped, of_variant in zip(early, trainings, strict=True)
    ]
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


def _values(trainings: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    """A figure of each training; NaN if it has none."""
    return [np.nan if training.get(name) is None else float(training[name]) for training in trainings]


def _mean_and_range(values: Sequence[float], digits: int) -> str:
    finite = [value for value in values if not math.isnan(value)]
    if not finite:
        return "–"
    mean = number(float(np.mean(finite)), digits)
    return mean if len(finite) == 1 else f"{mean} ({number(min(finite), digits)} to {number(max(finite), digits)})"


def _published_rows(summary: RecipeSummary) -> tuple[PublishedRow, ...]:
    return GEDIT if summary.task is EDITS else T2IS_ABLATION


def _published(summary: RecipeSummary) -> ResultTable:
    """The paper's rows, for comparison by eye."""
    published = _published_rows(summary)
    if summary.task is EDITS:
        return published_edits_table(published)
    names = {"aesthetics": 3, "following": 3, "consistency": 3, "hours": 1}
    rows = [[f"{r.model} (published)", *(number(r.figures[n], d) for n, d in names.items())] for r in published]
    note = f"{published[0].source}: FLUX.1-dev on T2IS-Bench, 8 x H100. Models, data and evaluators differ from here."
    return ResultTable("Published", ["model", *names], rows, [note])


def _runs(summary: RecipeSummary) -> ResultTable:
    rows = [
        [variant, str(seed), training["experiment"], training["run"] or "–", training.get("ended", "–")]
        for variant, row in summary.variants.items()
        for seed, training in row["trainings"].items()
    ]
    head = ["variant", "training seed", "DVC experiment", "MLflow run of its training", "ended"]
    return ResultTable("Runs", head, rows, ["`paco compare EXPERIMENT EXPERIMENT` compares their curves and images."])
