"""A folder in the layout of ViStoryBench's published data: two drawn stories, of four and of three shots."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

from paco_core.storybook.drawing import draw
from paco_core.storybook.world import random_panel

PEOPLE = {"Big Brown Rabbit": "a brown rabbit", "Cat": "a red cat"}
#: Of each story: who appears in each of its shots.
CASTS = {"01": [["Big Brown Rabbit"], ["Big Brown Rabbit", "Cat"], [], ["Cat"]], "02": [["Cat"], ["Cat"], ["Cat"]]}


def shot(number: int, cast: list[str], **changes: Any) -> dict[str, Any]:
    """A shot as the published files have one."""
    return {
        "index": number,
        "Setting Description": {"en": f"the beach {number}", "ch": f"海滩{number}"},
        "Plot Correspondence": {"en": "They play.", "ch": "他们在玩。"},
        "Characters Appearing": {"en": cast, "ch": cast},
        "Static Shot Description": {"en": f"it runs {number}", "ch": f"它跑{number}"},
        "Shot Perspective Design": {"en": "Close-Up", "ch": "特写"},
    } | changes


def write_vistory(folder: Path, casts: dict[str, list[list[str]]] | None = None) -> Path:
    """Write the stories; ``folder``, which holds ``ViStory``."""
    rng = random.Random(0)
    for name, cast in (casts or CASTS).items():
        place = folder / "ViStory" / name
        for person in sorted({character for characters in cast for character in characters}):
            (place / "image" / person).mkdir(parents=True)
            panel = random_panel(rng)
            for number in range(2):
                draw(panel, 64, rng).save(place / "image" / person / f"{number:02d}.jpg")
        people = {
            person: {
                "name_en": person,
                "name_ch": person,
                "prompt_en": PEOPLE[person],
                "prompt_ch": "",
                "tag": "non_human",
            }
            for person in PEOPLE
            if (place / "image" / person).is_dir()
        }
        story = {
            "Story_type": {"en": "Children's Picture Books", "ch": "绘本"},
            "Shots": [shot(number, characters) for number, characters in enumerate(cast, 1)],
            "Characters": people,
        }
        (place / "story.json").write_text(json.dumps(story, ensure_ascii=False), "utf-8-sig")
    return folder
