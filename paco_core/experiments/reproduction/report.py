"""The report: Markdown, HTML and JSON with a part for each recipe, written whole or not at all, from finished cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paco_core.benchmarks.tables import ResultTable, signed
from paco_core.config.params import Params
from paco_core.experiments.grid import Result
from paco_core.experiments.reproduction.findings import Finding, findings
from paco_core.experiments.reproduction.summary import RecipeSummary, summarise
from paco_core.experiments.reproduction.tables import BARE, MEASURES, basis, head, published_rows, tables
from paco_core.io.answer import Answer, plain
from paco_core.io.files import DataError, read_json, write_json, write_text
from paco_core.io.pictures import read_image
from paco_core.painting.painted import AFTER, BEFORE
from paco_core.report import charts, html

NAME = "report"
SHOWN = 4  # prompts whose images are on the page
TEMPLATE = Path(__file__).parent / "templates" / "reproduction.html.j2"


def plots(summary: RecipeSummary) -> list[tuple[str, list[tuple[str, list[tuple[str, str]]]], str]]:
    """Change after training of each measure: its name, (variant, (drawing, figures) by size), the axis."""
    made = []
    for measure in (name for names in MEASURES.values() for name in names if name in summary.measures):
        changes = {
            variant: [row.measures[size][measure].change for size in summary.sizes]
            for variant, row in summary.variants.items()
        }
        ends = [end for found in changes.values() for e in found for end in (e.mean, e.low, e.high)]
        axis = charts.Axis.over(ends, include=(0.0,))
        rows = [
            (variant, [(charts.whisker(axis, e.mean, e.low, e.high, "s1", guide=0.0), signed(e)) for e in found])
            for variant, found in changes.items()
        ]
        made.append((head(measure), rows, charts.axis_labels(axis)))
    return made


def sheets(summary: RecipeSummary) -> list[tuple[int, list[str], list[tuple[str, list[html.Picture]]]]]:
    """By size: captions, and images by their maker: references of edits, the bare model, each variant.

    All are of the same prompts from the same noise, those that the benchmark stores as samples.
    """
    folders = {name: result.folder(summary.task.results) / "samples" for name, result in summary.samples.items()}
    entries = {
        name: [e for e in read_json(folder / "samples.json") if e["policy"] == summary.recipe]
        for name, folder in folders.items()
    }
    first = next(iter(folders))
    prompts = {e["prompt_id"]: e["prompt" if "reference" in e else "theme"] for e in entries[first]}
    captions = dict(list(prompts.items())[:SHOWN])
    made = []
    for size in summary.sizes:
        strips = [
            (who, _strip(who, folders[name], [e for e in entries[name] if e["size"] == size], key, when, captions))
            for who, name, key, when in (
                ("picture to edit", first, "reference", BEFORE),
                (BARE, first, "file", BEFORE),
                *((name, name, "file", AFTER) for name in folders),
            )
        ]
        made.append((size, list(captions.values()), [strip for strip in strips if strip[1]]))
    return made


def _strip(
    who: str, folder: Path, entries: Sequence[Mapping[str, Any]], key: str, when: str, captions: Mapping[str, str]
) -> list[html.Picture]:
    files = {e["prompt_id"]: e[key] for e in entries if e["when"] == when and key in e}
    return [
        html.Picture.from_image(read_image(folder / files[idx]), f"{who}, {entries[0]['size']} px: {text}")
        for idx, text in captions.items()
        if idx in files
    ]


def write(out: Path, results: Sequence[Result], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the latter.

    Args:
        results: in the order of the variants and seeds.

    Raises:
        DataError: when there is none, or a file of theirs is missing.
    """
    if not results:
        raise DataError("no cell of the files in git as they are now is finished; run `paco reproduce`")
    parts = summarise(results, params)
    claims = {recipe: findings(part) for recipe, part in parts.items()}
    figures = {
        recipe: {
            "settings": part.settings,
            "resamples": part.resamples,
            "variants": part.variants,
            "findings": claims[recipe],
            "published": published_rows(part),
        }
        for recipe, part in parts.items()
    }
    listed = [claim for found in claims.values() for claim in found]
    functions = {"basis": basis, "plots": plots, "sheets": sheets, "tables": tables}
    page = html.render(TEMPLATE, {"name": out.name, "claims": listed, "parts": parts, "columns": SHOWN, **functions})
    answer = Answer(_markdown(out.name, listed, parts), plain({"name": out.name, "recipes": figures}))
    write_text(out / f"{NAME}.md", answer)
    write_text(out / f"{NAME}.html", page)
    write_json(out / f"{NAME}.json", answer.figures)
    return answer


def _markdown(name: str, claims: Sequence[Finding], parts: Mapping[str, RecipeSummary]) -> str:
    lines = [f"# Reproduced in small: {name}", ""]
    if claims:
        rows = [[found.claim, found.verdict, found.evidence] for found in claims]
        lines.append(ResultTable("What came out", ["claim", "here", "figures"], rows).markdown())
    for recipe, part in parts.items():
        lines += [f"# {recipe}", "", basis(part), "", *(table.markdown() for table in tables(part))]
    return "\n".join(lines)
