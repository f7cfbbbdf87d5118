"""A miniature project for the reward's stages: real shards and tables, a base with random weights."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from paco_core.config.params import CharacterPairsParams
from paco_core.data.pairs.characters import (
    CHARACTERS_SHARD,
    HELD_OUT_CHARACTERS,
    NEGATIVES,
    draw_cases,
    held_out_table,
)
from paco_core.data.pairs.pairs import BENCHMARK_COLUMNS
from paco_core.io import paths
from paco_core.io.shards import encode_png, write_shard
from tests.support import reward_tiny, tiny_vlm


def fill(root: Path) -> None:
    """A base, two grids of four panels and twelve labelled pairs."""
    tiny_vlm.build(root / "data" / "zoo" / "qwen2_5_vl")
    grids = {f"grid{n}": encode_png(reward_tiny.picture(n, 64)) for n in range(2)}
    rows = [
        {"id": name, "prompt_id": "a", "seed": n, "layout": "2x2", "height": 64, "width": 64}
        for n, name in enumerate(grids)
    ]
    write_shard(root / paths.GRIDS / "shard-0", rows, grids)
    table = pd.DataFrame(
        [
            {
                "pair_id": f"p{n}",
                "prompt_id": "a",
                "theme": "the same style",
                "first": f"grid0#{n % 4}",
                "second": f"grid1#{n // 4}",
                "label": "Yes" if n % 2 else "No",
                "answer": "Yes. The style is the same." if n % 2 else "No. The animal differs.",
            }
            for n in range(12)
        ]
    )
    (root / paths.PAIRS).mkdir(parents=True)
    (root / paths.COT_LABELS).mkdir(parents=True)
    table[:8].to_parquet(root / paths.COT_LABELS / "train.parquet")
    table[8:].to_parquet(root / paths.COT_LABELS / "validation.parquet")


def fill_characters(root: Path, count: int = 30) -> None:
    """Held-out cases of drawn characters, and their pictures."""
    shares = dict.fromkeys(NEGATIVES, 0.15)
    params = CharacterPairsParams(count=count, shares=shares, size=28, references=[1, 2])
    characters = draw_cases(params)
    characters.pictures.write(root / paths.PAIRS / CHARACTERS_SHARD)
    held_out_table(characters.cases).to_parquet(root / paths.PAIRS / HELD_OUT_CHARACTERS)


def fill_benchmark(root: Path, count: int = 6) -> None:
    """Held-out rankings of six prompts, as few as have an interval, over the same panels."""
    rows = [
        {
            "instance_id": f"i{n}",
            "prompt_id": f"q{n % 6}",
            "theme": "the same style",
            "reference": f"grid0#{n % 4}",
            "candidates": [f"grid1#{panel}" for panel in range(4)],
            "ranking": [(n + place) % 4 for place in range(4)],
            "scores": [1.0 - ((panel - n) % 4) / 4 for panel in range(4)],
            "tied": [],
        }
        for n in range(count)
    ]
    (root / paths.PAIRS).mkdir(parents=True, exist_ok=True)
    table = pd.DataFrame(rows, columns=list(BENCHMARK_COLUMNS))
    table.to_parquet(root / paths.PAIRS / "benchmark.parquet")
