"""The two reward stages on a miniature project: real shards, real tables, a random-weight base."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import reward_tiny
import tiny_vlm

from paco_core import paths
from paco_core.context import open_stage
from paco_core.reward_model.command import score_pair
from paco_core.reward_model.golden import read_golden
from paco_core.reward_model.scorer import Scorer
from paco_core.shards import encode_png, write_shard
from paco_core.stages import reward_lora, reward_merged


def fill(root: Path) -> None:
    """A base, two grids of four panels and twelve labelled pairs."""
    tiny_vlm.build(root / "data" / "zoo" / "qwen2_5_vl")
    grids = {f"grid{n}": encode_png(reward_tiny.picture(n, 64)) for n in range(2)}
    rows = [{"id": name, "layout": "2x2", "height": 64, "width": 64} for name in grids]
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
    (root / paths.COT_LABELS).mkdir(parents=True)
    table[:8].to_parquet(root / paths.COT_LABELS / "train.parquet")
    table[8:].to_parquet(root / paths.COT_LABELS / "validation.parquet")


def test_the_reward_is_trained_merged_and_scored(project: Path) -> None:
    fill(project)
    with open_stage("reward_lora", None, project) as ctx:
        reward_lora.run(ctx)
    with open_stage("reward_merged", None, project) as ctx:
        reward_merged.run(ctx)

    lora = json.loads((project / paths.metrics_file("reward_lora")).read_text())
    assert {"accuracy", "roc_auc", "base.accuracy", "position_bias", "identical_score", "steps"} <= lora.keys()
    assert lora["pairs"] == 4
    config = json.loads((project / paths.REWARD_LORA / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/zoo/qwen2_5_vl"  # no path of this machine
    merged = json.loads((project / paths.metrics_file("reward_merged")).read_text())
    assert merged["max_abs_difference"] <= merged["tolerance"]

    folder = project / paths.REWARD_MERGED
    golden = read_golden(folder)
    scores = Scorer(folder).score([pair.query for pair in golden])
    assert len(golden) == 4
    assert all(abs(score.value - pair.score) < 1e-5 for score, pair in zip(scores, golden, strict=True))

    first, second = (folder / "golden" / f"0-{side}.png" for side in ("first", "second"))
    text = score_pair(project, first, second, "the same style", None, reasons=True)
    assert abs(float(text.splitlines()[0]) - golden[0].score) < 1e-4
