"""The page's part about editing policies: made-up figures, drawn pictures, published rows marked."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core import paths
from paco_core.benchmarks import gedit
from paco_core.benchmarks.painting import AFTER, BEFORE, Painted, save_samples
from paco_core.benchmarks.published import GEDIT
from paco_core.dataset.edit_prompts import drawn
from paco_core.dataset.edit_records import EditRecord
from paco_core.files import write_json
from paco_core.params import Params, parse
from paco_core.report import page
from paco_core.storybook.drawing import draw
from paco_core.storybook.world import Panel

ENDS = {"gold_editing": (0.3, 0.5), "gold_reached": (0.5, 0.6), "gold_kept": (0.8, 0.9), "editing": (0.4, 0.6)}


def picture(record: Any, *, edited: bool = False) -> Image.Image:
    assert isinstance(record, EditRecord) and record.before is not None
    shown = Panel(**record.before)  # type: ignore[arg-type]
    return draw(shown.with_trait(str(record.trait), str(record.word)) if edited else shown, 48, random.Random(1))


@pytest.fixture(scope="module")
def params(repository: Path) -> Params:
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    rewards = {"terms": {"editing": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}
    recipe = tree["policies"]["recipes"]["flux_t2is"] | {"family": "flux_kontext", "rewards": rewards}
    tree["policies"]["recipes"]["my_edit"] = recipe | {"eval_sizes": [48], "train_size": 48}
    return parse(tree)


def write_gedit(root: Path) -> list[EditRecord]:
    records, noise = drawn(6, 48, 0).records, np.random.default_rng(0)
    painted, rows = [], []
    for when in (BEFORE, AFTER):
        for record in records:
            painted.append(Painted("my_edit", 48, when, record, 0, picture(record, edited=when == AFTER)))
            about = {"picture": record.reference, "task_type": record.task_name, "language": "en"}
            identity = {"policy": "my_edit", "size": 48, "when": when, "prompt_id": record.idx, "seed": 0, **about}
            rows.append(identity | {n: float(ends[when == AFTER] + noise.normal(0, 0.02)) for n, ends in ENDS.items()})
    table = pd.DataFrame(rows)
    result = gedit.summarise(table, seeds=[0], steps=4, resamples=50)
    published = [{"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in GEDIT]
    (root / paths.GEDIT).mkdir(parents=True)
    write_json(root / paths.GEDIT / "results.json", {**result.as_dict(), "published": published})
    save_samples(root / paths.GEDIT / "samples", painted, table, 4, picture)
    log = pd.DataFrame({"epoch": [0, 1, 2], "reward/editing": [np.nan, 0.4, 0.5]})
    log["reference_distance"], log["eval/48/gold_editing"] = [np.nan, 0.2, 0.19], [0.3, np.nan, 0.5]
    (root / paths.POLICIES / "my_edit").mkdir(parents=True)
    log.to_csv(root / paths.POLICIES / "my_edit" / "training_log.csv", index=False)
    return records


def test_edits_stand_beside_their_pictures_and_instructions(params: Params, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "dvc.yaml").write_bytes((repository / "dvc.yaml").read_bytes())
    records = write_gedit(tmp_path)
    made = page.build(tmp_path, params, {})
    assert [m.what for m in made.missing if "edit" in m.path and "reward" not in m.path] == []
    section = made.html.partition('<section id="editor">')[2].partition("</section>")[0]
    assert all(record.prompt in section for record in records[:4]) and records[4].prompt not in section
    assert section.count("<figcaption>the picture</figcaption>") == 4
    key = "gedit.policies.my_edit.48.gold_editing"
    assert made.figures.values[f"{key}.after.mean"] == pytest.approx(0.5, abs=0.05)
    assert made.headline["my_edit.px48.gold_editing.after"] == made.figures.values[f"{key}.after.mean"]
    assert section.count('<span class="tag">published</span>') == len(GEDIT) and "6.469" in section
    assert made.curves["my_edit.reference_distance"]["distance from the reference"][0] == (1.0, 0.2)


def test_what_is_missing_of_an_editing_policy_is_named(params: Params, tmp_path: Path, repository: Path) -> None:
    (tmp_path / "dvc.yaml").write_bytes((repository / "dvc.yaml").read_bytes())
    made = page.build(tmp_path, params, {})
    commands = {m.make for m in made.missing}
    assert {"dvc repro gedit", "dvc repro policies@my_edit"} <= commands
    assert "my_edit has not been trained yet" in made.html
