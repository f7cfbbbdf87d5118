"""Model cards of the zoo: a README.md for people and a card.json with the measured figures."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from paco_core.io.files import DataError, write_json, write_text

LICENCE = "Apache-2.0"
MACHINE = "2 CPU cores"


@dataclass(frozen=True)
class ModelCard:
    """Card of a member of the zoo: description, training and limits."""

    member: str
    title: str
    summary: str
    loading: str
    recipe: str
    limits: str
    seed: int = 0


def parameter_count(folder: Path) -> int:
    """Number of values in all safetensors files below ``folder``, read from their headers.

    Raises:
        DataError: if there is no such file.
    """
    files = sorted(folder.rglob("*.safetensors"))
    if not files:
        raise DataError(f"{folder}: holds no safetensors file, so it is not a member of the zoo; build it first")
    return sum(_values(file) for file in files)


def _values(file: Path) -> int:
    with file.open("rb") as stream:
        (length,) = struct.unpack("<Q", stream.read(8))
        header = json.loads(stream.read(length))
    return sum(prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__")


def write_card(folder: Path, card: ModelCard, figures: Mapping[str, float], minutes: float) -> None:
    """Write ``README.md`` and ``card.json`` into a member's folder.

    Args:
        figures: name -> measured value; a share is between 0 and 1.
        minutes: training time on the machine class of the card.
    """
    weights = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    parameters = parameter_count(folder)
    rounded = {name: round(float(value), 4) for name, value in figures.items()}
    write_json(
        folder / "card.json",
        {
            "member": card.member,
            "licence": LICENCE,
            "seed": card.seed,
            "machine": MACHINE,
            "training_minutes": round(minutes, 1),
            "parameters": parameters,
            "figures": rounded,
        },
    )
    rows = "\n".join(f"| {name.replace('_', ' ')} | {value:g} |" for name, value in rounded.items())
    text = f"""---
license: {LICENCE.lower()}
---

# {card.title}

{card.summary}

## Loading

```python
{card.loading}
```

## Recipe

{card.recipe}

Seed {card.seed}; {minutes:.0f} minutes of training on {MACHINE}; {parameters / 1e6:.2f} M parameters in \
{weights / 1e6:.1f} MB. To train it again, run `paco zoo build {card.member}`. To measure it again, run \
`paco zoo check {card.member}`.

## Metrics

| metric | value |
|---|---|
{rows}

## Limits

{card.limits}

License: {LICENCE}. The code of this project draws the training images and writes the training texts.
"""
    write_text(folder / "README.md", text)
