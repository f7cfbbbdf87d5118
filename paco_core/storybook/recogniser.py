"""Reads the attributes of storybook pictures: the human annotator and the gold metric of this world.

The recogniser is a small convolutional network with one softmax head a trait. It ranks panels in the
annotator's place and measures consistency and prompt following. It is never a training reward, so
that a policy which cheats its reward is found out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from PIL import Image as pil
from torch import nn

from paco_core.io.decoding import MAX_SIDE
from paco_core.io.files import read_json
from paco_core.io.imports import gc_paused
from paco_core.models.size import validate_model_size
from paco_core.models.weights import numbers_below, read_tensors, reading
from paco_core.storybook.world import IDENTITY, SHARED_TRAITS, VOCABULARY, Panel

if TYPE_CHECKING:
    from PIL.Image import Image

TRAITS: tuple[str, ...] = tuple(VOCABULARY)


@dataclass(frozen=True)
class Reading:
    """What the recogniser sees in one picture: the likeliest word of each trait and its probability."""

    panel: Panel
    probability: dict[str, float]

    def word(self, trait: str) -> str:
        """The word read for ``trait`` (a key of ``VOCABULARY``)."""
        return str(getattr(self.panel, trait))


def gold_consistency(readings: Sequence[Reading]) -> float:
    """Share of the unordered panel pairs of one set that agree in every shared trait, 0 to 1.

    Raises:
        ValueError: with fewer than two readings, since there is no pair to judge.
    """
    if len(readings) < 2:
        raise ValueError(f"gold consistency needs at least two panels of a set, got {len(readings)}")
    pairs = list(combinations(readings, 2))
    agreeing = sum(all(a.word(trait) == b.word(trait) for trait in SHARED_TRAITS) for a, b in pairs)
    return agreeing / len(pairs)


def gold_following(readings: Sequence[Reading], panels: Sequence[Panel], traits: Sequence[str] = TRAITS) -> float:
    """Share of (panel, trait) cells of one set that are as the prompt states, 0 to 1.

    Args:
        readings: one per panel, in reading order.
        panels: the panels of the prompt, in the same order.
        traits: the traits that count. The default is all, because a storybook prompt states each trait of each panel.

    Raises:
        ValueError: if the numbers of readings and panels differ, or a trait is unknown.
    """
    if len(readings) != len(panels) or not readings:
        raise ValueError(f"gold following needs one requested panel per reading, got {len(panels)} for {len(readings)}")
    if unknown := [trait for trait in traits if trait not in VOCABULARY]:
        raise ValueError(f"unknown trait {unknown[0]!r}; choose among {', '.join(VOCABULARY)}")
    matched = list(zip(readings, panels, strict=True))
    cells = [read.word(trait) == getattr(panel, trait) for read, panel in matched for trait in traits]
    return sum(cells) / len(cells)


def gold_identity(reading: Reading, references: Sequence[Reading]) -> float:
    """Share of the identity traits of a panel that are as in a character's images, 0 to 1.

    The character has the word of each trait that most of its images have; of equally frequent words, the one with the
    highest sum of probabilities.

    Args:
        references: one per image of the character.

    Raises:
        ValueError: without an image.
    """
    if not references:
        raise ValueError("gold identity needs at least one image of the character")
    return sum(reading.word(trait) == _most_frequent(trait, references) for trait in IDENTITY) / len(IDENTITY)


def _most_frequent(trait: str, readings: Sequence[Reading]) -> str:
    votes: dict[str, tuple[int, float]] = {}
    for image in readings:
        count, probability = votes.get(image.word(trait), (0, 0.0))
        votes[image.word(trait)] = (count + 1, probability + image.probability[trait])
    return max(votes, key=lambda word: votes[word])


@dataclass(frozen=True)
class GoldEdit:
    """Result of an edit: ``reached`` is 1 if it was made, ``unchanged`` the share of other traits without a change."""

    reached: float
    unchanged: float

    @property
    def editing(self) -> float:
        """1 if the edit was made and changed nothing else, else 0."""
        return float(self.reached == self.unchanged == 1.0)


def gold_edit(reading: Reading, before: Panel, trait: str, word: str) -> GoldEdit:
    """Evaluate an edit of the panel ``before`` that should change ``trait`` to ``word``.

    Args:
        reading: of the picture after the edit.

    Raises:
        ValueError: if the trait is unknown, or has no such word.
    """
    target = before.with_trait(trait, word) if trait in VOCABULARY else None
    if target is None:
        raise ValueError(f"unknown trait {trait!r}; choose among {', '.join(VOCABULARY)}")
    unchanged = [reading.word(other) == getattr(target, other) for other in TRAITS if other != trait]
    return GoldEdit(float(reading.word(trait) == word), sum(unchanged) / len(unchanged))


def build_network(width: int) -> torch.nn.Module:
    """The network: (batch, 3, side, side) in -1..1 -> (batch, number of words over all traits) logits."""

    def block(inputs: int, outputs: int, kernel: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    words = sum(len(words) for words in VOCABULARY.values())
    return nn.Sequential(
        *block(3, width, 5, 2),
        *block(width, 2 * width, 3, 2),
        *block(2 * width, 2 * width, 3, 1),
        *block(2 * width, 3 * width, 3, 2),
        *block(3 * width, 4 * width, 3, 1),
        nn.AdaptiveAvgPool2d(3),
        nn.Flatten(),
        nn.Linear(9 * 4 * width, 4 * width),
        nn.ReLU(inplace=True),
        nn.Linear(4 * width, words),
    )


def _validated_int(number: Any) -> int:
    """A size of a configuration: a picture's side, or channels of a layer."""
    if not isinstance(number, int) or not 1 <= number <= MAX_SIDE:
        raise ValueError(f"{number!r} where a whole number from 1 to {MAX_SIDE} is expected")
    return number


class Recogniser:
    """A trained recogniser, ready to read."""

    def __init__(self, network: torch.nn.Module, side: int, device: str = "cpu") -> None:
        self.network = network.eval().to(device)
        self.side = side
        self.device = device

    @classmethod
    @gc_paused()
    def from_pretrained(cls, folder: str | Path, device: str = "cpu") -> Recogniser:
        """Load ``config.json`` and ``model.safetensors`` of ``folder``.

        Raises:
            FileNotFoundError: when one of the two files is missing.
            ValueError: when the weights were trained on another vocabulary.
            DataError: when a tensor is missing, unexpected or not finite, or the file is damaged.
        """
        folder = Path(folder)
        for name in ("config.json", "model.safetensors"):
            if not (folder / name).is_file():
                raise FileNotFoundError(
                    f"no recogniser in {folder}: {name} is missing; build it with `paco zoo build recogniser`"
                )
        file = folder / "config.json"
        with reading(file):
            config = read_json(file)
            width, side = _validated_int(config["width"]), _validated_int(config["side"])
            trained_on = {trait: tuple(words) for trait, words in config["vocabulary"].items()}
        if trained_on != VOCABULARY:
            raise ValueError(
                f"{file}: trained on another vocabulary than this storybook's; "
                "train again with `paco zoo build recogniser`"
            )
        stored_numbers = numbers_below(folder)
        with reading(file):
            validate_model_size(lambda: build_network(width), stored_numbers, file)
        network = build_network(width)
        tensors, _ = read_tensors(folder / "model.safetensors")
        with reading(folder):
            network.load_state_dict(tensors)
        return cls(network, side, device)

    def read(self, images: Sequence[Image], batch_size: int = 256) -> list[Reading]:
        """Read pictures of any size (made for panels of 24 to 96 px), one reading each, in order."""
        readings: list[Reading] = []
        for start in range(0, len(images), batch_size):
            pixels = to_pixels(images[start : start + batch_size], self.side)
            with torch.inference_mode():
                logits = self.network(normalize_pixels(pixels).to(self.device)).float().cpu()
            readings += _readings(logits)
        return readings


def to_pixels(images: Sequence[Image], side: int) -> torch.Tensor:
    """Pictures as uint8 (batch, 3, side, side), resized with an antialiased bicubic filter."""
    resized = [image.resize((side, side), pil.Resampling.BICUBIC) for image in images]
    return torch.from_numpy(np.stack([np.asarray(image) for image in resized])).permute(0, 3, 1, 2).contiguous()


def normalize_pixels(pixels: torch.Tensor) -> torch.Tensor:
    """uint8 0..255 -> float -1..1, of any shape."""
    return pixels.float() / 127.5 - 1.0


def split_by_trait(logits: torch.Tensor) -> dict[str, torch.Tensor]:
    """Cut (batch, all words) into one (batch, words of the trait) tensor a trait."""
    return dict(zip(TRAITS, logits.split([len(words) for words in VOCABULARY.values()], dim=1), strict=True))


def _readings(logits: torch.Tensor) -> list[Reading]:
    columns: dict[str, tuple[list[float], list[int]]] = {}
    for trait, head in split_by_trait(logits).items():
        probability, index = head.softmax(dim=1).max(dim=1)
        columns[trait] = (probability.tolist(), index.tolist())
    readings = []
    for row in range(len(logits)):
        words: dict[str, Any] = {trait: VOCABULARY[trait][columns[trait][1][row]] for trait in TRAITS}
        readings.append(Reading(Panel(**words), {trait: columns[trait][0][row] for trait in TRAITS}))
    return readings
