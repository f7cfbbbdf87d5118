"""Sets painted one picture at a time: what a model does without seeing its other panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paco_core.grpo.sampling import compose, panel_texts
from paco_core.painting.paint import paint
from paco_core.painting.painted import SEPARATELY, Painted

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.base import Policy


def panel_records(record: PromptRecord) -> list[PromptRecord]:
    """One record a panel: what all panels share, then the panel's own text."""
    return [
        record.model_copy(update={"idx": f"{record.idx}-{number}", "prompt": text, "layout": "1x1"})
        for number, text in enumerate(panel_texts(record))
    ]


def paint_separately(
    policy: Policy,
    name: str,
    recipe: PolicyRecipe,
    records: Sequence[PromptRecord],
    *,
    seeds: Sequence[int],
    steps: int,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Painted]:
    """Every size of a recipe; each panel is a picture of that size, and a set is shown as a grid of them."""
    panels = {record.idx: panel_records(record) for record in records}
    found: list[Painted] = []
    for size in recipe.eval_sizes:
        pictures = {
            (painted.record.idx, painted.seed): painted
            for painted in paint(
                policy,
                [panel for row in panels.values() for panel in row],
                seeds,
                size,
                name=name,
                when=SEPARATELY,
                steps=steps,
                guidance=recipe.guidance,
                max_sequence_length=recipe.max_sequence_length,
                advance=advance,
            )
        }
        for record in records:
            for seed in seeds:
                alone = [pictures[panel.idx, seed] for panel in panels[record.idx]]
                lost = next((panel.lost for panel in alone if panel.lost is not None), None)
                page = compose([panel.image for panel in alone], record.grid)
                found.append(Painted(name, size, SEPARATELY, record, seed, page, lost))
    return found
