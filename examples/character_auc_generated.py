"""ROC-AUC of your reward model on panels that the base model of the demo generates from images of held-out characters.

    python -m examples.character_auc_generated

Run the command in a project with the profile ``characters_storybook`` and the stage ``reward_merged``. For each
held-out character, style and number of images, the model generates four panels: the character in a new scene, the
character in the scene of its first image, a character with another species, color or accessory, and another animal.

- ``positive``, ``other_character`` and ``swapped``: the recognizer reads the intended species, color and accessory,
  each with a probability above 0.8. A positive panel is no near-copy.
- ``copy``: the panel in the scene of the first image is a near-copy of this image.
- ``absent``: the model generates an animal in each panel, so these panels are drawn scenes, which the VAE of the model
  encodes and decodes.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from examples.character_auc import DecodedPanels, print_measures
from paco_core.config import params as configuration
from paco_core.data.image_measures import copied_panels
from paco_core.data.pairs.characters import CharacterPairs, read_held_out_cases
from paco_core.data.records.characters import Character, load_images
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.image_alarm import NEAR_COPY
from paco_core.io import paths
from paco_core.io.files import digest
from paco_core.operations.paint import load_painter_policy
from paco_core.operations.stories import story_policy
from paco_core.policies.encodings import cache_folder
from paco_core.sampling.generation import generate_sizes
from paco_core.storybook.characters import CHARACTER_NAMES, move_character
from paco_core.storybook.drawing import draw, draw_scene
from paco_core.storybook.prompts import character, panel_text, place_marks
from paco_core.storybook.recogniser import Recogniser
from paco_core.storybook.world import IDENTITY, VOCABULARY, Panel

SIDE, STEPS, SEEDS, SURE = 64, 6, (0, 1), 0.8


class Story(NamedTuple):
    record: PromptRecord
    subjects: tuple[Panel, Panel, Panel]  # the held-out character, one with another trait, and another animal


def main() -> None:
    root, rng = Path(), random.Random(5)
    params = configuration.load(root / "params.yaml")
    held_out = {case.prompt_id for case in read_held_out_cases(root / paths.PAIRS)}
    identities = [Panel(*words, "small", "city", "flat") for words in product(*(VOCABULARY[t] for t in IDENTITY))]  # type: ignore[arg-type, call-arg]
    subjects = [panel for panel in identities if f"character-{digest(character(panel))}" in held_out]
    by = story_policy(root, params, "base")
    recipe = by.recipe.model_copy(update={"predecessors": 0})
    policy = load_painter_policy(root, replace(by, recipe=recipe), cache=cache_folder(root))
    with TemporaryDirectory() as folder:
        stories = {
            story.record.idx: story
            for subject, style, count in product(subjects, VOCABULARY["style"], (1, 2, 3))
            for story in [random_story(subject.with_trait("style", style), count, Path(folder), rng)]
        }
        records = [story.record for story in stories.values()]
        images = generate_sizes(policy, "base", recipe, records, when="before", seeds=SEEDS, steps=STEPS)
        scenes = list(product(VOCABULARY["scene"], VOCABULARY["style"]))
        with torch.no_grad():
            latents = policy.encode_images([draw_scene(*scene, SIDE) for scene in scenes], (SIDE, SIDE))
            empty = dict(zip(scenes, policy.decode(latents, (SIDE, SIDE)), strict=True))
        recognizer, characters = Recogniser.from_pretrained(root / "data/zoo/recogniser"), CharacterPairs()
        for image in images:
            record, (first, changed, other) = stories[image.record.idx]
            panels, references = split_grid(image.image, record.layout), load_images(record.characters[0])
            readings = recognizer.read(panels)

            def is_clear(number: int, subject: Panel, readings=readings) -> bool:  # type: ignore[no-untyped-def]
                reading = readings[number]
                return all(reading.word(t) == getattr(subject, t) and reading.probability[t] > SURE for t in IDENTITY)

            cases = [("absent", empty[rng.choice(VOCABULARY["scene"]), first.style])]
            if is_clear(0, first) and not copied_panels(panels[:1], references, NEAR_COPY)[0]:
                cases.append(("positive", panels[0]))
            if copied_panels(panels[1:2], references[:1], NEAR_COPY)[0]:
                cases.append(("copy", panels[1]))
            if is_clear(2, changed):
                cases.append(("other_character", panels[2]))
            if is_clear(3, other):
                cases.append(("swapped", panels[3]))
            for kind, panel in cases:
                answers = ["Yes."] * len(references)  # only for training
                characters.add(record.characters[0].name, references, panel, kind, answers, character(first))  # type: ignore[arg-type]
    print_measures(root, params, characters.cases, DecodedPanels(characters.pictures.pngs))


def random_story(first: Panel, count: int, folder: Path, rng: random.Random) -> Story:
    """A story about a character with ``count`` images, and two other characters of the same style."""

    def another(trait: str) -> str:
        return rng.choice([word for word in VOCABULARY[trait] if word != getattr(first, trait)])

    def save(panel: Panel) -> str:
        path = folder / f"{rng.randrange(1 << 60)}.png"
        draw(panel, SIDE, random.Random(rng.random())).save(path)
        return str(path)

    trait = rng.choice(IDENTITY)
    changed = first.with_trait(trait, another(trait))
    other = first.with_trait("species", another("species"))
    for name in ("colour", "accessory"):
        other = other.with_trait(name, rng.choice(VOCABULARY[name]))
    scenes = rng.sample(VOCABULARY["scene"], len(VOCABULARY["scene"]))
    references = [move_character(first, scene, rng) for scene in scenes[:count]]
    moved = [move_character(subject, scenes[-1], rng) for subject in (first, changed, other)]
    names = rng.sample(CHARACTER_NAMES, 3)
    pictures = [[save(panel) for panel in references], *([save(move_character(p, scenes[-2], rng))] for p in moved[1:])]
    texts = [
        f"{panel_text(panel).removesuffix('.')} ({name})."
        for panel, name in zip([moved[0], references[0], *moved[1:]], [names[0], *names], strict=True)
    ]
    marks = place_marks(1, len(texts))
    head = f"FOUR-PANEL Images with a 1x4 grid layout of {character(first)}."
    prompt = " ".join([head, *(f"{mark} {text}" for mark, text in zip(marks, texts, strict=True))])
    record = PromptRecord(
        idx=digest([prompt, count]), prompt=prompt, height=SIDE, width=4 * SIDE, layout="1x4", theme=character(first),
        category="Story", task_name="Comic Story", criteria={},
        characters=tuple(Character(name, tuple(images)) for name, images in zip(names, pictures, strict=True)),
    )  # fmt: skip
    return Story(record, (first, changed, other))


if __name__ == "__main__":
    main()
