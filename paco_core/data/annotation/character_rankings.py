"""Rankings of panels with characters, as generated stories: the input of ``pairs.characters.stories``.

stories.jsonl   one line per ranked group (:mod:`paco_core.data.pairs.character_stories`)
images/         the panels, and the images of the characters
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.annotation.votes import Annotation
from paco_core.data.records.characters import load_images
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, digest, write_jsonl
from paco_core.io.pictures import picture_digest
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.data.annotation.preference_files import ImageSource

CHARACTERS, STORIES = "characters", "stories.jsonl"


def export_stories(folder: Path, instances: pd.DataFrame, votes: Iterable[Annotation], images: ImageSource) -> int:
    """Write the best and the worst panel of each group into a new folder, and return the number of groups.

    A panel counts only if all annotators of its group agree that it is the best one, or the worst one.

    Args:
        instances: columns ``instance_id``, ``prompt``, ``candidates`` and ``characters``.

    Raises:
        DataError: if no group with characters has such a panel, the folder exists, or an image cannot be read.
    """
    rankings: dict[str, list[list[int]]] = {}
    for vote in votes:
        rankings.setdefault(vote.instance_id, []).append(list(vote.ranking))
    with atomic(folder) as part:
        (part / "images").mkdir(parents=True)

        def write(image: Image) -> str:
            name = f"images/{digest(picture_digest(image), 20)}.png"
            (part / name).write_bytes(encode_png(image))
            return name

        stories = []
        for row in instances.to_dict("records"):
            names = [character.name for character in row["characters"]]
            panels = _agreed_panels(rankings.get(row["instance_id"], []), names) if names else []
            if panels:
                characters = [{"name": c.name, "images": list(map(write, load_images(c)))} for c in row["characters"]]
                story = [
                    {"image": write(images.panel(row["candidates"][position])), "text": row["prompt"], **names_by_key}
                    for position, names_by_key in panels
                ]
                stories.append({"characters": characters, "panels": story})
        if not stories:
            raise DataError(
                "there is no ranking with characters to export; put images of the characters into the folders "
                "characters/NAME of the groups, and rank them with `paco annotate --pictures`"
            )
        write_jsonl(part / STORIES, stories)
    return len(stories)


def _agreed_panels(rankings: Sequence[Sequence[int]], names: list[str]) -> list[tuple[int, Mapping[str, Any]]]:
    """(position, keys of its panel) of the best and the worst candidate, if all annotators agree on it."""
    best, worst = ({ranking[end] for ranking in rankings} for end in (0, -1))
    panels: list[tuple[int, Mapping[str, Any]]] = []
    if len(best) == 1:
        panels.append((best.pop(), {"shows": names}))
    if len(worst) == 1:
        panels.append((worst.pop(), {"shows": [], "wrong": names}))
    return panels
