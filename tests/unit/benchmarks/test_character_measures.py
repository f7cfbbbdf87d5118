"""Measures of stories with characters: identity, copies, their intervals, and the check of the benchmark."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import checks
from paco_core.benchmarks.generated import PanelDiversity, measure_sets
from paco_core.benchmarks.paired_changes import PairedChanges, compare_changes
from paco_core.config.params import load
from paco_core.data.image_measures import copied_panels
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.image_alarm import image_alarm, image_content, is_copied
from paco_core.io.files import write_json
from paco_core.io.pictures import join_in_row
from paco_core.report.headline import headline
from paco_core.rewards.base import RewardBatch
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.storybook.drawing import draw
from paco_core.storybook.recogniser import Reading, gold_identity
from paco_core.storybook.world import VOCABULARY, Panel
from paco_core.tasks.sets import SetGold
from tests.support import REPOSITORY

MIA = Panel("cat", "red", "hat", "big", "beach", "flat")
FOX = Panel("bear", "blue", "nothing", "small", "beach", "flat")
SIDE = 32


class KnownRecogniser:
    """Reads each drawing as the panel that was drawn."""

    def __init__(self) -> None:
        self.panels: dict[bytes, Panel] = {}

    def draw(self, panel: Panel, seed: int = 0) -> Image.Image:
        image = draw(panel, SIDE, random.Random(seed))
        self.panels[image.tobytes()] = panel
        return image

    def read(self, images: Sequence[Image.Image]) -> list[Reading]:
        return [reading(self.panels[image.tobytes()]) for image in images]


def reading(panel: Panel, probability: float = 1.0) -> Reading:
    return Reading(panel, dict.fromkeys(VOCABULARY, probability))


@pytest.fixture
def recogniser() -> KnownRecogniser:
    return KnownRecogniser()


@pytest.fixture
def story(recogniser: KnownRecogniser, tmp_path: Path) -> PromptRecord:
    """Mia with two images, Fox with one, and panels that name Mia, Fox, both and none."""
    images = {"mia.png": MIA, "mia2.png": MIA.with_trait("scene", "snow"), "fox.png": FOX}
    for name, panel in images.items():
        recogniser.draw(panel).save(tmp_path / name)
    texts = [
        "Mia is a big red cat with a hat in the forest, flat style",
        "Fox is a small blue bear in the forest, flat style",
        "Mia and Fox: a big red cat with a hat in the city, flat style",
        "a big red cat with a hat at night, flat style",
    ]
    marks = [f"[PANEL-{number}]: {text}." for number, text in enumerate(texts, 1)]
    prompt = " ".join(["FOUR-PANEL Images with a 1x4 grid layout of two friends.", *marks])
    characters = [{"name": "Mia", "images": [str(tmp_path / "mia.png"), str(tmp_path / "mia2.png")]}]
    row = {
        "idx": "story", "prompt": prompt, "height": SIDE,
        "width": 4 * SIDE, "layout": "1x4", "theme": "two friends", "category": "Story", "task_name": "Comic Story",
        "criteria": {}, "characters": [*characters, {"name": "Fox", "images": [str(tmp_path / "fox.png")]}],
    }  # fmt: skip
    return PromptRecord.model_validate(row)


def forest(panel: Panel) -> Panel:
    return panel.with_trait("scene", "forest")


def test_identity_is_the_share_of_traits_as_most_images_of_the_character_have_them() -> None:
    blue, frog = MIA.with_trait("colour", "blue"), MIA.with_trait("species", "frog")
    assert gold_identity(reading(forest(MIA)), [reading(MIA)]) == 1.0, "the scene does not count"
    assert gold_identity(reading(blue), [reading(MIA)]) == pytest.approx(2 / 3)
    assert gold_identity(reading(MIA), [reading(blue, 0.9), reading(MIA), reading(frog)]) == 1.0, "two of three are red"
    assert gold_identity(reading(MIA), [reading(blue, 0.9), reading(MIA, 0.8)]) == pytest.approx(2 / 3)
    with pytest.raises(ValueError):
        gold_identity(reading(MIA), [])


def test_a_story_is_measured_by_the_panels_that_name_one_character(
    recogniser: KnownRecogniser, story: PromptRecord
) -> None:
    """The copy of a reference image counts in all panels, and not in the new ones."""
    gold = SetGold(recogniser)  # type: ignore[arg-type]
    green = forest(FOX.with_trait("colour", "green").with_trait("accessory", "hat"))
    last_panels = [recogniser.draw(MIA.with_trait("scene", "city")), recogniser.draw(MIA.with_trait("scene", "night"))]
    without = story.model_copy(update={"idx": "without", "characters": ()})
    new = [recogniser.draw(forest(MIA)), recogniser.draw(green), *last_panels]
    copied = [recogniser.draw(MIA), recogniser.draw(green), *last_panels]
    only_copies = [recogniser.draw(MIA), recogniser.draw(FOX), *last_panels]
    metrics = gold.measure(RewardBatch([story, story, story, without], [new, copied, only_copies, new]))
    mean = (1 + 1 / 3) / 2
    assert metrics["gold_identity"] == pytest.approx([mean, mean, 1.0, np.nan], nan_ok=True)
    assert metrics["gold_identity_new"] == pytest.approx([mean, 1 / 3, np.nan, np.nan], nan_ok=True)
    assert gold.measure(RewardBatch([without], [new])).keys() == {"gold_consistency", "gold_following"}


@pytest.mark.parametrize("count", [1, 2, 7])
def test_copies_equal_those_of_a_comparison_of_all_pairs(count: int) -> None:
    rng = np.random.default_rng(count)

    def noise(side: int) -> Image.Image:
        return Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8))

    references = [noise(48), noise(64)]
    panels = [noise(64) for _ in range(count)]
    if count > 2:
        panels[1] = references[1].resize((64, 64))
        panels[2] = Image.fromarray(np.clip(np.asarray(panels[3]).astype(int) + 5, 0, 255).astype(np.uint8))
        panels[4] = Image.fromarray(np.clip(np.asarray(panels[3]).astype(int) + 60, 0, 255).astype(np.uint8))

    def pixels(image: Image.Image) -> np.ndarray:
        return np.asarray(image.resize((32, 32)), dtype=np.float64) / 255

    def is_near(first: Image.Image, second: Image.Image) -> bool:
        return bool(np.sqrt(((pixels(first) - pixels(second)) ** 2).mean()) < 0.05)

    expected = [
        any(is_near(panel, image) for image in [*references, *panels[:n], *panels[n + 1 :]])
        for n, panel in enumerate(panels)
    ]
    assert copied_panels(panels, references, 0.05).tolist() == expected
    assert sum(expected) == (3 if count > 2 else 0), "one of a reference, and two of each other"
    assert not copied_panels(panels[:1], [], 0.05).any()


def test_a_policy_that_copies_the_references_raises_the_image_alarm(
    recogniser: KnownRecogniser, story: PromptRecord
) -> None:
    scenes = ("forest", "city", "night", "desert")
    new = join_in_row([recogniser.draw(MIA.with_trait("scene", scene)) for scene in scenes])
    copies = join_in_row([recogniser.draw(panel) for panel in (MIA, FOX, MIA.with_trait("scene", "snow"), FOX)])
    rows = [
        {"epoch": float(epoch)} | {f"eval/32/{name}": v for name, v in image_content([image], [story], 0.0).items()}
        for epoch, image in enumerate((new, copies))
    ]
    assert [row["eval/32/copies"] for row in rows] == [0.0, 1.0]
    assert is_copied(story, split_grid(copies, "1x4")).all()
    reason = image_alarm(*rows)
    assert reason is not None and "copies at 32 px" in reason
    assert image_alarm(rows[0], {**rows[0], "epoch": 2.0}) is None
    assert "copies" not in image_content([new], [story.model_copy(update={"characters": ()})], 0.0)


def test_the_benchmark_measures_copies_of_stories_with_characters(
    recogniser: KnownRecogniser, story: PromptRecord
) -> None:
    panels = [recogniser.draw(MIA), recogniser.draw(forest(FOX)), recogniser.draw(forest(MIA)), recogniser.draw(FOX)]
    image = GeneratedImage("p", 64, BEFORE, story, 0, join_in_row(panels))
    without = GeneratedImage("p", 64, BEFORE, story.model_copy(update={"characters": ()}), 1, image.image)
    gold = SetGold(recogniser)  # type: ignore[arg-type]
    table = measure_sets([image, without], [PanelDiversity()], gold)
    assert table["copies"].tolist() == pytest.approx([0.5, np.nan], nan_ok=True)
    assert table["gold_identity"][0] == table["gold_identity_new"][0] == 1.0
    assert "copies" not in measure_sets([without], [PanelDiversity()])


def changes(gain: float, more_copies: float) -> PairedChanges:
    """Twelve stories and two seeds. In one story, all panels are copies after training."""
    rng, rows = np.random.default_rng(0), []
    for prompt in range(12):
        for seed in range(2):
            base = {"policy": "p", "size": 64, "prompt_id": f"s{prompt}", "seed": seed}
            identity, copies = 0.5 + rng.normal(0, 0.05), 0.1 + rng.normal(0, 0.02)
            after = identity + gain + rng.normal(0, 0.02)
            rows.append(base | {"when": BEFORE, "gold_identity_new": identity, "copies": copies})
            rows.append(
                base
                | {"when": AFTER, "gold_identity_new": np.nan if prompt == 0 else after, "copies": copies + more_copies}
            )
    return compare_changes(pd.DataFrame(rows), seeds=[0, 1], steps=4)


@pytest.mark.parametrize(
    ("gain", "more_copies", "passed"),
    [(0.2, 0.0, True), (0.2, 0.3, False), (0.0, 0.0, False), (-0.2, -0.05, False)],
)
def test_a_gain_with_more_copies_is_no_gain(tmp_path: Path, gain: float, more_copies: float, passed: bool) -> None:
    result = changes(gain, more_copies)
    identity = result.changes["p"][64]["gold_identity_new"].change
    assert (identity.groups, identity.missing) == (11, 2)
    assert identity.low < identity.mean < identity.high
    write_json(tmp_path / "t2is.json", result.metrics())
    report = checks.policy_keeps_characters(tmp_path / "t2is.json", "p", 64)
    assert (report.passed, report.severity) == (passed, "WARN")
    assert report.metadata["more_copies"] == pytest.approx(more_copies)
    skipped = checks.policy_keeps_characters(tmp_path / "t2is.json", "p", 128)
    assert skipped.passed and skipped.metadata["skipped"] is True


def test_identity_in_new_panels_is_the_first_headline_of_a_policy(tmp_path: Path) -> None:
    params = load(REPOSITORY / "params.yaml")
    figures: dict[str, Any] = {}
    for metric in ("gold_identity_new", "gold_identity", "copies", "gold_consistency"):
        key = f"t2is.policies.flux_t2is.{max(params.policies.recipes['flux_t2is'].eval_sizes)}.{metric}"
        values = {"before.mean": 0.2, "after.mean": 0.4, "change.mean": 0.2, "change.low": 0.1, "change.high": 0.3}
        figures |= {f"{key}.{end}": value for end, value in values.items()}
    rows = headline(tmp_path, params, figures)
    assert [row.key for row in rows] == ["flux_t2is.identity_new", "flux_t2is.copies", "flux_t2is.consistency"]
