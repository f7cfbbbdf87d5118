"""Ranking instances: a reference panel, and the panels of another grid of the same prompt, which are ranked.

With P panels per grid and S seeds per prompt there are P * S references and S - 1 other grids for each. For example,
2x2 grids and four seeds give 16 * 3 = 48 instances per prompt.
"""

from __future__ import annotations

import pandas as pd

from paco_core.data.records.prompt_text import parse_layout
from paco_core.data.records.records import panel_ref
from paco_core.io.files import DataError, digest

COLUMNS = ("instance_id", "prompt_id", "reference", "candidates")


def build_instances(grids: pd.DataFrame) -> pd.DataFrame:
    """Build all instances of all prompts in a stable order. An instance id is a digest of its reference and grid.

    Args:
        grids: the index of the shards; columns ``id``, ``prompt_id``, ``seed``, ``layout``.

    Raises:
        DataError: if a prompt has only one grid, or its grids differ in layout or repeat a seed.
    """
    rows: list[tuple[str, str, str, list[str]]] = []
    for prompt_id, group in grids.reset_index(drop=True).groupby("prompt_id", sort=True):
        prompt_grids = group.sort_values("seed")
        layouts, seeds = set(prompt_grids["layout"]), list(prompt_grids["seed"])
        if len(layouts) != 1 or len(set(seeds)) != len(seeds):
            raise DataError(f"prompt {prompt_id}: its grids have layouts {sorted(layouts)} and seeds {seeds}")
        if len(seeds) < 2:
            raise DataError(f"prompt {prompt_id}: it has only one grid, and a ranking needs two; run `dvc repro grids`")
        panels = _panels(layouts.pop())
        for reference_grid in prompt_grids["id"]:
            for panel in range(panels):
                reference = panel_ref(reference_grid, panel)
                rows += [
                    (digest([reference, other], 16), str(prompt_id), reference, _all_panels(other, panels))
                    for other in prompt_grids["id"]
                    if other != reference_grid
                ]
    return pd.DataFrame(rows, columns=list(COLUMNS))


def expected_instances(layout: str, seeds: int) -> int:
    """The number of instances of one prompt."""
    return _panels(layout) * seeds * (seeds - 1)


def _panels(layout: str) -> int:
    rows, columns = parse_layout(layout)
    return rows * columns


def _all_panels(grid_id: str, panels: int) -> list[str]:
    return [panel_ref(grid_id, panel) for panel in range(panels)]
