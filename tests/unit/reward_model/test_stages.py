"""The two reward stages on a miniature project: real shards, real tables, a random-weight base."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.benchmarks.published import MMRB2_PAPER
from paco_core.benchmarks.tables import read_tables
from paco_core.cli.score import ScoreOptions, score_pictures
from paco_core.config.params_benchmarks import OWN_JUDGES
from paco_core.data.pairs.characters import NEGATIVES
from paco_core.exchange.mmrb2 import import_mmrb2
from paco_core.io import paths
from paco_core.io.files import write_jsonl
from paco_core.report import judges
from paco_core.report.html import Figures
from paco_core.reward_model.checks import merged_equals_adapter, reward_beats_base
from paco_core.reward_model.golden import read_golden
from paco_core.reward_model.instructions import TEMPLATES
from paco_core.reward_model.scorer import Scorer
from paco_core.runtime.context import open_stage
from paco_core.stages import run_stage, stage_file
from paco_core.stages.consistency_rank import STAGE
from paco_core.storybook.drawn_cases import unlabelled_pairs
from tests.support import tiny_vlm
from tests.support.mmrb2_data import mmrb2_pair, write_mmrb2
from tests.support.reward_project import fill, fill_benchmark, fill_characters
from tests.support.small_profiles import use

pytestmark = pytest.mark.slow


def test_the_reward_is_trained_merged_and_scored(project: Path) -> None:
    fill(project)
    lora, merged = run("reward_lora", project), run("reward_merged", project)
    assert lora["true_yes"] + lora["false_yes"] + lora["true_no"] + lora["false_no"] == 4
    assert {"base.accuracy", "calibration_error", "best_epoch", "position_bias", "identical_score"} <= lora.keys()
    assert lora["pairs"] == 4
    config = json.loads((project / paths.REWARD_LORA / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/zoo/qwen2_5_vl"  # no path of this machine
    assert merged["margin.worst"] <= merged["margin.worst_allowed"] < 1e-3

    folder = project / paths.REWARD_MERGED
    golden = read_golden(folder)
    scores = Scorer(folder).score([pair.query for pair in golden])
    assert len(golden) == 4 and {pair.query.instruction for pair in golden} == {TEMPLATES["plain"]}
    assert all(abs(score.value - pair.score) < 1e-5 for score, pair in zip(scores, golden, strict=True))

    first, second = (folder / "golden" / f"0-{side}.png" for side in ("first", "second"))
    text = score_pictures(project, [first, second], ScoreOptions(reasons=True))  # as it was asked
    assert abs(float(text.splitlines()[0]) - golden[0].score) < 1e-4


def set_reward(project: Path, **values: object) -> None:
    """Change keys of the section ``reward`` in params.yaml."""
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["reward"].update(values)
    (project / "params.yaml").write_text(yaml.safe_dump(tree))


def run(stage: str, project: Path) -> dict[str, float]:
    with open_stage(stage, None, project) as ctx:
        stage_file(stage).run(ctx)
    return json.loads((project / paths.metrics_file(stage)).read_text())


def test_published_weights_enter_in_the_place_of_training(project: Path) -> None:
    fill(project)
    trained = run("reward_lora", project)
    run("reward_merged", project)
    by_training = Scorer(project / paths.REWARD_MERGED)
    queries = [pair.query for pair in read_golden(project / paths.REWARD_MERGED)]
    expected = by_training.first_logits(queries)
    shutil.copytree(project / paths.REWARD_LORA / "adapter", project / "adapter")
    shutil.copytree(project / paths.REWARD_MERGED, project / "merged")

    for source in ("adapter", "merged"):
        set_reward(project, source=source, weights=source)
        context = run("reward_lora", project)
        assert context["steps"] == 0 and context["accuracy"] == trained["accuracy"]
        assert abs(context["calibration_error"] - trained["calibration_error"]) < 1e-5
        assert (project / paths.REWARD_LORA / "adapter").is_dir() == (source == "adapter")
        merged = run("reward_merged", project)
        assert merged["margin.worst"] <= merged["margin.worst_allowed"] < 1e-3
        logits = Scorer(project / paths.REWARD_MERGED).first_logits(queries)
        assert float((logits - expected).abs().max()) < 1e-4


def test_both_benchmarks_write_their_tables(project: Path) -> None:
    fill(project)
    fill_benchmark(project)
    shutil.copytree(project / "data" / "zoo" / "qwen2_5_vl", project / paths.REWARD_MERGED)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    rows = [{"reference": f"grid0#{a}", "candidate": f"grid1#{b}", "score": a + b} for a in range(4) for b in range(4)]
    write_jsonl(project / "data" / "closed.jsonl", rows)
    tree["consistency_rank"].update(clip=None, bootstrap=50, scored_elsewhere={"closed": "data/closed.jsonl"})
    tree["edit_reward"].update(clip=None, bootstrap=50, count=18)
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    for name in ("consistency_rank", "edit_reward"):
        figures = run(name, project)
        difference = "accuracy" if name == "consistency_rank" else "overall"
        assert figures[f"reward_minus_base.{difference}"] == 0.0, "both are the same model here"
        assert figures[f"reward_minus_random.{difference}_low"] is not None
        for file in ("results.md", "results.html", "results.json"):
            assert (project / "data" / name / file).is_file()
        assert "(published)" in (project / "data" / name / "results.md").read_text()
    figures = json.loads((project / paths.metrics_file("consistency_rank")).read_text())
    assert {"closed.tau", "reward_minus_closed.accuracy"} <= figures.keys()
    judges = {key.removesuffix(".tau") for key in figures if key.endswith(".tau") and "_minus_" not in key}
    assert judges - {"closed"} == set(OWN_JUDGES) - {"clip_i"}, "a table of scores can take the name of none"


def test_the_edits_of_mmrb2_are_measured_in_one_dimension(project: Path) -> None:
    """CLIP reads no instruction, so it has no row; the published rows are those of MMRB2."""
    fill(project)
    source = write_mmrb2(project / "mmrb2", [mmrb2_pair(number) for number in range(7)])
    import_mmrb2(source, project / "data/external/mmrb2")
    shutil.copytree(project / "data" / "zoo" / "qwen2_5_vl", project / paths.REWARD_MERGED)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["edit_reward"].update(source="data/external/mmrb2", bootstrap=50)
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    figures = run("edit_reward", project)
    assert figures["cases"] == 7 and figures["reward_minus_base.overall"] == 0.0
    assert not any("consistency" in name or "clip_i" in name for name in figures)
    assert [table.title for table in read_tables(project / paths.EDIT_REWARD)][:2] == ["MMRB2", "MMRB2, published"]
    results = json.loads((project / paths.EDIT_REWARD / "results.json").read_text())
    assert results["benchmark"] == "MMRB2" and {row["source"] for row in results["published"]} == {MMRB2_PAPER}
    report = judges.edits(project, Figures())
    assert isinstance(report, judges.Benchmark) and list(report.dimensions) == ["overall"] and len(report.published) > 5


@pytest.mark.parametrize("is_ranked", [True, False])
def test_held_out_characters_get_a_table_with_or_without_rankings(project: Path, is_ranked: bool) -> None:
    fill(project)
    fill_benchmark(project, 6 if is_ranked else 0)
    fill_characters(project)
    shutil.copytree(project / "data" / "zoo" / "qwen2_5_vl", project / paths.REWARD_MERGED)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["consistency_rank"].update(clip=None, bootstrap=50)
    tree["pairs"]["characters"]["count"] = 30
    (project / "params.yaml").write_text(yaml.safe_dump(tree))
    figures = run("consistency_rank", project)
    assert figures["characters.copy.all.reward"] == figures["characters.copy.all.base"], "both are the same model here"
    assert figures["characters.absent.1.reward_minus_base"] == 0.0
    assert ("reward.accuracy" in figures) == is_ranked
    titles = [table.title for table in read_tables(project / paths.CONSISTENCY_RANK)]
    assert titles[-1] == "Characters" and ("ConsistencyRank" in titles) == is_ranked
    results = json.loads((project / paths.CONSISTENCY_RANK / "results.json").read_text())
    assert {(row["kind"], row["references"]) for row in results["characters"]} == {
        (kind, references) for kind in NEGATIVES for references in ("1", "2", "all")
    }
    assert STAGE.preview is not None and bool(STAGE.preview(project / "data", "")) == is_ranked


BASE = "data/zoo/qwen2_5_vl"
BEFORE = ["prompts", "diverse_prompts", "grids", "rankings", "annotations", "edit_prompts", "edits", "pairs"]
BEFORE += ["cot_labels"]
SMALL: Mapping[str, Any] = {
    "execution": {"threads": 1},
    "edits": {"device": "cpu", "dtype": "float32"},
    "reward": {
        "base": BASE, "device": "cpu", "dtype": "float32", "max_pixels": 3136, "batch_size": 4, "accumulation": 1,
        "epochs": 1, "lora": {"rank": 4, "alpha": 8}, "gradient_checkpointing": False,
    },
}  # fmt: skip


def test_published_weights_need_no_pair(project: Path) -> None:
    """Nothing is validated then, which the figures say by their absence; the golden pairs are drawn."""
    use(project, "published", SMALL, {"prompts": {"engine": "none"}, "reward": {"weights": BASE}})
    tiny_vlm.build(project / BASE)
    for stage in BEFORE:
        run_stage(stage, "0" if stage == "grids" else None, project)
    trained, merged = run("reward_lora", project), run("reward_merged", project)
    assert trained == {"steps": 0.0}
    report = reward_beats_base(project / paths.metrics_file("reward_lora"))
    assert report.passed and "not validated" in report.description
    assert merged["drawn_pairs"] == 8 and "pairs" not in merged
    report = merged_equals_adapter(project / paths.metrics_file("reward_merged"))
    assert report.passed and "over 8 drawn pairs" in report.description
    golden = read_golden(project / paths.REWARD_MERGED)
    scores = Scorer(project / BASE, min_pixels=3136, max_pixels=3136).score([pair.query for pair in golden])
    assert [score.value for score in scores] == pytest.approx([pair.score for pair in golden], abs=1e-5)


def test_drawn_pairs_are_the_same_every_time_and_differ_among_themselves() -> None:
    first, second = unlabelled_pairs(4, 32), unlabelled_pairs(4, 32)
    assert [(a.tobytes(), b.tobytes(), theme) for a, b, theme in first] == [
        (a.tobytes(), b.tobytes(), theme) for a, b, theme in second
    ]
    assert len({a.tobytes() for a, _, _ in first}) == 4 and all(a.size == b.size == (32, 32) for a, b, _ in first)
