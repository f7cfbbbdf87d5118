"""The report: Markdown, HTML and JSON with a part for each recipe, written whole or not at all, from kept cells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from paco_core.benchmarks.tables import ResultTable, signed
from paco_core.config.params import Params
from paco_core.experiments.reproduction.cells import CAPTIONS, PICTURES, REFERENCE, SHOWN
from paco_core.experiments.reproduction.findings import Finding, findings
from paco_core.experiments.reproduction.summary import BARE, KeptCell, RecipeSummary, summarise
from paco_core.experiments.reproduction.tables import MEASURES, basis, head, published_rows, tables
from paco_core.io.answer import Answer, plain
from paco_core.io.files import DataError, read_json, write_json, write_text
from paco_core.io.pictures import read_image
from paco_core.report import charts, html

NAME = "report"
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
    """By size: captions, and pictures by painter: what is edited, if anything, the bare model, each variant.

    All painters made them of the same prompts from the same noise.
    """
    before = summary.painters[BARE] / PICTURES
    captions: dict[str, str] = read_json(before / CAPTIONS)
    edited = {"picture to edit": before / REFERENCE} if (before / REFERENCE).is_dir() else {}
    made = []
    for size in summary.sizes:
        places = edited | {name: folder / PICTURES / str(size) for name, folder in summary.painters.items()}
        strips = [
            (name, [_picture(folder / f"{idx}.png", f"{name}, {size} px: {text}") for idx, text in captions.items()])
            for name, folder in places.items()
        ]
        made.append((size, list(captions.values()), strips))
    return made


def _picture(path: Path, alt: str) -> html.Picture:
    return html.Picture.from_image(read_image(path), alt)


def write(out: Path, cells: Sequence[KeptCell], params: Params) -> Answer:
    """Write ``report.md``, ``report.html`` and ``report.json`` to ``out``; return the Markdown and the latter.

    Args:
        cells: those that fit, as :func:`kept_cells` orders them.

    Raises:
        DataError: when there is none, or a file of theirs is missing.
    """
    if not cells:
        raise DataError("no cell is finished yet; run `paco reproduce`")
    parts = summarise(out, cells, params)
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
