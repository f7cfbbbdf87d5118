"""The story that travels with a policy: ``provenance.json`` in its folder and a part of its model card."""

from __future__ import annotations

from pathlib import Path

from paco_core.files import write_json, write_text
from paco_core.lock import Lock, Recipe
from paco_core.provenance.chain import Run, of_stage_now
from paco_core.provenance.runs import RunFinder
from paco_core.provenance.text import markdown
from paco_core.provenance.verify import SHIPPED

HEADING = "## Provenance of"


def ship(out: Path, root: Path, label: str, command: str, recipe: Recipe | None, run: Run, card: Path) -> str | None:
    """Write ``out/provenance.json`` and add the story to the model card; says what could not be told, if anything.

    Args:
        label: the running stage, ``policies@flux_t2is``; ``dvc.lock`` does not record this run yet.
        recipe: what it read, None when that is not known.
        card: a Markdown file; a story that it tells already is replaced.
    """
    if recipe is None:
        return f"{label} is no stage of dvc.yaml, or lacks an input: its provenance is not known"
    finder = RunFinder(root)
    told = of_stage_now(label, command, recipe, out.relative_to(root).as_posix(), Lock.read(root), finder, run)
    write_json(out / SHIPPED, told.as_dict())
    text = card.read_text(encoding="utf-8").partition(f"\n{HEADING}")[0].rstrip("\n")
    write_text(card, f"{text}\n\n{markdown(told, level=2)}")
    return finder.failure
