"""The recogniser reads drawings, and the gold metrics say what they are defined to say."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from paco_core.storybook.recogniser import TRAITS, Reading, Recogniser, gold_consistency, gold_following
from paco_core.storybook.world import VOCABULARY, Panel, random_panel
from tests.support import REPOSITORY

ZOO = REPOSITORY / "data" / "zoo"
RED_CAT = Panel("cat", "red", "hat", "big", "beach", "flat")


def reading(panel: Panel) -> Reading:
    return Reading(panel, dict.fromkeys(VOCABULARY, 1.0))


@pytest.fixture(scope="module")
def recogniser() -> Recogniser:
    return Recogniser.from_pretrained(ZOO / "recogniser")


@pytest.mark.parametrize("size", [24, 32, 48, 96])
def test_reads_drawings_of_every_size(recogniser: Recogniser, size: int) -> None:
    from paco_core.storybook.drawing import draw

    rng = random.Random(size)
    panels = [random_panel(rng) for _ in range(60)]
    readings = recogniser.read([draw(panel, size, rng) for panel in panels])
    right = sum(
        read.word(trait) == getattr(panel, trait)
        for read, panel in zip(readings, panels, strict=True)
        for trait in TRAITS
    )
    assert right / (60 * len(TRAITS)) >= (0.95 if size == 24 else 0.98)


def test_probabilities_are_those_of_the_read_words(recogniser: Recogniser) -> None:
    from paco_core.storybook.drawing import draw

    read = recogniser.read([draw(RED_CAT, 48, random.Random(0))])[0]
    assert set(read.probability) == set(TRAITS)
    assert all(1 / len(VOCABULARY[trait]) <= p <= 1 for trait, p in read.probability.items())
    assert read.panel == RED_CAT


def test_reading_does_not_depend_on_the_batch(recogniser: Recogniser) -> None:
    from paco_core.storybook.drawing import draw

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
    drawn = [reading(RED_CAT.with_trait("size", "small")), reading(RED_CAT.with_trait("scene", "city"))]
    asked = [RED_CAT, RED_CAT]
    assert gold_following(drawn, asked) == pytest.approx(10 / 12)
    assert gold_following(drawn, asked, ["species", "scene"]) == pytest.approx(3 / 4)


def test_errors_say_what_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at least two panels"):
        gold_consistency([reading(RED_CAT)])
    with pytest.raises(ValueError, match="got 1 for 2"):
        gold_following([reading(RED_CAT)] * 2, [RED_CAT])
    with pytest.raises(ValueError, match="unknown trait 'mood'"):
        gold_following([reading(RED_CAT)], [RED_CAT], ["mood"])
    with pytest.raises(FileNotFoundError, match=r"config\.json is missing"):
        Recogniser.from_pretrained(tmp_path)


def test_weights_of_another_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "recogniser"
    shutil.copytree(ZOO / "recogniser", folder)
    config = json.loads((folder / "config.json").read_text())
    config["vocabulary"]["colour"][0] = "orange"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="another vocabulary"):
        Recogniser.from_pretrained(folder)
