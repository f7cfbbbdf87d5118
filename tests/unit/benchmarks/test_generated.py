"""Images before and after training: unseen prompts, equal noise, paired changes, honest checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from paco_core.benchmarks import checks
from paco_core.benchmarks.generated import PanelDiversity, measure_sets
from paco_core.benchmarks.paired_changes import compare_changes, with_layouts
from paco_core.benchmarks.unseen_prompts import unseen_prompts
from paco_core.config.params import LoraParams, load
from paco_core.io.files import DataError, write_json
from paco_core.policies.flux import FluxPolicy
from paco_core.rewards.base import RewardBatch
from paco_core.sampling import generation
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.storybook.prompts import storybook_prompts
from tests.support import REPOSITORY
from tests.support.fixture_project import records_of
from tests.support.tiny import TEXT_LENGTH, tiny_flux


def test_unseen_prompts_share_neither_id_nor_theme_with_training() -> None:
    records = records_of(storybook_prompts(30, seed=0))
    twin = records[0].model_copy(update={"idx": "twin"})
    trained = {record.idx for record in records[:20]}
    unseen = unseen_prompts([*records, twin], trained, 8, seed=0)
    assert len(unseen) == 8 and not trained & {r.idx for r in unseen} and twin not in unseen
    assert unseen == unseen_prompts([*reversed(records), twin], trained, 8, seed=0)
    with pytest.raises(DataError):
        unseen_prompts(records, {r.idx for r in records}, 8, seed=0)


def test_before_and_after_differ_by_the_adapter_alone(tmp_path: Path) -> None:
    policy_folder = tiny_flux(tmp_path / "flux")
    trained = FluxPolicy.load(str(policy_folder), "cpu", "float32")
    trained.add_adapter(LoraParams(rank=2, alpha=4, targets=["to_q", "to_v"]), seed=0)
    records = records_of(storybook_prompts(2, seed=0))
    changes = {"eval_sizes": [32, 64], "max_sequence_length": TEXT_LENGTH}
    recipe = load(REPOSITORY / "params.yaml").policies.recipes["flux_t2is"].model_copy(update=changes)

    def paint() -> dict[tuple[str, int, str, int], bytes]:
        fresh = FluxPolicy.load(str(policy_folder), "cpu", "float32")
        images = generation.generate_before_and_after(
            fresh, "p", recipe, tmp_path / "adapter", records, seeds=[0, 1], steps=2
        )
        return {(p.when, p.size, p.record.idx, p.seed): p.image.tobytes() for p in images}

    with pytest.raises(DataError, match="policies@p"):
        paint()
    trained.save_adapter(tmp_path / "adapter")  # untouched: its second factor is zero
    untrained = paint()
    assert len(untrained) == 2 * 2 * 2 * 2 and len(set(untrained.values())) == 8
    assert all(untrained[(BEFORE, *key[1:])] == pixels for key, pixels in untrained.items())
    with torch.no_grad():
        for parameter in trained.trainable().values():
            parameter.add_(0.5)
    (tmp_path / "adapter").rename(tmp_path / "old")
    trained.save_adapter(tmp_path / "adapter")
    changed = paint()
    for key, pixels in changed.items():
        assert (pixels == untrained[key]) == (key[0] == BEFORE)


OPTIONS: Any = {"seeds": [0, 1], "steps": 4, "resamples": 100}


def painted_table(change: float) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    ease = rng.normal(0.5, 0.2, size=(12, 2))
    rows = [
        {"policy": "p", "size": size, "when": phase, "prompt_id": f"q{n}", "seed": seed}
        | {"gold_consistency": ease[n, seed] + (change if phase == AFTER else 0.0)}
        | {"gold_following": 0.7 - (0.02 if phase == AFTER else 0.0)}
        for size in (64, 128)
        for phase in (BEFORE, AFTER)
        for n in range(12)
        for seed in (0, 1)
    ]
    return pd.DataFrame(rows)


def test_changes_are_paired_picture_by_picture() -> None:
    result = compare_changes(painted_table(0.2), **OPTIONS)
    figures = result.metrics()
    key = "p.px64.gold_consistency.change"
    assert figures[key] == pytest.approx(0.2)
    assert figures[f"{key}_low"] == pytest.approx(0.2) == figures[f"{key}_high"]
    shuffled = painted_table(0.2).sample(frac=1.0, random_state=0)
    assert compare_changes(shuffled, **OPTIONS).metrics() == pytest.approx(figures)
    assert result.as_dict()["policies"]["p"]["128"]["gold_following"]["change"]["mean"] == pytest.approx(-0.02)


def test_prompts_of_several_layouts_have_figures_of_each() -> None:
    table, wide = painted_table(0.0), {f"q{n}" for n in range(4)}
    table.loc[(table["when"] == AFTER) & table["prompt_id"].isin(wide), "gold_consistency"] += 0.3
    overall = compare_changes(table, **OPTIONS)
    layouts = {f"q{n}": "1x3" if f"q{n}" in wide else "2x2" for n in range(12)}
    by_layout = with_layouts(overall, table, layouts, **OPTIONS)
    figures = by_layout.metrics()
    assert figures["p.px64.gold_consistency.change"] == pytest.approx(0.1)
    assert figures["p.px64.gold_consistency.1x3.change"] == pytest.approx(0.3)
    assert figures["p.px64.gold_consistency.2x2.change"] == pytest.approx(0.0)
    assert {name: figures[name] for name in overall.metrics()} == pytest.approx(overall.metrics(), nan_ok=True)
    tree = by_layout.as_dict()["layouts"]
    assert {layout: part["prompts"] for layout, part in tree.items()} == {"1x3": 4, "2x2": 8}
    single_layout = with_layouts(overall, table, dict.fromkeys(layouts, "2x2"), **OPTIONS)
    assert single_layout == overall and "layouts" not in single_layout.as_dict()


def test_each_layout_is_painted_with_panels_of_one_size(tmp_path: Path) -> None:
    mixed = [records_of(storybook_prompts(1, seed=0, layout=layout))[0] for layout in ("2x2", "1x3")]
    mixed[1] = mixed[1].model_copy(update={"width": 192})  # square panels
    changes = {"eval_sizes": [32], "max_sequence_length": TEXT_LENGTH}
    recipe = load(REPOSITORY / "params.yaml").policies.recipes["flux_t2is"].model_copy(update=changes)
    policy = FluxPolicy.load(str(tiny_flux(tmp_path)), "cpu", "float32")
    images = generation.generate_sizes(policy, "p", recipe, mixed, when=BEFORE, seeds=[0], steps=2)
    assert {(p.record.layout, p.image.size, len(p.panels)) for p in images} == {
        ("2x2", (32, 32), 4),
        ("1x3", (48, 16), 3),
    }


def test_a_picture_without_its_partner_is_an_error() -> None:
    table = painted_table(0.1)
    for rows in (table.iloc[:-1], table[table["when"] == BEFORE]):
        with pytest.raises(ValueError):
            compare_changes(rows, **OPTIONS)


def test_measures_see_the_panels_of_each_picture() -> None:
    record = records_of(storybook_prompts(1, seed=0))[0]
    plain, mixed = Image.new("RGB", (8, 8), "white"), Image.new("RGB", (8, 8), "white")
    mixed.paste((0, 0, 0), (0, 0, 4, 4))
    images = [GeneratedImage("p", 8, BEFORE, record, seed, image) for seed, image in enumerate((plain, mixed))]
    table = measure_sets(images, [PanelDiversity()])
    assert table["panel_diversity"].tolist() == [0.0, 0.5]  # 3 of 6 pairs are black against white
    assert PanelDiversity()(RewardBatch([record], [images[0].panels])).tolist() == [0.0]


def test_checks_pass_and_fail_with_the_figures(tmp_path: Path) -> None:
    path = tmp_path / "t2is.json"
    write_json(path, compare_changes(painted_table(0.2), **OPTIONS).metrics())
    assert checks.policy_gains_consistency(path, "p", 64, 64).passed
    assert checks.policy_still_follows_prompts(path, "p", 64).passed
    write_json(path, compare_changes(painted_table(0.1), **OPTIONS).metrics())
    assert not checks.policy_gains_consistency(path, "p", 64, 64).passed
    assert checks.policy_gains_consistency(path, "p", 64, 128).passed
    assert not checks.policy_gains_consistency(path, "p", 64, 256).passed


@pytest.mark.parametrize(
    ("gain", "low", "passed"), [(0.2, 0.1, True), (0.2, -0.1, False), (0.05, 0.01, False), (None, None, False)]
)
def test_ranking_check(tmp_path: Path, gain: float | None, low: float | None, passed: bool) -> None:
    figures = {
        "instances": 9, "base.accuracy": 0.3, "reward.accuracy": 0.5, "reward.unscorable_share": 0.0,
        "reward_minus_base.accuracy": gain, "reward_minus_base.accuracy_low": low,
    }  # fmt: skip
    write_json(tmp_path / "m.json", figures)
    assert checks.reward_ranks_better_than_base(tmp_path / "m.json").passed is passed
    assert checks.every_ranking_was_scored(tmp_path / "m.json").passed
    write_json(tmp_path / "m.json", figures | {"base.unscorable_share": 0.25})
    assert not checks.every_ranking_was_scored(tmp_path / "m.json").passed
