"""What a reward may be made of without rankings of one's own: PaCo-Dataset alone, or weights that others published."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from paco_core.cli import exchange
from paco_core.io import paths
from paco_core.io.files import DataError, write_json
from paco_core.reward_model.checks import merged_equals_adapter, reward_beats_base
from paco_core.reward_model.golden import read_golden
from paco_core.reward_model.instructions import render
from paco_core.reward_model.scorer import Scorer
from paco_core.stages import declaration, run_stage
from paco_core.storybook.drawn_cases import drawn_pairs
from tests.support import reward_tiny, tiny_vlm
from tests.support.small_profiles import use

pytestmark = pytest.mark.slow

BASE = "data/zoo/qwen2_5_vl"
BEFORE = (
    "prompts",
    "diverse_prompts",
    "grids",
    "rankings",
    "annotations",
    "edit_prompts",
    "edits",
    "pairs",
    "cot_labels",
)
SMALL: Mapping[str, Any] = {
    "execution": {"threads": 1},
    "edits": {"device": "cpu", "dtype": "float32"},
    "reward": {
        "base": BASE, "device": "cpu", "dtype": "float32", "max_pixels": 3136, "batch_size": 4, "accumulation": 1,
        "epochs": 1, "lora": {"rank": 4, "alpha": 8}, "gradient_checkpointing": False,
    },
}  # fmt: skip


def publish_dataset(folder: Path, train: int = 12, test: int = 4) -> None:
    """A folder as PaCo-Dataset is published: ShareGPT rows of two splits, and their pictures."""
    (folder / "images").mkdir(parents=True)
    info = {}
    for split, numbers in (("train", range(train)), ("test", range(train, train + test))):
        rows = []
        for n in numbers:
            names = [f"images/{n}-{side}.png" for side in "ab"]
            for side, name in enumerate(names):
                reward_tiny.picture(2 * n + side, 64).save(folder / name)
            asked = "<image><image>" + render("theme", theme=f"theme {n}")
            answer = "Yes. The style is the same." if n % 2 else "No. The animal differs."
            talk = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
            rows.append({"messages": talk, "images": names})
        (folder / f"{split}.json").write_text(json.dumps(rows))
        info[f"consistency_reward_cot_{split}"] = {
            "file_name": f"{split}.json", "formatting": "sharegpt",
            "columns": {"messages": "messages", "images": "images"},
            "tags": {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"},
        }  # fmt: skip
    write_json(folder / "dataset_info.json", info)


def run_all(project: Path, *stages: str) -> None:
    for stage in stages:
        run_stage(stage, "0" if stage == "grids" else None, project)


def metrics(project: Path, stage: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((project / paths.metrics_file(stage)).read_text())
    return found


def test_paco_dataset_alone_trains_a_reward_and_validates_it_on_its_own_split(project: Path) -> None:
    tiny_vlm.build(project / BASE)
    publish_dataset(project / "PaCo-Dataset")
    exchange.bring("paco_dataset", project / "PaCo-Dataset", project / "data/external/paco_dataset")
    use(project, "paco_dataset", SMALL)
    run_all(project, *BEFORE, "reward_lora", "reward_merged")
    parts = {part: pd.read_parquet(project / paths.COT_LABELS / f"{part}.parquet") for part in ("train", "validation")}
    assert {part: len(table) for part, table in parts.items()} == {"train": 12, "validation": 4}
    assert set(parts["validation"]["theme"]) == {f"theme {n}" for n in range(12, 16)}, "as published"
    trained = metrics(project, "reward_lora")
    assert trained["pairs"] == 4 and trained["steps"] == 3
    assert metrics(project, "reward_merged")["pairs"] == 4
    assert Scorer(project / paths.REWARD_MERGED).score([p.query for p in read_golden(project / paths.REWARD_MERGED)])
    reports = [r for name in BEFORE for check in declaration(name).checks for r in check.reports(project)]
    assert len(reports) >= 8 and [report.description for report in reports if not report.passed] == []


def test_published_weights_need_no_pair(project: Path) -> None:
    """Nothing is validated then, which the figures say by their absence; the golden pairs are drawn."""
    use(project, "published", SMALL, {"prompts": {"engine": "none"}, "reward": {"weights": BASE}})
    tiny_vlm.build(project / BASE)
    run_all(project, *BEFORE, "reward_lora", "reward_merged")
    assert metrics(project, "reward_lora") == {"steps": 0.0}
    report = reward_beats_base(project / paths.metrics_file("reward_lora"))
    assert report.passed and "not validated" in report.description
    merged = metrics(project, "reward_merged")
    assert merged["drawn_pairs"] == 8 and "pairs" not in merged
    report = merged_equals_adapter(project / paths.metrics_file("reward_merged"))
    assert report.passed and "over 8 drawn pairs" in report.description
    golden = read_golden(project / paths.REWARD_MERGED)
    scores = Scorer(project / BASE, min_pixels=3136, max_pixels=3136).score([pair.query for pair in golden])
    assert [score.value for score in scores] == pytest.approx([pair.score for pair in golden], abs=1e-5)


def test_training_without_any_pair_says_what_may_bring_some(project: Path) -> None:
    use(project, "paco_dataset", SMALL, {"pairs": {"imported": None}})
    tiny_vlm.build(project / BASE)
    run_all(project, *BEFORE)
    with pytest.raises(DataError, match=r"train.parquet: holds no pair.*pairs.imported.*reward.source: merged"):
        run_stage("reward_lora", None, project)
    assert not (project / paths.REWARD_LORA).exists()


def test_drawn_pairs_are_the_same_every_time_and_differ_among_themselves() -> None:
    once, again = drawn_pairs(4, 32), drawn_pairs(4, 32)
    assert [(a.tobytes(), b.tobytes(), theme) for a, b, theme in once] == [
        (a.tobytes(), b.tobytes(), theme) for a, b, theme in again
    ]
    assert len({a.tobytes() for a, _, _ in once}) == 4 and all(a.size == b.size == (32, 32) for a, b, _ in once)
