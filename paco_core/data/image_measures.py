"""Image measures without a model: similarity, edges, colors and brightness of pictures, and periodic grids in them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

from paco_core.io.decoding import to_rgb

if TYPE_CHECKING:
    from PIL.Image import Image

THUMBNAIL = 32  # side of an image in pixels, for near-copies of images of other sizes


def pixel_distances(panels: Sequence[Image]) -> np.ndarray:
    """Root mean square pixel difference of each unordered pair of equally large panels, on the scale 0 to 1: (pairs,).

    Raises:
        ValueError: when there are fewer than two, or their sizes differ.
    """
    if len(panels) < 2:
        raise ValueError(f"{len(panels)} panel has no pair")
    pixels = np.stack([np.asarray(panel, dtype=np.float64) for panel in panels]) / 255.0
    return np.array([np.sqrt(np.mean((a - b) ** 2)) for a, b in combinations(pixels, 2)])


def panel_diversity(panels: Sequence[Image]) -> float:
    """Mean of :func:`pixel_distances`: 0 to 1, 0 = copies."""
    return float(np.mean(pixel_distances(panels)))


def reference_distance(picture: Image, reference: Image) -> float:
    """Root mean square pixel difference of a picture and its reference, which is resized to it: 0 to 1, 0 = a copy."""
    return panel_diversity([picture, reference.resize(picture.size)])


def thumbnails(pictures: Sequence[Image]) -> np.ndarray:
    """Pictures as vectors for :func:`nearest_distances`: (pictures, pixels and channels) float32, from 0 to 1."""
    small = [np.asarray(to_rgb(picture).resize((THUMBNAIL, THUMBNAIL)), dtype=np.float32) for picture in pictures]
    return np.stack(small).reshape(len(small), -1) / 255


def thumbnail_distances(pictures: np.ndarray, references: np.ndarray) -> np.ndarray:
    """Root mean square difference of each picture and each reference, on the scale 0 to 1: (pictures, references).

    Args:
        pictures, references: of :func:`thumbnails`.
    """
    a, b = pictures.astype(np.float64), references.astype(np.float64)
    squares = (a**2).sum(axis=1)[:, None] + (b**2).sum(axis=1)[None] - 2 * a @ b.T
    return np.sqrt(np.maximum(squares, 0) / a.shape[1])


def copied_panels(panels: Sequence[Image], references: Sequence[Image], bound: float) -> np.ndarray:
    """Whether each panel is a near-copy of a reference image or of another panel of its set: (panels,) bool.

    Args:
        references: any number of images, of any size.
        bound: root mean square difference of thumbnails below which an image is a near-copy, on the scale 0 to 1.
    """
    small = thumbnails(panels)
    distances = thumbnail_distances(small, small)
    np.fill_diagonal(distances, np.inf)
    if references:
        distances = np.hstack([distances, thumbnail_distances(small, thumbnails(references))])
    return np.asarray(distances.min(axis=1) < bound)


def edge_density(picture: Image) -> float:
    """Mean brightness difference of neighboring pixels, on the scale 0 to 1: 0 = one plain area.

    It falls if details or the background vanish. Compare pictures of one size only.
    """
    grey = np.asarray(picture.convert("L"), dtype=np.float32) / 255
    return float((np.abs(np.diff(grey, axis=0)).mean() + np.abs(np.diff(grey, axis=1)).mean()) / 2)


def color_entropy(picture: Image) -> float:
    """Shannon entropy of the colors in bits, 8 levels per channel: 0 = one color, 9 = all 512 colors equally often."""
    levels = np.asarray(to_rgb(picture), dtype=np.intp) // 32
    shares = np.bincount((levels @ (64, 8, 1)).ravel(), minlength=512) / (picture.width * picture.height)
    return float(-(shares[shares > 0] * np.log2(shares[shares > 0])).sum())


def brightness(picture: Image) -> float:
    """Mean brightness, 0 (black) to 1 (white)."""
    return float(np.asarray(picture.convert("L")).mean() / 255)


def grid_score(pictures: Sequence[Image], reference: Sequence[Image]) -> float:
    """How far one frequency stands out in pictures and not in reference pictures, in nats of power; 0 = nowhere.

    Upsampling and training artefacts repeat every few pixels, and show as single peaks of the spectrum (Durall et al.,
    arXiv 2003.01826; Zhang et al., arXiv 1907.06515). Excess of a frequency: mean log power of the pictures less that
    of the reference pictures. Of the excess, the median of its ring (frequencies of equal radius) is taken off, so that
    sharper or smoother pictures score nothing; the score is the largest excess that is left. A peak of 3 nats has 20
    times the power.

    Args:
        pictures, reference: N and M pictures, all of one size.

    Raises:
        ValueError: when either is empty, or sizes differ.
    """
    sizes = {picture.size for picture in (*pictures, *reference)}
    if not pictures or not reference or len(sizes) != 1:
        raise ValueError(f"{len(pictures)} pictures and {len(reference)} reference pictures of sizes {sorted(sizes)}")
    excess = _log_power(pictures) - _log_power(reference)
    height, width = excess.shape
    rows, columns = np.fft.fftfreq(height)[:, None], np.fft.fftfreq(width)[None, :]
    ring = np.round(np.hypot(rows, columns) * min(height, width)).astype(int)
    ring[ring > min(height, width) // 2] = min(height, width) // 2  # the corners are one ring
    rings = [np.median(excess[ring == radius]) for radius in range(ring.max() + 1)]
    peaks = (excess - np.array(rings)[ring])[ring > 0]
    return float(peaks.max())


def _log_power(pictures: Sequence[Image]) -> np.ndarray:
    """Mean log power of the grey pictures at each frequency (H, W), their edges faded out."""
    grey = np.stack([np.asarray(picture.convert("L"), dtype=np.float64) for picture in pictures]) / 255.0
    grey -= grey.mean(axis=(1, 2), keepdims=True)
    window = np.hanning(grey.shape[1])[:, None] * np.hanning(grey.shape[2])[None, :]
    power = np.abs(np.fft.fft2(grey * window)) ** 2
    floor = (1 / 255) ** 2 * float((window**2).sum()) / 12  # of rounding to 256 levels: weaker power is no signal
    return np.log(power + floor).mean(axis=0)
