"""The two reward stages on a miniature project: real shards, real tables, a random-weight base."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml

from dvc_project.project import stages_of
from paco_core.cli.score import ScoreOptions, score_pictures
from paco_core.config.params import ParamsError
from paco_core.config.params_benchmarks import OWN_JUDGES
from paco_core.io import paths
from paco_core.io.files import DataError, write_jsonl
from paco_core.reward_model.golden import read_golden
from paco_core.reward_model.instructions import TEMPLATES
from paco_core.reward_model.scorer import Scorer
from paco_core.runtime.context import open_stage
from paco_core.stages import consistency_rank, edit_reward, reward_lora, reward_merged
from tests.support.reward_project import fill, fill_benchmark

pytestmark = pytest.mark.slow


def test_the_reward_is_trained_merged_and_scored(project: Path) -> None:
    fill(project)
    with open_stage("reward_lora", None, project) as ctx:
        reward_lora.run(ctx)
    with open_stage("reward_merged", None, project) as ctx:
        reward_merged.run(ctx)

    lora = json.loads((project / paths.metrics_file("reward_lora")).read_text())
    assert lora["true_yes"] + lora["false_yes"] + lora["true_no"] + lora["false_no"] == 4
    assert {
        "accuracy",
        "calibration_error",
        "best_epoch",
        "roc_auc",
        "base.accuracy",
        "position_bias",
        "identical_score",
        "steps",
    } <= lora.keys()
    assert lora["pairs"] == 4
    config = json.loads((project / paths.REWARD_LORA / "adapter" / "adapter_config.json").read_text())
    assert config["base_model_name_or_path"] == "data/zoo/qwen2_5_vl"  # no path of this machine
    merged = json.loads((project / paths.metrics_file("reward_merged")).read_text())
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
        {"reward_lora": reward_lora, "reward_merged": reward_merged}[stage].run(ctx)
    return json.loads((project / paths.metrics_file(stage)).read_text())


def older_names(adapter: Path, target: Path) -> None:
    """The adapter as transformers 4 named its places."""
    from safetensors.torch import load_file, save_file

    target.mkdir()
    tensors = load_file(adapter / "adapter_model.safetensors")
    older = {name.replace("model.language_model.layers", "model.layers"): value for name, value in tensors.items()}
    assert older.keys() != tensors.keys()
    save_file(older, target / "adapter_model.safetensors")
    config = json.loads((adapter / "adapter_config.json").read_text())
    config["target_modules"] = config["target_modules"].replace(r"language_model\.", r"layers\.")
    (target / "adapter_config.json").write_text(json.dumps(config))


def test_published_weights_enter_in_the_place_of_training(project: Path) -> None:
    fill(project)
    trained = run("reward_lora", project)
    run("reward_merged", project)
    by_training = Scorer(project / paths.REWARD_MERGED)
    queries = [pair.query for pair in read_golden(project / paths.REWARD_MERGED)]
    expected = by_training.first_logits(queries)
    older_names(project / paths.REWARD_LORA / "adapter", project / "old-adapter")
    shutil.copytree(project / paths.REWARD_MERGED, project / "given")

    for source, weights in (("adapter", "old-adapter"), ("merged", "given")):
        set_reward(project, source=source, weights=weights)
        found = run("reward_lora", project)
        assert found["steps"] == 0 and found["accuracy"] == trained["accuracy"]
        assert abs(found["calibration_error"] - trained["calibration_error"]) < 1e-5
        assert (project / paths.REWARD_LORA / "adapter").is_dir() == (source == "adapter")
        merged = run("reward_merged", project)
        assert merged["margin.worst"] <= merged["margin.worst_allowed"] < 1e-3
        logits = Scorer(project / paths.REWARD_MERGED).first_logits(queries)
        assert float((logits - expected).abs().max()) < 1e-4


def test_published_weights_that_are_none_are_named(project: Path) -> None:
    fill(project)
    (project / "empty").mkdir()
    set_reward(project, source="adapter", weights="empty")
    with pytest.raises(DataError, match=r"reward.weights 'empty': no adapter there \(adapter_config.json is missing"):
        run("reward_lora", project)
    set_reward(project, source="merged", weights="data/none")
    with pytest.raises(DataError, match="reward.weights 'data/none': no such folder"):
        run("reward_lora", project)
    set_reward(project, source="merged", weights=None)
    with pytest.raises(ParamsError, match="needs weights, a folder or hub id"):
        run("reward_lora", project)


def test_the_most_wrong_pairs_and_the_confusion_table_are_in_the_tracked_run(project: Path) -> None:
    import mlflow

    from paco_core.runtime.tracking import send_left_over, tracking_uri

    fill(project)
    found = run("reward_lora", project)
    send_left_over(project, 120.0)  # what a slow machine could not send while the stage was open
    client = mlflow.MlflowClient(tracking_uri(project))
    experiment = client.get_experiment_by_name("paco/reward_lora")
    assert experiment.tags["mlflow.experimentKind"] == "custom_model_development", "MLflow's pages for trainings"
    assert experiment.tags["mlflow.note.content"] == stages_of(project)["reward_lora"].desc != ""
    tracked = client.search_runs([experiment.experiment_id])[0]
    artifacts = [a.path for a in client.list_artifacts(tracked.info.run_id, "images")]
    wrong = found["false_yes"] + found["false_no"]
    pictures = [path for path in artifacts if path.endswith(".png")]
    assert len([path for path in pictures if "most_wrong_pairs" not in path]) == wrong > 0
    assert len([path for path in pictures if "most_wrong_pairs" in path]) == 1
    table = client.list_artifacts(tracked.info.run_id, "validation")
    assert [a.path for a in table] == ["validation/confusion.md"]
    curve = client.get_metric_history(tracked.info.run_id, "validation/roc_auc")
    assert [point.step for point in curve] == [0, 1, 2]


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
    for name, stage in (("consistency_rank", consistency_rank), ("edit_reward", edit_reward)):
        with open_stage(name, None, project) as ctx:
            stage.run(ctx)
        figures = json.loads((project / paths.metrics_file(name)).read_text())
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
