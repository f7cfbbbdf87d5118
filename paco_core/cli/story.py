"""`paco story`: a story with the characters of a person, before and after training, and how well panels keep them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.api.judge import Judge
from paco_core.api.painter import Painter
from paco_core.data.records.records import characters_of_panels
from paco_core.grpo.panel_references import character_references
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.contact_sheet import draw_contact_sheet
from paco_core.io.files import digest
from paco_core.io.image_metadata import save_image
from paco_core.io.pictures import join_in_row
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.io.text_table import text_table
from paco_core.operations.painters import BASE
from paco_core.sampling.generated_image import AFTER, BEFORE
from paco_core.sampling.origin import image_metadata

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.operations.painters import NamedPolicy
    from paco_core.sampling.generated_image import GeneratedImage

FOLDER = Path("painted")


@dataclass(frozen=True)
class StoryOptions:
    """Options of the verb: what all panels share, noise, size, output folder, and the metadata of the images."""

    theme: str | None
    seed: int
    size: int | None
    steps: int | None
    out: Path | None
    metadata: bool = True


def tell_story(
    root: Path,
    policy: str | None,
    by: NamedPolicy,
    panels: Sequence[str],
    characters: Mapping[str, Sequence[Path]],
    options: StoryOptions,
) -> Answer:
    """Generate a story before and (if the policy is trained) after training. Returns files and scores.

    Args:
        policy: name of the policy, as of :func:`paco_core.operations.stories.story_policy`, which returned ``by``.

    Raises:
        DataError: if a character or an image cannot be used.
    """
    key = digest([*panels, *map(str, characters), by.name, str(options.theme)])[:6]
    folder = checked(options.out or root / FOLDER / f"story-{key}", "folder")
    names = {BEFORE: BASE, AFTER: by.name.replace("@", "-")}
    for file in ("strip.png", *(f"{label}-{options.seed}.png" for label in names.values())):
        checked(folder / file, "file", inputs=[path for files in characters.values() for path in files])
    painter = Painter(policy or (BASE if by.adapter is None else by.name), project=root)
    with painter, Progress(1 if by.adapter is None else 2, "paint", "stories") as progress:
        stories = painter.story(
            panels, characters, theme=options.theme, seeds=[options.seed], size=options.size, steps=options.steps,
            advance=progress.advance,
        )  # fmt: skip
        has_reward = (root / paths.REWARD_MERGED).is_dir()
        scores = Judge(project=root).characters(stories) if has_reward else None
    files = {}
    for story in stories:
        files[names[story.when]] = folder / f"{names[story.when]}-{options.seed}.png"
        story.save(files[names[story.when]], metadata=options.metadata)
    origins = [story.origin for story in stories if story.origin is not None] if options.metadata else []
    save_image(_strip(stories, names), folder / "strip.png", image_metadata(origins))
    rows = _rows(stories, names, scores)
    lines = [] if by.adapter is not None else [f"base only: {by.name} is not trained yet"]
    lines += text_table([
        (f"panel {row['panel']}", str(row["character"]), *(f"{label} {_score(row[label])}" for label in files))
        for row in rows
    ])  # fmt: skip
    if scores is None:
        lines.append("no scores: there is no reward model yet; run `dvc repro reward_merged`")
    else:
        lines.append("scores: P(Yes) of the reward model that the panel shows the character, 0 to 1")
    lost = stories[0].lost
    lines += [] if lost is None else [f"the prompt is cut: {lost}"]
    figures = {
        "prompt": stories[0].record.prompt, "policy": by.name, "seed": options.seed,
        "stories": {label: str(file) for label, file in files.items()}, "scores": rows, "strip": folder / "strip.png",
    }  # fmt: skip
    return Answer("\n".join([*lines, f"strip: {folder / 'strip.png'}"]), figures)


def _rows(
    stories: Sequence[GeneratedImage], names: Mapping[str, str], scores: list[list[dict[str, float]]] | None
) -> list[dict[str, object]]:
    """One row per panel and character that its text names, with the score of each story."""
    rows: list[dict[str, object]] = []
    for number, panel in enumerate(characters_of_panels(stories[0].record)):
        for character in panel:
            values = {
                names[story.when]: None if scores is None else _or_none(scores[place][number][character.name])
                for place, story in enumerate(stories)
            }
            rows.append({"panel": number + 1, "character": character.name, **values})
    return rows


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 4)


def _score(value: object) -> str:
    return "–" if value is None else f"{value:.3f}"


def _strip(stories: Sequence[GeneratedImage], names: Mapping[str, str]) -> Image:
    """The images of the characters, and one row of panels per state of the policy."""
    record = stories[0].record
    high = stories[0].panels[0].height
    captions = ["characters: " + ", ".join(c.name for c in record.characters for _ in c.images)]
    images = [join_in_row(character_references(record), high), *(story.image for story in stories)]
    captions += [f"{names[story.when]}, seed {story.seed}" for story in stories]
    return draw_contact_sheet(images, 1, stories[0].image.width, captions, record.theme)
