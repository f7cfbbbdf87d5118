"""Sets whose panels are generated as separate images: a baseline without access to the other panels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paco_core.data.records.records import panel_texts
from paco_core.grpo.sampling import compose_grid
from paco_core.sampling.generated_image import SEPARATELY, GeneratedImage
from paco_core.sampling.generation import generate_images

if TYPE_CHECKING:
    from paco_core.config.params import PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.policies.base import Policy


def panel_records(record: PromptRecord) -> list[PromptRecord]:
    """One record per panel. Its prompt is the shared text of the set, followed by the text of the panel."""
    return [
        record.model_copy(update={"idx": f"{record.idx}-{number}", "prompt": text, "layout": "1x1"})
        for number, text in enumerate(panel_texts(record))
    ]


def generate_separate_panels(
    policy: Policy,
    name: str,
    recipe: PolicyRecipe,
    records: Sequence[PromptRecord],
    *,
    seeds: Sequence[int],
    steps: int,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[GeneratedImage]:
    """Generate every size of a recipe. Each panel is an image of that size, and a set is a grid of them.

    Args:
        advance: is called with the number of images of each batch.
    """
    panels = {record.idx: panel_records(record) for record in records}
    sets: list[GeneratedImage] = []
    for size in recipe.eval_sizes:
        panel_images = {
            (image.record.idx, image.seed): image
            for image in generate_images(
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
                images = [panel_images[panel.idx, seed] for panel in panels[record.idx]]
                lost = next((image.lost for image in images if image.lost is not None), None)
                grid = compose_grid([image.image for image in images], record.grid)
                sets.append(GeneratedImage(name, size, SEPARATELY, record, seed, grid, lost))
    return sets
