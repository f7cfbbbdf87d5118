"""Stories with characters of the embedded world: prompt files for the profile ``characters_storybook``.

    python examples/character_stories.py data/external/character_stories

The command writes ``train.jsonl`` and ``test.jsonl`` in the format of docs/how-to/characters.md, and draws the images
of the characters. A story has two characters, and each panel names one of them. No character is in both files.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from paco_core.data.records.characters import Character
from paco_core.data.records.records import PromptRecord, write_prompts
from paco_core.io.files import digest
from paco_core.storybook.characters import CHARACTER_NAMES, move_character, with_identity
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import COUNTS, character, panel_text, place_marks
from paco_core.storybook.world import IDENTITY, VOCABULARY, Panel, random_panel

SIDE = 64  # pixels of an image of a character
PANELS = 2
MOST_IMAGES = 2  # of a character; klein accepts four reference images per panel
TEST_SHARE = 0.25  # of the characters


def main() -> None:
    parser = argparse.ArgumentParser(description="Write stories with characters.")
    parser.add_argument("folder", type=Path, help="folder of the prompt files")
    parser.add_argument("--train", type=int, default=96, help="stories to train on")
    parser.add_argument("--test", type=int, default=64, help="stories to test on")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    identities = list(product(*(VOCABULARY[trait] for trait in IDENTITY)))
    rng.shuffle(identities)
    cut = round(len(identities) * TEST_SHARE)
    for name, part, count in (("test", identities[:cut], options.test), ("train", identities[cut:], options.train)):
        records = [random_story(part, options.folder / "drawn", rng) for _ in range(count)]
        write_prompts(options.folder / f"{name}.jsonl", records)
        print(f"{options.folder / name}.jsonl: {len(records)} stories, {len(part)} characters")


def random_story(identities: Sequence[tuple[str, ...]], folder: Path, rng: random.Random) -> PromptRecord:
    """A story about two characters of one drawing style."""
    style = rng.choice(VOCABULARY["style"])
    subjects = [_panel(identity, style, rng) for identity in rng.sample(identities, 2)]
    names = rng.sample(CHARACTER_NAMES, 2)
    order = [*range(2), *(rng.randrange(2) for _ in range(PANELS - 2))]
    rng.shuffle(order)
    panels = [move_character(subjects[turn], rng.choice(VOCABULARY["scene"]), rng) for turn in order]
    texts = [
        f"{panel_text(panel).removesuffix('.')} ({names[turn]})." for panel, turn in zip(panels, order, strict=True)
    ]
    characters = [
        Character(name, tuple(_images(subject, folder, rng))) for name, subject in zip(names, subjects, strict=True)
    ]
    theme, layout = " and ".join(map(character, subjects)), f"1x{PANELS}"
    head = f"{COUNTS[PANELS]}-PANEL Images with a {layout} grid layout of {theme}."
    prompt = " ".join([head, *(f"{mark} {text}" for mark, text in zip(place_marks(1, PANELS), texts, strict=True))])
    return PromptRecord(
        idx=digest([prompt, layout]), prompt=prompt, height=SIDE, width=PANELS * SIDE, layout=layout, theme=theme,
        category="Story", task_name="Comic Story", criteria={}, characters=tuple(characters),
    )  # fmt: skip


def _panel(identity: Sequence[str], style: str, rng: random.Random) -> Panel:
    return with_identity(random_panel(rng).with_trait("style", style), identity)


def _images(subject: Panel, folder: Path, rng: random.Random) -> list[str]:
    """Draw one or more images of a character, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for _ in range(rng.randint(1, MOST_IMAGES)):
        panel, seed = move_character(subject, rng.choice(VOCABULARY["scene"]), rng), rng.random()
        path = folder / f"{digest([repr(panel), seed])}.png"
        draw(panel, SIDE, random.Random(seed)).save(path)
        paths.append(str(path.absolute()))
    return paths


if __name__ == "__main__":
    main()
