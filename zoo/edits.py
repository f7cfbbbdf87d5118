"""Editing triples for the editors of the zoo, drawn and encoded once.

Panels are grouped in families of 2^6: all combinations of two words for each trait, with the character at the same
position. So 64 drawings give 384 edits of one trait, and all edits with an additional change.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from paco_core.io.atomic import atomic
from paco_core.io.progress import Progress
from paco_core.storybook.drawing import draw
from paco_core.storybook.editing import Edit
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel
from zoo.fitting import Log

TRAITS = tuple(VOCABULARY)
FAMILY = 2 ** len(TRAITS)
#: Picture size in pixels, families that are drawn, edits a batch, share of the steps.
SIZES = ((64, 120, 40, 0.7), (128, 40, 12, 0.3))
UNREQUESTED, UNHEEDED = 0.25, 0.1  # shares of the training edits that go wrong in one of two ways

#: Pixels (n, 3, s, s) in -1..1 -> encodings: ``latents`` (n, c, s / 8, s / 8), scaled, and other inputs that a model
#: needs for a reference image.
Encode = Callable[["torch.Tensor"], "dict[str, torch.Tensor]"]


@dataclass(frozen=True)
class EditFamily:
    """Two words for each trait; a member is coded by six bits, the first trait's bit the highest."""

    words: tuple[tuple[str, str], ...]

    @classmethod
    def draw_words(cls, rng: random.Random) -> EditFamily:
        return cls(tuple(tuple(rng.sample(words, 2)) for words in VOCABULARY.values()))  # type: ignore[misc]

    def panel(self, bits: int) -> Panel:
        chosen = {t: self.words[n][bits >> (len(TRAITS) - 1 - n) & 1] for n, t in enumerate(TRAITS)}
        return Panel(**chosen)  # type: ignore[arg-type]


def bit(trait: str) -> int:
    """The bit of a trait."""
    return 1 << (len(TRAITS) - 1 - TRAITS.index(trait))


@dataclass(frozen=True)
class EditBatch:
    """N edits of one size: instructions, everything that was encoded of the references, latents after the edit."""

    instructions: list[str]
    reference: dict[str, torch.Tensor]
    targets: torch.Tensor


@dataclass
class EditPool:
    """Families of panels and their encodings: size -> (families, name -> (families, 64, ...))."""

    families: dict[int, list[EditFamily]]
    encoded: dict[int, dict[str, torch.Tensor]]

    @classmethod
    def build(
        cls, encode: Encode, file: Path, log: Log, sizes: Sequence[tuple[int, int, int, float]] = SIZES
    ) -> EditPool:
        """Draw and encode, or load the encodings of an earlier run with the same autoencoder."""
        families = {size: _families(size, count) for size, count, _, _ in sizes}
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            tensors = {
                f"{size}.{name}": tensor
                for size, panels in families.items()
                for name, tensor in _encoded(encode, size, panels, log).items()
            }
            with atomic(file) as part:
                save_file(tensors, part)
        encoded: dict[int, dict[str, torch.Tensor]] = {size: {} for size in families}
        for key, tensor in load_file(file).items():
            size, name = key.split(".")
            encoded[int(size)][name] = tensor
        return cls(families, encoded)

    def batch(self, size: int, count: int, rng: random.Random) -> EditBatch:
        """``count`` edits at random. Some change something unasked, some change nothing: people's edits are so too."""

        places, instructions = [], []
        for _ in range(count):
            number, start, trait = rng.randrange(len(self.families[size])), rng.randrange(FAMILY), rng.choice(TRAITS)
            end, chance = start ^ bit(trait), rng.random()
            target = start if chance < UNHEEDED else end
            if UNHEEDED <= chance < UNHEEDED + UNREQUESTED:
                target ^= bit(rng.choice([other for other in SHARED_TRAITS if other != trait]))
            family = self.families[size][number]
            instructions.append(Edit(family.panel(start), family.panel(end), trait).instruction)
            places.append((number, start, target))
        numbers, starts, ends = (list(column) for column in zip(*places, strict=True))
        encoded = self.encoded[size]
        reference = {name: tensor[numbers, starts].float() for name, tensor in encoded.items()}
        return EditBatch(instructions, reference, encoded["latents"][numbers, ends].float())


def instructions() -> list[str]:
    """All possible instructions."""
    plain = {trait: words[0] for trait, words in VOCABULARY.items()}
    texts: dict[str, None] = {}
    for trait, species, (old, new) in product(TRAITS, VOCABULARY["species"], ((0, 1), (1, 0))):
        for n, word in enumerate(VOCABULARY[trait]):
            for other in VOCABULARY[trait][n + 1 :]:
                words = (word, other)
                before = Panel(**{**plain, "species": species, trait: words[old]})  # type: ignore[arg-type]
                texts.setdefault(Edit(before, before.with_trait(trait, words[new]), trait).instruction)
    return list(texts)


def _families(size: int, count: int) -> list[EditFamily]:
    rng = random.Random(f"families-{size}")
    return [EditFamily.draw_words(rng) for _ in range(count)]


def _encoded(encode: Encode, size: int, families: Sequence[EditFamily], log: Log) -> dict[str, torch.Tensor]:
    """Encodings of each family by ``encode``, (families, 64, ...) in bfloat16."""
    tensors: dict[str, list[torch.Tensor]] = {}
    with torch.inference_mode(), Progress(len(families), f"latents at {size} px", "families", log) as progress:
        for number, family in enumerate(families):
            images = pixels([family.panel(bits) for bits in range(FAMILY)], size, number)
            for name, tensor in encode(images).items():
                tensors.setdefault(name, []).append(tensor.to(torch.bfloat16))
            progress.advance()
    return {name: torch.stack(parts).contiguous() for name, parts in tensors.items()}


def pixels(panels: Sequence[Panel], size: int, place: int) -> torch.Tensor:
    """Drawings (n, 3, size, size) in -1..1, the character of all in the place that ``place`` draws."""
    images = np.stack([np.asarray(draw(panel, size, random.Random(f"{size}-{place}"))) for panel in panels])
    return torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1
