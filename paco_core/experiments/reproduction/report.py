"""The report: Markdown, HTML and JSON with a part for each recipe, written whole or not at all, from kept cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.benchmarks.tables import ResultTable
from paco_core.config.params import Params
from paco_core.experiments.grid import RESULT
from paco_core.experiments.reproduction.cells import FinishedCell
from paco_core.experiments.reproduction.exam import CAPTIONS, PICTURES, REFERENCE, SHOWN, read_table
from paco_core.experiments.reproduction.findings import Finding, findings, signed
from paco_core.experiments.reproduction.summary import RecipeSummary, by_recipe, summarise
from paco_core.experiments.reproduction.tables import basis, published_rows, tables
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json, write_json, write_text
from paco_core.io.pictures import read_image
from paco_core.report import charts, html
from paco_core.tasks.table import measured_by

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


@dataclass(frozen=True)
class RecipePart:
    """All that the report says of one recipe; ``before`` is the folder of its bare model's examination."""

    summary: RecipeSummary
    findings: Sequence[Finding]
    tables: Sequence[ResultTable]
    cells: Sequence[FinishedCell]
    before: Path

    @property
    def basis(self) -> str:
        return basis(self.summary)

    def as_dict(self) -> dict[str, Any]:
        published = [
            {"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in published_rows(self.summary)
        ]
        return {**self.summary.as_dict(), "findings": [f.as_dict() for f in self.findings], "published": published}

    def plots(self) -> list[tuple[str, list[tuple[str, list[tuple[str, str]]]], str]]:
        """Change after training of each measure: its name, (variant, (drawing, figures) by size), the axis."""
        summary, made = self.summary, []
        for measure, name in PLOTTED.items():
            if measure not in summary.measures:
                continue
            changes = [(r.variant, [r.measures[size][measure].change for size in summary.sizes]) for r in summary.rows]
            ends = [end for _, found in changes for e in found for end in (e.mean, e.low, e.high)]
            axis = charts.Axis.over(ends, include=(0.0,))
            rows = [
                (variant, [(charts.whisker(axis, e.mean, e.low, e.high, "s1", guide=0.0), signed(e)) for e in found])
                for variant, found in changes
            ]
            made.append((name, rows, charts.axis_labels(axis)))
        return made

    def sheets(self) -> list[tuple[int, list[str], list[tuple[str, list[html.Picture]]]]]:
        """By size: captions, and pictures by painter: what is edited, if anything, the bare model, each variant.

        All painters made them of the same prompts from the same noise; a variant under its first seed.
        """
        captions: dict[str, str] = read_json(self.before / PICTURES / CAPTIONS)
        firsts = {cell.variant: cell.folder for cell in reversed(self.cells)}
        painters = [("before training", self.before), *((r.variant, firsts[r.variant]) for r in self.summary.rows)]
        reference = self.before / PICTURES / REFERENCE
        made = []
        for size in self.summary.sizes:
            places = [(name, folder / PICTURES / str(size)) for name, folder in painters]
            if reference.is_dir():
                places.insert(0, ("picture to edit", reference))
            strips = [
                (
                    name,
                    [
                        html.Picture.from_image(read_image(folder / f"{idx}.png"), f"{name}, {size} px: {text}")
                        for idx, text in captions.items()
                    ],
                )
                for name, folder in places
            ]
            made.append((size, list(captions.values()), strips))
        return made


def before_folder(out: Path, recipe: str) -> Path:
    """Where the examination of a recipe's bare model lies."""
    return out / "before" / recipe


def go_together(out: Path, cells: Sequence[FinishedCell]) -> bool:
    """Do a recipe's cells rest on the same settings, and on the bare model as it was examined last?"""
    key = read_json(before_folder(out, cells[0].recipe) / RESULT)["key"]
    return len({cell.basis for cell in cells}) == 1 and all(cell.examined == key for cell in cells)


def write(out: Path, cells: Sequence[FinishedCell], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the latter.

    Raises:
        DataError: when the cells cannot stand in one report (:func:`by_recipe`), or a file of theirs is missing.
    """
    parts = {recipe: _part(out, recipe, found, params) for recipe, found in by_recipe(cells).items()}
    text = _markdown(out.name, parts)
    view = {"name": out.name, "parts": parts, "columns": SHOWN}
    page = html.render(TEMPLATE, view)
    whole = {"name": out.name, "recipes": {recipe: part.as_dict() for recipe, part in parts.items()}}
    write_text(out / f"{NAME}.md", text)
    write_text(out / f"{NAME}.html", page)
    write_json(out / f"{NAME}.json", whole)
    return Answer(text, whole)


def _part(out: Path, recipe: str, cells: Sequence[FinishedCell], params: Params) -> RecipePart:
    before = before_folder(out, recipe)
    if not go_together(out, cells):
        raise DataError(f"{before}: the bare model was measured differently from the cells; run `paco reproduce` again")
    numbers = measured_by(cells[0].settings["benchmark"]).numbers(params)
    summary = summarise(recipe, cells, read_table(before), numbers.bootstrap)
    return RecipePart(summary, findings(summary), tables(summary), cells, before)


def _markdown(name: str, parts: dict[str, RecipePart]) -> str:
    lines = [f"# Reproduced in small: {name}", ""]
    claims = [[f.claim, f.verdict, f.evidence] for part in parts.values() for f in part.findings]
    if claims:
        lines.append(ResultTable("What came out", ["claim", "here", "figures"], claims).markdown())
    for recipe, part in parts.items():
        lines += [f"# {recipe}", "", part.basis, "", *(table.markdown() for table in part.tables)]
    return "\n".join(lines)
