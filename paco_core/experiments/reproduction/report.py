"""The report: Markdown, HTML and JSON with a part for each recipe, written whole or not at all, from kept cells."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from paco_core.benchmarks.tables import Table
from paco_core.config.params import Params
from paco_core.experiments.grid import RESULT
from paco_core.experiments.reproduction.cells import Kept
from paco_core.experiments.reproduction.exam import read_table
from paco_core.experiments.reproduction.findings import findings
from paco_core.experiments.reproduction.page import render
from paco_core.experiments.reproduction.part import Part
from paco_core.experiments.reproduction.summary import by_recipe, summarise
from paco_core.experiments.reproduction.tables import tables
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, read_json, write_json, write_text
from paco_core.tasks.table import measured_by

NAME = "report"


def before_folder(out: Path, recipe: str) -> Path:
    """Where the examination of a recipe's bare model lies."""
    return out / "before" / recipe


def go_together(out: Path, cells: Sequence[Kept]) -> bool:
    """Do a recipe's cells rest on the same settings, and on the bare model as it was examined last?"""
    key = read_json(before_folder(out, cells[0].recipe) / RESULT)["key"]
    return len({cell.basis for cell in cells}) == 1 and all(cell.examined == key for cell in cells)


def write(out: Path, cells: Sequence[Kept], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the latter.

    Raises:
        DataError: when the cells cannot stand in one report (:func:`by_recipe`), or a file of theirs is missing.
    """
    parts = [_part(out, recipe, found, params) for recipe, found in by_recipe(cells).items()]
    text = markdown(out.name, parts)
    page = render(out.name, parts)
    whole = {"name": out.name, "recipes": {part.recipe: part.as_dict() for part in parts}}
    write_text(out / f"{NAME}.md", text)
    write_text(out / f"{NAME}.html", page)
    write_json(out / f"{NAME}.json", whole)
    return Answer(text, whole)


def _part(out: Path, recipe: str, cells: Sequence[Kept], params: Params) -> Part:
    before = before_folder(out, recipe)
    if not go_together(out, cells):
        raise DataError(f"{before}: the bare model was measured differently from the cells; run `paco reproduce` again")
    numbers = measured_by(cells[0].settings["benchmark"]).numbers(params)
    summary = summarise(recipe, cells, read_table(before), numbers.bootstrap)
    return Part(summary, findings(summary), tables(summary), cells, before)


def markdown(name: str, parts: Sequence[Part]) -> str:
    """The report as text."""
    lines = [f"# Reproduced in small: {name}", ""]
    claims = [[f.claim, f.verdict, f.evidence] for part in parts for f in part.findings]
    if claims:
        lines.append(Table("What came out", ["claim", "here", "figures"], claims).markdown())
    for part in parts:
        lines += [f"# {part.recipe}", "", part.basis, "", *(table.markdown() for table in part.tables)]
    return "\n".join(lines)
