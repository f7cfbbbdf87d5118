"""Runs side by side: what differs is shown, what is equal is not, and axes are common."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from paco_core.experiments.compared_runs import read_samples, with_summary
from paco_core.experiments.comparison import compare_runs
from paco_core.io.files import DataError, write_json
from paco_core.runtime.tracking import open_run


@pytest.fixture
def runs(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two trainings of one family: the second takes twice the updates for the same samples."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    ids = []
    for name, updates, colour in (("policies/a/smoke/seed0", 1, "red"), ("policies/b/smoke/seed0", 2, "blue")):
        with open_run(project, "paco/policies/flux", name, {"git.commit": "c" * 40}) as tracker:
            tracker.params({"policies": {"updates_per_epoch": updates, "loss": "ppo"}})
            tracker.dataset("reward_merged", "data/reward_merged", f"{updates}.dir")
            for epoch in range(4):
                tracker.metrics(
                    {"eval/64/consistency": 0.1 * epoch * updates, "samples_seen": epoch * 96}, epoch * updates
                )
                if epoch in (0, 3):
                    tracker.image(Image.new("RGB", (16, 16), colour), "unseen_64px", epoch * updates)
            ids.append(str(tracker.run_id))
    return ids


def test_table_and_page(project: Path, runs: list[str]) -> None:
    text = compare_runs(project, [runs[0][:12], "policies/b/smoke/seed0"], project / "out.html")
    (figure,) = [line for line in text.splitlines() if line.startswith("eval/64/consistency")]
    assert figure.split() == ["eval/64/consistency", "0.3", "0.6", "+0.3"]
    assert "policies.updates_per_epoch" in text and "policies.loss" not in text
    assert re.search(r"reward_merged +1\.dir +2\.dir", text)
    html = (project / "out.html").read_text()
    assert html.count("data:image/") == 4 and "samples seen" in html and "policies/b/smoke/seed0" in html
    assert "http" not in re.sub(r"https?://127\.0\.0\.1:5000/#/[^\"]*", "", html), "the page needs nothing from outside"


def test_an_interval_stands_with_its_figure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    for name, change in (("t2is/a", 0.2), ("t2is/b", 0.25)):
        with open_run(project, "paco/t2is", name, {}) as tracker:
            ends = {"x.change_low": change - 0.1, "x.change_high": change + 0.1, "x.change_p": 0.01}
            tracker.metrics({"x.change": change, **ends, "y_low": 1.0})
            tracker.metrics({"one.change": change, "one.change_low": math.nan, "one.change_high": math.nan})
    text = compare_runs(project, ["t2is/a", "t2is/b"], project / "out.html")
    (line,) = [line for line in text.splitlines() if line.startswith("x.change")]
    assert re.split(r"  +", line) == ["x.change", "0.2 (0.1 to 0.3)", "0.25 (0.15 to 0.35) +0.05"]
    assert "y_low" in text
    (change_line,) = [line for line in text.splitlines() if line.startswith("one.change")]
    assert re.split(r"  +", change_line)[:2] == ["one.change", "0.2"], "of a single prompt, whose interval is NaN"


def logged(project: Path, name: str, tables: Path, metrics: dict[str, float]) -> str:
    with open_run(project, f"paco/{name}", name, {}) as tracker:
        tracker.metrics(metrics)
        tracker.artifact(tables, f"tables/{name.partition('/')[0]}")
    return str(tracker.run_id)


def per_prompt(file: Path, scores: dict[str, float]) -> Path:
    """What t2is measured after training: one image of each prompt."""
    rows = [{"prompt_id": idx, "x": score} for idx, score in scores.items()]
    table = pd.DataFrame(rows).assign(policy="p", size=64, seed=0, when="after")
    file.parent.mkdir(parents=True)
    table.to_parquet(file)
    return file


def test_a_difference_is_to_the_oldest_run_over_the_samples_that_both_have(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    first = {f"p{n}": 0.1 * n for n in range(8)}
    second = {idx: score + 0.1 for idx, score in first.items()} | {"p7": math.nan, "p8": 0.0}  # p7 failed, p8 is new
    key = "t2is/p.px64.x.after"
    old, new = (
        logged(project, f"t2is/{name}", per_prompt(tmp_path / name / "per_prompt.parquet", scores), {key: mean})
        for name, scores, mean in (("a", first, 0.35), ("b", second, 0.4))
    )
    for order in ([old, new], [new, old]):
        text = compare_runs(project, order, project / "out.html")
        (line,) = [line for line in text.splitlines() if line.startswith(key)]
        assert "+0.1 (+0.1 to +0.1), 2 missing" in line and line.count("+0.1 (") == 1
        assert f"difference to [{order.index(old)}]" in text
    text = compare_runs(project, [old, new], project / "out.html", baseline=new[:8])
    assert "-0.1 (-0.1 to -0.1), 2 missing" in text and text.figures["baselines"] == [new]
    with pytest.raises(DataError, match=new):
        compare_runs(project, [old], project / "out.html", baseline=new)
    apart = logged(project, "t2is/c", per_prompt(tmp_path / "c/per_prompt.parquet", {"q": 0.5}), {key: 0.5})
    text = compare_runs(project, [old, apart], project / "out.html")
    assert [line.split()[1:] for line in text.splitlines() if line.startswith(key)] == [["0.35", "0.5"]]


def test_scores_of_a_training_and_of_a_benchmark_have_the_names_of_their_metrics(tmp_path: Path) -> None:
    scores = {
        "prompts": ["a", "b"],
        "seeds": [0],
        "before": {"64/x": [[0.1], [0.2]]},
        "after": {"64/x": [[0.3], [None]]},
    }
    write_json(tmp_path / "evaluation.json", scores)
    table = pd.DataFrame({"method": ["m", "m"], "prompt_id": ["a", "b"], "seed": [0, 0], "y": [0.5, 0.7]})
    for stage, panels in (("vistory", None), ("t2is_bench", [2, 7])):
        (tmp_path / "tables" / stage).mkdir(parents=True)
        stage_table = table if panels is None else table.assign(panels=panels)
        stage_table.to_parquet(tmp_path / "tables" / stage / "per_set.parquet")
    samples = read_samples(tmp_path)
    assert {name: values.tolist() for name, values in samples.items()} == {
        "eval/64/x": pytest.approx([0.3, math.nan], nan_ok=True),
        "policies/eval.64.x.before": [0.1, 0.2],
        "change/64/x": pytest.approx([0.2, math.nan], nan_ok=True),
        "vistory/m.y": [0.5, 0.7],
    }


def test_scores_have_the_names_of_the_summary_metrics_too(tmp_path: Path) -> None:
    scores = {"eval/64/x": pd.Series([0.25, 0.5])}
    tags = {"paco.summary": '{"Summary/goal": "eval/64/x", "Summary/drift": "eval/64/drift"}'}
    assert with_summary(scores, tags).keys() == {"eval/64/x", "Summary/goal"}
    assert with_summary(scores, {}) == scores
    with pytest.raises(DataError, match=r"paco\.summary"):
        with_summary(scores, {"paco.summary": "{"})


def test_runs_that_are_not_there_are_meant_twice_or_have_names_from_outside(project: Path, runs: list[str]) -> None:
    for names in (["policies/c"], [runs[0], "policies/a/smoke/seed0"], ["0" * 32]):
        with pytest.raises(DataError):
            compare_runs(project, names, project / "out.html")
    assert not (project / "out.html").exists()
    with open_run(project, "paco/x", "<script>alert(1)</script>", {}) as tracker:
        tracker.params({"<b>": "<i>"})
    compare_runs(project, [str(tracker.run_id)], project / "out.html")
    assert "<script>" not in (project / "out.html").read_text()


@pytest.fixture
def experiments(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two experiments of DVC: each trained a policy and measured it, the first one trained twice."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    monkeypatch.setenv("DVC_EXP_BASELINE_REV", "b" * 40)
    for name, rate, stages in (
        ("fazed-lich", 0.1, ("policies@x", "policies@x", "t2is")),
        ("pursy-haet", 0.2, ("policies@x", "t2is")),
    ):
        monkeypatch.setenv("DVC_EXP_NAME", name)
        for stage in stages:
            with open_run(project, f"paco/{stage[:4]}", f"{stage}/smoke", {"dvc.stage": stage}) as tracker:
                tracker.params({"rate": rate})
                tracker.metrics({f"{stage[:4]}/score": rate * 10})
    monkeypatch.delenv("DVC_EXP_NAME")
    with open_run(project, "paco/poli", "policies@x/smoke", {"dvc.stage": "policies@x"}) as tracker:
        tracker.params({"rate": 0.3})
    return project


@pytest.mark.slow
def test_experiments_are_compared_stage_by_stage(experiments: Path) -> None:
    text = compare_runs(experiments, ["fazed-lich", "pursy-haet"], experiments / "out.html")
    policies, t2is = text.split("\n\n[2] ")
    for table, stage in ((policies, "poli"), (t2is, "t2is")):
        (figure,) = [line.split() for line in table.splitlines() if line.startswith(f"{stage}/score")]
        assert figure == [f"{stage}/score", "1", "2", "+1"]
        (rate,) = [line.split() for line in table.splitlines() if line.startswith("rate")]
        assert rate == ["rate", "0.1", "0.2"], "of a stage that ran twice the last run counts"
    assert "[3] " in t2is and "t2is/score" not in policies
