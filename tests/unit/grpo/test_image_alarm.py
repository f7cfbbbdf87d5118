"""Image alarm: content that vanishes, panels that become copies, and where the alarm is shown."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.config.measures import IMAGE_CONTENT
from paco_core.data.image_measures import brightness, color_entropy, edge_density
from paco_core.data.records.panels import split_grid
from paco_core.grpo import checks
from paco_core.grpo.image_alarm import first_image_alarm, image_alarm, image_content, near_copies
from paco_core.io.pictures import join_in_row
from paco_core.policies.base import Size
from tests.support import grpo_toys
from tests.support.grpo_toys import TOKEN, ToyPolicy, recipe, record, trainer

RECORDS = [record(n) for n in range(6)]


def scene(seed: int) -> Image.Image:
    """A grid of four panels: an object of one color on a background of many colors."""
    rng = np.random.default_rng(seed)
    image = Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).resize(
        (64, 64), Image.Resampling.NEAREST
    )
    for left, top in ((8, 8), (40, 8), (8, 40), (40, 40)):
        image.paste((230, 40, 40), (left, top, left + 12, top + 12))
    return image


def without_background(seed: int) -> Image.Image:
    image = Image.new("RGB", (64, 64), (0, 0, 0))
    for left, top in ((8, 8), (40, 8), (8, 40), (40, 40)):
        image.paste((230, 40 + seed, 40), (left, top, left + 12, top + 12))
    return image


def copied_panels(seed: int) -> Image.Image:
    panel = split_grid(scene(seed), "2x2")[0]
    row = join_in_row([panel, panel])
    image = Image.new("RGB", (row.width, 2 * row.height))
    image.paste(row, (0, 0))
    image.paste(row, (0, row.height))
    return image


def slightly_changed(seed: int) -> Image.Image:
    pixels = np.asarray(scene(seed)).astype(float)
    return Image.fromarray(np.clip(pixels * 0.95 + 5, 0, 255).astype(np.uint8))


def log(images: list[list[Image.Image]]) -> list[dict[str, float]]:
    """Rows of a training log with an evaluation every second epoch."""
    rows = []
    for number, pictures in enumerate(images):
        content = image_content(pictures, RECORDS, 0.05)
        rows += [{"epoch": 2.0 * number} | {f"eval/64/{name}": value for name, value in content.items()}]
        rows += [{"epoch": 2.0 * number + 1}]
    return rows


def test_the_measures_of_one_image() -> None:
    plain, half = Image.new("RGB", (32, 32), (0, 0, 0)), Image.new("RGB", (32, 32), (0, 0, 0))
    half.paste((255, 255, 255), (16, 0, 32, 32))
    board = Image.fromarray(np.indices((32, 32)).sum(axis=0).astype(np.uint8) % 2 * 255).convert("RGB")
    assert [edge_density(image) for image in (plain, half, board)] == pytest.approx([0, 1 / 31 / 2, 1])
    assert [color_entropy(image) for image in (plain, half, board)] == pytest.approx([0, 1, 1])
    assert [brightness(image) for image in (plain, half, board)] == pytest.approx([0, 0.5, 0.5])
    colors = np.arange(512)
    every = np.stack([colors // 64, colors // 8 % 8, colors % 8], axis=-1).reshape(16, 32, 3).astype(np.uint8) * 32
    assert color_entropy(Image.fromarray(every)) == pytest.approx(9.0)
    assert math.isclose(image_content([plain, half], RECORDS[:2], 0.05)["mean_brightness"], 0.25)


def test_near_copies_equal_those_of_a_comparison_of_all_panel_pairs() -> None:
    images = [scene(0), copied_panels(1), slightly_changed(2), without_background(3)]
    pairs = []
    for image in images:
        panels = [np.asarray(panel, dtype=np.float64) / 255 for panel in split_grid(image, "2x2")]
        pairs += [np.sqrt(((panels[i] - panels[j]) ** 2).mean()) for i in range(4) for j in range(i)]
    assert near_copies(images, RECORDS[:4], 0.05) == np.mean([pair < 0.05 for pair in pairs]) == 0.5


@pytest.mark.parametrize(
    ("images", "measures"),
    [
        (without_background, {"edge density", "color entropy", "brightness", "near copies"}),
        (copied_panels, {"near copies"}),
        (lambda n: Image.fromarray(np.asarray(scene(n)) // 2), {"edge density", "brightness"}),
        (slightly_changed, set()),
        (scene, set()),
    ],
)
def test_the_alarm_is_raised_by_images_that_lose_content_or_become_copies(images: Any, measures: set[str]) -> None:
    """Also if a later evaluation is like the start."""
    start = [scene(n) for n in range(6)]
    rows = log([start, start, [images(n) for n in range(6)], start])
    reason = first_image_alarm(rows)
    assert (reason is not None) == bool(measures)
    assert {measure for measure in ("edge density", "color entropy", "brightness", "near copies")
            if reason is not None and measure in reason} == measures  # fmt: skip
    report = checks.images_stay_detailed(rows, [64])
    assert (report.passed, report.severity) == (not measures, "WARN")
    assert report.metadata["edge_density_64px"] == rows[0]["eval/64/edge_density"], "that of the last evaluation"


@pytest.mark.parametrize(
    ("measure", "before", "now", "raised"),
    [
        ("edge_density", 0.1, 0.06, True),
        ("edge_density", 0.1, 0.08, False),
        ("edge_density", 0.0, 0.0, False),
        ("edge_density", 0.1, 0.5, False),  # more details than at the start
        ("color_entropy", 4.0, 2.7, True),
        ("color_entropy", 4.0, 2.9, False),
        ("mean_brightness", 0.5, 0.3, True),
        ("mean_brightness", 0.5, 0.7, True),
        ("mean_brightness", 0.5, 0.6, False),
        ("near_copies", 0.0, 0.25, True),
        ("near_copies", 0.9, 0.95, False),
        ("near_copies", math.nan, 1.0, False),
        ("consistency", 1.0, 0.0, False),
    ],
)
def test_each_limit(measure: str, before: float, now: float, raised: bool) -> None:
    key = f"eval/128/{measure}"
    assert (image_alarm({"epoch": 0.0, key: before}, {"epoch": 3.0, key: now}) is not None) == raised
    assert image_alarm({"epoch": 0.0}, {"epoch": 3.0, key: now}) is None, "a log of an earlier version"


class LosesBackground(ToyPolicy):
    """After its first update, only a corner of each image is not black."""

    def decode(self, latents: torch.Tensor, size: Size) -> list[Image.Image]:
        images = super().decode(latents, size)
        return images if not self.b.abs().sum() else [self.hacked(image) for image in images]

    def hacked(self, image: Image.Image) -> Image.Image:
        black = Image.new("RGB", image.size)
        black.paste(image.crop((0, 0, TOKEN, TOKEN)), (0, 0))
        return black


class CopiesPanels(LosesBackground):
    """After its first update, all panels of an image are equal."""

    def hacked(self, image: Image.Image) -> Image.Image:
        panel = split_grid(image, "2x2")[0]
        copies = image.copy()
        for left in (0, panel.width):
            for top in (0, panel.height):
                copies.paste(panel, (left, top))
        return copies


@pytest.mark.parametrize(
    ("policy", "measure"), [(ToyPolicy, None), (LosesBackground, "edge density"), (CopiesPanels, "near copies")]
)
def test_every_training_measures_its_images(tmp_path: Path, policy: type[ToyPolicy], measure: str | None) -> None:
    """Without a held-out reward model."""
    rule = recipe(epochs=4, eval_every=2)
    trainer(policy=policy(), recipe=rule).run(tmp_path, tmp_path / "checkpoint")
    rows = checks.read_training_log(tmp_path / "training_log.csv")
    places = {f"eval/{side}/{name}" for side in rule.eval_sizes for name in IMAGE_CONTENT}
    assert [row["epoch"] for row in rows if places <= row.keys()] == [0, 2, 4]
    report = checks.images_stay_detailed(rows, rule.eval_sizes)
    assert report.passed == (measure is None)
    assert measure is None or measure in report.description


@pytest.mark.parametrize(("policy", "last"), [(ToyPolicy, 6), (LosesBackground, 2)])
def test_an_alarm_about_images_stops_a_training_that_stops_at_alarms(
    tmp_path: Path, policy: type[ToyPolicy], last: int
) -> None:
    """The held-out reward model agrees, so only the images raise the alarm."""
    terms = {"brightness": {"weight": 1.0, "reward": "own:brightness"}, "other": {"weight": 0.0, "reward": "own:other"}}
    changes: dict[str, Any] = {
        "hack_meter": {"trained": "brightness", "held_out": "other"},
        "early_stop": {"reward_rise": 9.0, "hack_meter": True},
        "rewards": {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"},
    }
    rewards = {name: grpo_toys.Brightness() for name in terms}
    rule = recipe(epochs=6, eval_every=2, **changes)
    outcome = trainer(policy=policy(), recipe=rule, rewards=rewards).run(tmp_path, tmp_path / "checkpoint")
    assert outcome.rows[-1]["epoch"] == last and (outcome.stopped is None) == (last == 6)
