"""The report: Markdown, HTML and JSON with a part for each recipe, written whole or not at all, from kept cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paco_core.benchmarks.tables import ResultTable, signed
from paco_core.config.params import Params
from paco_core.experiments.reproduction.cells import Kept
from paco_core.experiments.reproduction.exam import CAPTIONS, PICTURES, REFERENCE, SHOWN
from paco_core.experiments.reproduction.findings import findings
from paco_core.experiments.reproduction.summary import BARE, RecipeSummary, summarise
from paco_core.experiments.reproduction.tables import basis, published_rows, tables
from paco_core.io.answer import Answer
from paco_core.io.files import read_json, write_json, write_text
from paco_core.io.pictures import read_image
from paco_core.report import charts, html

NAME = "report"
TEMPLATE = Path(__file__).parent / "templates" / "reproduction.html.j2"
PLOTTED = {
    "gold_consistency": "Gold consistency",
    "gold_following": "Gold prompt following",
    "consistency": "Judge’s consistency",
    "panel_diversity": "Panel diversity",
    "gold_editing": "Edited as asked, all else kept (gold)",
    "gold_reached": "Asked trait reached (gold)",
    "gold_kept": "Other traits kept (gold)",
    "editing": "Editing reward",
}


def plots(summary: RecipeSummary) -> list[tuple[str, list[tuple[str, list[tuple[str, str]]]], str]]:
    """Change after training of each measure: its name, (variant, (drawing, figures) by size), the axis."""
    made = []
    for measure in (name for name in PLOTTED if name in summary.measures):
        changes = [
            (variant, [row.measures[size][measure].change for size in summary.sizes])
            for variant, row in summary.variants.items()
        ]
        ends = [end for _, found in changes for e in found for end in (e.mean, e.low, e.high)]
        axis = charts.Axis.over(ends, include=(0.0,))
        rows = [
            (variant, [(charts.whisker(axis, e.mean, e.low, e.high, "s1", guide=0.0), signed(e)) for e in found])
            for variant, found in changes
        ]
        made.append((PLOTTED[measure], rows, charts.axis_labels(axis)))
    return made


def sheets(summary: RecipeSummary) -> list[tuple[int, list[str], list[tuple[str, list[html.Picture]]]]]:
    """By size: captions, and pictures by painter: what is edited, if anything, the bare model, each variant.

    All painters made them of the same prompts from the same noise.
    """
    before = summary.painters[BARE] / PICTURES
    captions: dict[str, str] = read_json(before / CAPTIONS)
    made = []
    for size in summary.sizes:
        places = {name: folder / PICTURES / str(size) for name, folder in summary.painters.items()}
        if (before / REFERENCE).is_dir():
            places = {"picture to edit": before / REFERENCE, **places}
        strips = [
            (name, [_picture(folder / f"{idx}.png", f"{name}, {size} px: {text}") for idx, text in captions.items()])
            for name, folder in places.items()
        ]
        made.append((size, list(captions.values()), strips))
    return made


def _picture(path: Path, alt: str) -> html.Picture:
    return html.Picture.from_image(read_image(path), alt)


def write(out: Path, cells: Sequence[Kept], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the latter.

    Raises:
        DataError: when the cells cannot stand in one report (:func:`summarise`), or a file of theirs is missing.
    """
    parts = summarise(out, cells, params)
    text = _markdown(out.name, parts)
    functions = {"basis": basis, "findings": findings, "plots": plots, "sheets": sheets, "tables": tables}
    page = html.render(TEMPLATE, {"name": out.name, "parts": parts, "columns": SHOWN, **functions})
    whole = {"name": out.name, "recipes": {recipe: _figures(part) for recipe, part in parts.items()}}
    write_text(out / f"{NAME}.md", text)
    write_text(out / f"{NAME}.html", page)
    write_json(out / f"{NAME}.json", whole)
    return Answer(text, whole)


def _figures(summary: RecipeSummary) -> dict[str, Any]:
    rows = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in published_rows(summary)]
    return {**summary.as_dict(), "findings": [asdict(found) for found in findings(summary)], "published": rows}


def _markdown(name: str, parts: dict[str, RecipeSummary]) -> str:
    lines = [f"# Reproduced in small: {name}", ""]
    claims = [[f.claim, f.verdict, f.evidence] for part in parts.values() for f in findings(part)]
    if claims:
        lines.append(ResultTable("What came out", ["claim", "here", "figures"], claims).markdown())
    for recipe, part in parts.items():
        lines += [f"# {recipe}", "", basis(part), "", *(table.markdown() for table in tables(part))]
    return "\n".join(lines)
