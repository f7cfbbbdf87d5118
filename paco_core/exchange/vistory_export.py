"""Export of stories as ViStoryBench publishes them: ``ViStory/NN/story.json`` and ``NN/image/<character>/NN.png``.

This is the inverse of :mod:`.vistory`. Images are those of the characters of a record.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.records.characters import load_images
from paco_core.data.records.story_records import story_of
from paco_core.io.files import inside, write_json
from paco_core.io.shards import encode_png

if TYPE_CHECKING:
    from paco_core.data.records.records import PromptRecord


def write_stories(records: Iterable[PromptRecord], folder: Path) -> None:
    """Write one folder per story, with the languages of its records.

    Raises:
        DataError: if a record is not a story, or an image of a character is missing or damaged.
    """
    contents: dict[str, dict[str, Any]] = {}
    for record in records:
        story, place = story_of(record), folder / "ViStory" / story_of(record).story
        content = contents.setdefault(story.story, {"Story_type": {}, "Shots": {}, "Characters": {}})
        content["Story_type"][story.language] = record.theme.partition(": ")[2]
        for shot in story.shots:
            entry = content["Shots"].setdefault(shot.index, {"index": shot.index})
            texts = {
                "Setting Description": shot.setting, "Plot Correspondence": shot.plot,
                "Static Shot Description": shot.action, "Shot Perspective Design": shot.camera,
            }  # fmt: skip
            for name, value in [*texts.items(), ("Characters Appearing", list(shot.characters))]:
                entry.setdefault(name, {})[story.language] = value
            entry["Characters Appearing"]["en"] = list(shot.characters)  # keys, which are English in each language
        for key, member in story.cast.items():
            row = content["Characters"].setdefault(key, {"name_en": key})
            row |= {f"name_{story.language}": member.name, f"prompt_{story.language}": member.description}
            images = [image for c in record.characters if c.name == member.name for image in load_images(c)]
            for number, image in enumerate(images):
                file = inside(place / "image", key) / f"{number:02d}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(encode_png(image))
    for name, content in contents.items():
        content["Shots"] = [content["Shots"][index] for index in sorted(content["Shots"])]
        (folder / "ViStory" / name).mkdir(parents=True, exist_ok=True)
        write_json(folder / "ViStory" / name / "story.json", content)
