"""Panels: deterministic, every attribute visible, grids in reading order."""

from __future__ import annotations

import random
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from paco_core.storybook.drawing import BODY, draw, tile
from paco_core.storybook.world import VOCABULARY, Panel, random_panel

PLAIN = Panel("cat", "red", "nothing", "medium", "beach", "flat")


def pixels(panel: Panel, size: int = 32) -> np.ndarray:
    return np.asarray(draw(panel, size), dtype=np.int16)


@pytest.mark.parametrize("size", [24, 32, 48, 64, 96])
def test_a_panel_is_a_square_rgb_picture(size: int) -> None:
    image = draw(PLAIN, size)
    assert (image.mode, image.size) == ("RGB", (size, size))


def test_the_same_random_state_draws_the_same_pixels() -> None:
    for seed in range(20):
        panel = random_panel(random.Random(seed))
        first, second = (draw(panel, 48, random.Random(seed)) for _ in range(2))
        assert first.tobytes() == second.tobytes()


def test_the_random_state_moves_the_character_a_little() -> None:
    assert draw(PLAIN, 48, random.Random(1)).tobytes() != draw(PLAIN, 48, random.Random(2)).tobytes()


@pytest.mark.parametrize("trait", list(VOCABULARY))
def test_two_words_of_a_trait_never_look_equal(trait: str) -> None:
    """On any ground: at least a dozen of the 1,024 pixels differ clearly."""
    for seed in range(15):
        base = random_panel(random.Random(seed))
        drawn = {word: pixels(base.with_trait(trait, word)) for word in VOCABULARY[trait]}
        for one, two in combinations(drawn, 2):
            differing = (np.abs(drawn[one] - drawn[two]).max(axis=2) > 24).sum()
            assert differing >= 12, f"{one} and {two} look alike on {base}"


@pytest.mark.parametrize("colour", list(BODY))
def test_the_body_has_the_colour_it_is_named_for(colour: str) -> None:
    panel = Panel("bear", colour, "nothing", "big", "forest", "flat")  # type: ignore[arg-type]
    distances = {name: np.abs(pixels(panel, 64) - np.array(rgb)).max(axis=2) for name, rgb in BODY.items()}
    near = {name: int((distance <= 8).sum()) for name, distance in distances.items()}
    assert max(near, key=lambda name: near[name]) == colour
    assert near[colour] > 200


def test_too_small_a_panel_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 16 pixels"):
        draw(PLAIN, 8)


def test_a_grid_holds_its_panels_in_reading_order_without_gutter() -> None:
    colours = [(10 * n, 0, 0) for n in range(6)]
    grid = tile([Image.new("RGB", (8, 8), colour) for colour in colours], (2, 3))
    assert grid.size == (24, 16)
    assert [grid.getpixel((8 * column, 8 * row)) for row in (0, 1) for column in (0, 1, 2)] == colours
    assert grid.getpixel((7, 7)) == colours[0]


@pytest.mark.parametrize("sizes", [[8, 8, 8], [8, 8, 8, 16]])
def test_a_grid_of_wrong_panels_is_refused(sizes: list[int]) -> None:
    with pytest.raises(ValueError, match="2x2 grid needs 4 panels of one size"):
        tile([Image.new("RGB", (size, size)) for size in sizes], (2, 2))
