"""Measures of pictures have right values that are known."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from paco_core.data.image_measures import grid_score, panel_diversity, pixel_distances, reference_distance


def grey(value: int, side: int = 8) -> Image.Image:
    return Image.new("RGB", (side, side), (value, value, value))


def scenes(seed: int, count: int = 6, side: int = 64, smooth: float = 1.0) -> list[np.ndarray]:
    """Random pictures whose power falls with the frequency, as that of photographs does."""
    random = np.random.default_rng(seed)
    radius = np.hypot(np.fft.fftfreq(side)[:, None], np.fft.fftfreq(side)[None, :]) * side
    images = []
    for _ in range(count):
        spectrum = np.fft.fft2(random.normal(size=(side, side))) / (1.0 + radius) ** smooth
        field = np.fft.ifft2(spectrum).real
        images.append(128 + 35 * field / field.std())
    return images


def pictures(fields: list[np.ndarray]) -> list[Image.Image]:
    return [Image.fromarray(field.clip(0, 255).astype(np.uint8)).convert("RGB") for field in fields]


def with_grid(fields: list[np.ndarray], period: int, size: float = 10.0) -> list[np.ndarray]:
    wave = size * np.cos(2 * np.pi * np.arange(fields[0].shape[0]) / period)
    return [field + wave[None, :] + wave[:, None] for field in fields]


def test_equal_panels_have_no_diversity_and_black_against_white_all_of_it() -> None:
    assert panel_diversity([grey(90)] * 4) == 0.0
    assert panel_diversity([grey(0), grey(255)]) == 1.0
    assert pixel_distances([grey(0), grey(0), grey(51)]).tolist() == pytest.approx([0.0, 0.2, 0.2])
    assert reference_distance(grey(70), grey(70, side=16)) == 0.0
    with pytest.raises(ValueError, match="1 panel has no pair"):
        panel_diversity([grey(0)])


def test_a_picture_has_no_grid_against_itself() -> None:
    images = pictures(scenes(0))
    assert grid_score(images, images) == grid_score([grey(10)], [grey(200)]) == 0.0
    with pytest.raises(ValueError, match="1 pictures"):
        grid_score([grey(1)], [grey(1, side=16)])


@pytest.mark.parametrize("period", [2, 4, 8])
def test_a_faint_grid_stands_out_and_other_pictures_or_sharpness_do_not(period: int) -> None:
    """Ten grey levels that repeat; the pictures themselves vary by 35."""
    base = scenes(0)
    gridded = grid_score(pictures(with_grid(base, period)), pictures(base))
    sharper = grid_score(pictures(scenes(0, smooth=0.7)), pictures(base))
    assert gridded > 3.0 and sharper < 1.0
    baseline = grid_score(pictures(scenes(1, count=24)), pictures(scenes(2, count=24)))
    assert grid_score(pictures(with_grid(scenes(1, count=24), period)), pictures(scenes(2, count=24))) > baseline + 1.0
