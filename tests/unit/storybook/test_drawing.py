"""Panels: deterministic, every attribute visible to the recogniser; the gold metrics follow their definitions."""

from __future__ import annotations

import json
import random
import shutil
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paco_core.storybook.drawing import BODY, draw, tile
from paco_core.storybook.recogniser import TRAITS, Reading, Recogniser, gold_consistency, gold_following
from paco_core.storybook.world import VOCABULARY, Panel, random_panel
from tests.support import REPOSITORY

PLAIN = Panel("cat", "red", "nothing", "medium", "beach", "flat")


def pixels(panel: Panel, size: int = 32) -> np.ndarray:
    return np.asarray(draw(panel, size), dtype=np.int16)


def test_the_same_random_state_draws_the_same_pixels() -> None:
    for seed in range(20):
        panel = random_panel(random.Random(seed))
        first, second = (draw(panel, 48, random.Random(seed)) for _ in range(2))
        assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("trait", list(VOCABULARY))
def test_two_words_of_a_trait_never_look_equal(trait: str) -> None:
    """On any ground: at least a dozen of the 1,024 pixels differ clearly."""
    for seed in range(15):
        base = random_panel(random.Random(seed))
        images = {word: pixels(base.with_trait(trait, word)) for word in VOCABULARY[trait]}
        for first, second in combinations(images, 2):
            differing = (np.abs(images[first] - images[second]).max(axis=2) > 24).sum()
            assert differing >= 12, f"{first} and {second} look alike on {base}"


@pytest.mark.parametrize("colour", list(BODY))
def test_the_body_has_the_colour_it_is_named_for(colour: str) -> None:
    panel = Panel("bear", colour, "nothing", "big", "forest", "flat")  # type: ignore[arg-type]
    distances = {name: np.abs(pixels(panel, 64) - np.array(rgb)).max(axis=2) for name, rgb in BODY.items()}
    near = {name: int((distance <= 8).sum()) for name, distance in distances.items()}
    assert max(near, key=lambda name: near[name]) == colour
    assert near[colour] > 200


def test_a_grid_holds_its_panels_in_reading_order_without_gutter() -> None:
    colours = [(10 * n, 0, 0) for n in range(6)]
    grid = tile([Image.new("RGB", (8, 8), colour) for colour in colours], (2, 3))
    assert grid.size == (24, 16)
    assert [grid.getpixel((8 * column, 8 * row)) for row in (0, 1) for column in (0, 1, 2)] == colours
    assert grid.getpixel((7, 7)) == colours[0]


ZOO = REPOSITORY / "data" / "zoo"
RED_CAT = Panel("cat", "red", "hat", "big", "beach", "flat")


def reading(panel: Panel) -> Reading:
    return Reading(panel, dict.fromkeys(VOCABULARY, 1.0))


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser.from_pretrained(ZOO / "recogniser")


@pytest.mark.parametrize("size", [24, 32, 48, 96])
def test_reads_drawings_of_every_size(recogniser: Recogniser, size: int) -> None:
    rng = random.Random(size)
    panels = [random_panel(rng) for _ in range(60)]
    readings = recogniser.read([draw(panel, size, rng) for panel in panels])
    right = sum(
        read.word(trait) == getattr(panel, trait)
        for read, panel in zip(readings, panels, strict=True)
        for trait in TRAITS
    )
    assert right / (60 * len(TRAITS)) >= (0.95 if size == 24 else 0.98)


def test_reading_does_not_depend_on_the_batch(recogniser: Recogniser) -> None:
    rng = random.Random(5)
    images = [draw(random_panel(rng), 32, rng) for _ in range(5)]
    together = recogniser.read(images, batch_size=2)
    assert [read.panel for read in together] == [recogniser.read([image])[0].panel for image in images]
    assert recogniser.read([]) == []


def test_consistency_counts_agreeing_pairs() -> None:
    other_scene = RED_CAT.with_trait("scene", "snow").with_trait("size", "small")
    blue = RED_CAT.with_trait("colour", "blue")
    assert gold_consistency([reading(RED_CAT), reading(other_scene)]) == 1.0
    assert gold_consistency([reading(RED_CAT), reading(RED_CAT), reading(RED_CAT), reading(blue)]) == 0.5
    assert gold_consistency([reading(blue), reading(RED_CAT)]) == 0.0


def test_following_counts_the_cells_of_the_traits_asked_for() -> None:
    readings = [reading(RED_CAT.with_trait("size", "small")), reading(RED_CAT.with_trait("scene", "city"))]
    panels = [RED_CAT, RED_CAT]
    assert gold_following(readings, panels) == pytest.approx(10 / 12)
    assert gold_following(readings, panels, ["species", "scene"]) == pytest.approx(3 / 4)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "recogniser"
    shutil.copytree(ZOO / "recogniser", folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocabulary"]["colour"][0] = "orange"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="another vocabulary"):
        Recogniser.from_pretrained(folder)
