"""Training images for the readers of the zoo: drawings at many sizes, with the damage of generated images.

The recognizer, CLIP and the vision-language model all read panels that a VAE decoded. All three therefore learn from
the same mixture: drawings, blurred and noisy drawings, and VAE reconstructions.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from diffusers import AutoencoderKL
from PIL import Image as pil
from torch.nn import functional

from paco_core.config.params import GridsParams
from paco_core.data.grids.text_to_image import Request, TextToImage
from paco_core.data.records.panels import split_grid
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import StorybookPrompt, storybook_prompts
from paco_core.storybook.recogniser import TRAITS, Recogniser, normalize_pixels, to_pixels
from paco_core.storybook.world import VOCABULARY, Panel, random_panel

if TYPE_CHECKING:
    from PIL.Image import Image

#: Panel sizes in pixels; the smallest is that of a 2x2 grid of 64 px, and the hardest to read.
PANEL_SIZES: tuple[int, ...] = (32, 32, 48, 64, 96)
#: Sizes at which panels go through the autoencoder for training: decoding grows with the area.
RECONSTRUCTED_SIZES: tuple[int, ...] = (32, 32, 48, 64)
#: (prompts, px a grid, steps) that FLUX paints for the readers; a policy's rollouts have four steps.
PAINTING_PLAN: tuple[tuple[int, int, int], ...] = ((1_000, 64, 10), (150, 128, 10), (5_000, 64, 4))


@dataclass(frozen=True)
class Views:
    """Panels and their images: ``pixels`` is uint8 (count, 3, side, side), ``labels`` (count, traits)."""

    panels: list[Panel]
    pixels: torch.Tensor
    labels: torch.Tensor

    def __len__(self) -> int:
        return len(self.panels)

    def __add__(self, other: Views) -> Views:
        pixels = torch.cat([self.pixels, other.pixels])
        return Views(self.panels + other.panels, pixels, torch.cat([self.labels, other.labels]))

    def index_of(self) -> dict[Panel, list[int]]:
        """Rows that show each panel."""
        rows: dict[Panel, list[int]] = {}
        for row, panel in enumerate(self.panels):
            rows.setdefault(panel, []).append(row)
        return rows


def label_rows(panels: Sequence[Panel]) -> torch.Tensor:
    """Word indices, int64 (count, traits), in the order of ``VOCABULARY``."""
    rows = [[VOCABULARY[trait].index(getattr(panel, trait)) for trait in TRAITS] for panel in panels]
    return torch.tensor(rows)


def drawn_views(
    panels: Sequence[Panel], side: int, seed: int, sizes: Sequence[int] = (), vae: Path | None = None
) -> Views:
    """Draw each panel once at a random size (of ``sizes``, if any) and resize it to ``side`` pixels.

    With ``vae`` (a folder of an ``AutoencoderKL``), four drawings at a time are encoded and decoded as a 2x2 grid, like
    the images of a policy, and then split.
    """
    rng = random.Random(seed)
    sizes = sizes or (PANEL_SIZES if vae is None else RECONSTRUCTED_SIZES)
    chosen = [rng.choice(sizes) for _ in panels]
    images = [draw(panel, size, rng) for panel, size in zip(panels, chosen, strict=True)]
    if vae is not None:
        images = reconstruct(images, vae)
    return Views(list(panels), to_pixels(images, side), label_rows(panels))


def generate_paintings(
    prompts: Sequence[StorybookPrompt], seed: int, size: int, flux: Path, steps: int = 10
) -> list[Image]:
    """Panels that the zoo's FLUX generates: one 2x2 grid of ``size`` px per prompt, in reading order."""
    params = GridsParams(
        model=str(flux), device="cpu", dtype="float32", seeds=[0, 1], height=size, width=size, steps=steps,
        guidance=3.5, max_sequence_length=40, batch_size=32,
    )  # fmt: skip
    painter = TextToImage.load(flux, params)
    requests = [Request(prompt.prompt, size, size, seed + row) for row, prompt in enumerate(prompts)]
    painter.encode(requests)
    panels: list[Image] = []
    for start in range(0, len(requests), params.batch_size):
        grids = painter.generate(requests[start : start + params.batch_size], params.batch_size)
        panels += [panel for grid in grids for panel in split_grid(grid, "2x2")]
    return panels


def paint_training_panels(flux: Path, seed: int) -> list[Image]:
    """Generated training images for the readers, with prompts and noise that no run of the graph uses."""
    return [
        panel
        for part, (count, size, steps) in enumerate(PAINTING_PLAN)
        for panel in generate_paintings(
            storybook_prompts(count, seed=2_000 + part), seed + part * 1_000_003, size, flux, steps
        )
    ]


def read_views(images: Sequence[Image], side: int, recogniser: Path) -> Views:
    """Images with the recognizer's readings as labels, because a generated image may differ from its prompt."""
    read = [reading.panel for reading in Recogniser.from_pretrained(recogniser).read(images)]
    return Views(read, to_pixels(images, side), label_rows(read))


def random_panels(count: int, seed: int) -> list[Panel]:
    """``count`` panels, attributes independent and uniform."""
    rng = random.Random(seed)
    return [random_panel(rng) for _ in range(count)]


def reconstruct(images: Sequence[Image], vae_folder: Path, batch_size: int = 16) -> list[Image]:
    """Encode and decode square images in 2x2 grids of equal size; order and sizes stay the same."""
    vae = AutoencoderKL.from_pretrained(vae_folder).eval()
    results: list[Image | None] = [None] * len(images)
    by_size: dict[int, list[int]] = {}
    for row, image in enumerate(images):
        by_size.setdefault(image.width, []).append(row)
    for size, rows in by_size.items():
        for start in range(0, len(rows), 4 * batch_size):
            chunk = rows[start : start + 4 * batch_size]
            padded = chunk + [chunk[-1]] * (-len(chunk) % 4)
            tiles = to_pixels([images[row] for row in padded], size)
            with torch.inference_mode():
                grids = vae.decode(vae.encode(_as_grids(normalize_pixels(tiles))).latent_dist.mode()).sample
            decoded = _as_tiles((grids.clamp(-1, 1) * 127.5 + 127.5).round().to(torch.uint8))
            for row, tile in zip(chunk, decoded[: len(chunk)], strict=True):
                results[row] = _as_image(tile)
    return [image for image in results if image is not None]


def spoil(pixels: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Random blur, noise, brightness and shift by a pixel per image: uint8 (n, 3, s, s) -> float -1..1."""
    clean = normalize_pixels(pixels)
    count = len(clean)

    def chance(share: float) -> torch.Tensor:
        return (torch.rand(count, 1, 1, 1, generator=generator) < share).float()

    padded = functional.pad(clean, (1, 1, 1, 1), mode="replicate")
    blurred = functional.avg_pool2d(padded, 3, stride=1)
    mix = chance(0.4) * torch.rand(count, 1, 1, 1, generator=generator)
    out = clean + mix * (blurred - clean)
    noise = chance(0.5) * 0.15 * torch.rand(count, 1, 1, 1, generator=generator)
    out = out + noise * torch.randn(out.shape, generator=generator)
    gain = 1 + 0.1 * torch.randn(count, 1, 1, 1, generator=generator)
    shift = 0.05 * torch.randn(count, 3, 1, 1, generator=generator)
    return (out * gain + shift).clamp(-1, 1)


def move(pictures: torch.Tensor, most: int, generator: torch.Generator) -> torch.Tensor:
    """Shift each image (count, 3, side, side) by up to ``most`` px in both directions; the edge fills the rest."""
    steps = torch.randint(-most, most + 1, (len(pictures), 2), generator=generator).tolist()
    return torch.cat([moved(picture[None], *step) for picture, step in zip(pictures, steps, strict=True)])


def moved(pictures: torch.Tensor, down: int, right: int) -> torch.Tensor:
    """Shift all images (n, 3, s, s) by the same number of pixels."""
    side, most = pictures.shape[-1], max(abs(down), abs(right))
    padded = functional.pad(pictures, (most,) * 4, mode="replicate")
    return padded[..., most - down : most - down + side, most - right : most - right + side]


def _as_grids(tiles: torch.Tensor) -> torch.Tensor:
    """(4 n, c, s, s) -> (n, c, 2 s, 2 s), tiles in reading order."""
    count, channels, size, _ = tiles.shape
    grouped = tiles.reshape(count // 4, 2, 2, channels, size, size).permute(0, 3, 1, 4, 2, 5)
    return grouped.reshape(count // 4, channels, 2 * size, 2 * size)


def _as_tiles(grids: torch.Tensor) -> torch.Tensor:
    """(n, c, 2 s, 2 s) -> (4 n, c, s, s), the inverse of :func:`_as_grids`."""
    count, channels, double, _ = grids.shape
    size = double // 2
    grouped = grids.reshape(count, channels, 2, size, 2, size).permute(0, 2, 4, 1, 3, 5)
    return grouped.reshape(4 * count, channels, size, size)


def _as_image(tile: torch.Tensor) -> Image:
    return pil.fromarray(tile.permute(1, 2, 0).contiguous().numpy())
