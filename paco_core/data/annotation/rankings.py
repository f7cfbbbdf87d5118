"""Ranking instances: a reference panel, and the panels of one other grid of the same prompt to be ranked.

With P panels a grid and S seeds a prompt there are P * S references and S - 1 other grids for each:
16 * 3 = 48 instances at 2x2 and four seeds.
"""

from __future__ import annotations

import pandas as pd

from paco_core.data.records.prompt_text import parse_layout
from paco_core.data.records.records import panel_ref
from paco_core.io.files import DataError, digest

COLUMNS = ("instance_id", "prompt_id", "reference", "candidates")


def instances(grids: pd.DataFrame) -> pd.DataFrame:
    """Every instance of every prompt, in a stable order under ids by content.

    Args:
        grids: the shards' index; columns ``id``, ``prompt_id``, ``seed``, ``layout``.

    Raises:
        DataError: naming a prompt whose grids differ in layout or repeat a seed, or that has one grid only.
    """
    rows: list[tuple[str, str, str, list[str]]] = []
    for prompt_id, group in grids.reset_index(drop=True).groupby("prompt_id", sort=True):
        own = group.sort_values("seed")
        layouts, seeds = set(own["layout"]), list(own["seed"])
        if len(layouts) != 1 or len(set(seeds)) != len(seeds):
            raise DataError(f"prompt {prompt_id}: its grids have layouts {sorted(layouts)} and seeds {seeds}")
        if len(seeds) < 2:
            raise DataError(f"prompt {prompt_id}: it has one grid only, a ranking needs two; run `dvc repro grids`")
        panels = _panels(layouts.pop())
        for reference_grid in own["id"]:
            for panel in range(panels):
                reference = panel_ref(reference_grid, panel)
                rows += [
                    (digest([reference, other], 16), str(prompt_id), reference, _all_panels(other, panels))
                    for other in own["id"]
                    if other != reference_grid
                ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def expected_instances(layout: str, seeds: int) -> int:
    """How many instances one prompt has."""
    return _panels(layout) * seeds * (seeds - 1)


def _panels(layout: str) -> int:
    rows, columns = parse_layout(layout)
    return rows * columns


def _all_panels(grid_id: str, panels: int) -> list[str]:
    return [panel_ref(grid_id, panel) for panel in range(panels)]
