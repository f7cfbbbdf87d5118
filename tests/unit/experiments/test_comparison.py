"""Runs side by side: what differs is shown, what is equal is not, and axes are common."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from paco_core.experiments import comparison
from paco_core.experiments.compared_runs import Runs, read_samples
from paco_core.experiments.comparison import compare
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
    text = compare(project, [runs[0][:12], "policies/b/smoke/seed0"], project / "out.html")
    (figure,) = [line for line in text.splitlines() if line.startswith("eval/64/consistency")]
    assert figure.split() == ["eval/64/consistency", "0.3", "0.6", "+0.3"]
    assert "eval/… are means over the few pictures of a training's evaluations" in text
    assert "policies.updates_per_epoch" in text and "policies.loss" not in text
    assert re.search(r"reward_merged +1\.dir +2\.dir", text)
    html = (project / "out.html").read_text()
    assert html.count("data:image/") == 4 and "samples seen" in html and "policies/b/smoke/seed0" in html
    assert "http" not in re.sub(r"https?://127\.0\.0\.1:5000/#/[^\"]*", "", html), "the page needs nothing from outside"


def test_pictures_meet_at_equal_samples_though_their_steps_differ(project: Path, runs: list[str]) -> None:
    store = Runs(project)
    found = [found for run in runs for found in store.find(run)]
    assert comparison.axis(found) == "samples seen"
    rows = comparison.picture_rows(found, store.picture)["unseen_64px"]
    assert [moment for moment, _ in rows] == ["0 samples seen", "288 samples seen"]
    assert all(cell is not None for _, cells in rows for cell in cells)
    (drawn,) = [c for c in comparison.curve_charts(found) if c["title"] == "eval/64/consistency"]
    assert "[0]: 0 at 0, 0.3 at 288; [1]: 0 at 0, 0.6 at 288" in drawn["svg"]


def test_an_interval_stands_with_its_figure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    for name, change in (("t2is/a", 0.2), ("t2is/b", 0.25)):
        with open_run(project, "paco/t2is", name, {}) as tracker:
            ends = {"x.change_low": change - 0.1, "x.change_high": change + 0.1, "x.change_p": 0.01}
            tracker.metrics({"x.change": change, **ends, "y_low": 1.0})
            tracker.metrics({"one.change": change, "one.change_low": math.nan, "one.change_high": math.nan})
    text = compare(project, ["t2is/a", "t2is/b"], project / "out.html")
    (line,) = [line for line in text.splitlines() if line.startswith("x.change")]
    assert re.split(r"  +", line) == ["x.change", "0.2 (0.1 to 0.3)", "0.25 (0.15 to 0.35) +0.05"]
    assert "y_low" in text and "95% interval" in text
    (alone,) = [line for line in text.splitlines() if line.startswith("one.change")]
    assert re.split(r"  +", alone)[:2] == ["one.change", "0.2"], "of a single prompt, whose interval is NaN"
    assert "0.25 (0.15 to 0.35)" in (project / "out.html").read_text()


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
        text = compare(project, order, project / "out.html")
        (line,) = [line for line in text.splitlines() if line.startswith(key)]
        assert "+0.1 (+0.1 to +0.1), 2 missing" in line and line.count("+0.1 (") == 1
        assert f"difference to [{order.index(old)}]" in text
    text = compare(project, [old, new], project / "out.html", baseline=new[:8])
    assert "-0.1 (-0.1 to -0.1), 2 missing" in text and "-0.1 (" in (project / "out.html").read_text()
    answer = compare(project, [old, new], project / "out.html", baseline=new)
    assert answer.figures["baselines"] == [new]
    with pytest.raises(DataError) as error:
        compare(project, [old], project / "out.html", baseline=new)
    assert new in str(error.value)


def test_runs_without_a_common_sample_have_no_difference(
    project: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    runs = [
        logged(
            project, f"t2is/{name}", per_prompt(tmp_path / name / "per_prompt.parquet", {name: 0.5}),
            {"t2is/p.px64.x.after": 0.5},
        )
        for name in "ab"
    ]  # fmt: skip
    text = compare(project, runs, project / "out.html")
    assert [line.split()[1:] for line in text.splitlines() if line.startswith("t2is/p.px64")] == [["0.5", "0.5"]]


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
        shown = table if panels is None else table.assign(panels=panels)
        shown.to_parquet(tmp_path / "tables" / stage / "per_set.parquet")
    found = read_samples(tmp_path)
    assert {name: values.tolist() for name, values in found.items()} == {
        "eval/64/x": pytest.approx([0.3, math.nan], nan_ok=True),
        "policies/eval.64.x.before": [0.1, 0.2],
        "change/64/x": pytest.approx([0.2, math.nan], nan_ok=True),
        "vistory/m.y": [0.5, 0.7],
    }


def test_a_figure_that_a_training_logs_and_its_stage_reports_stands_once(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    with open_run(project, "paco/policies", "policies/a", {}) as tracker:
        tracker.metrics({"eval/64/x": 0.6, "gap/x": 0.1, "ratio": 1.5})
        tracker.metrics({"change/64/x": 0.2, "change/64/x_low": 0.1, "change/64/x_high": 0.3})
        evaluated = {"before": 0.4, "after": 0.6, "change": 0.2, "change_low": 0.1, "change_high": 0.3}
        tracker.metrics({f"policies/eval.64.x.{name}": value for name, value in evaluated.items()})
        tracker.metrics({"policies/gap.x.after": 0.1, "policies/ratio": 1.5, "policies/epochs": 4.0})
    with open_run(project, "paco/policies", "policies/b", {}) as tracker:
        tracker.metrics({"eval/64/x": 0.7, "64/x": 0.8})
    text = compare(project, ["policies/a", "policies/b"], project / "out.html")
    listed = text.split("---\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in listed] == [
        "64/x", "change/64/x", "eval/64/x", "gap/x", "policies/epochs", "policies/eval.64.x.before", "ratio",
    ]  # fmt: skip
    assert "0.2 (0.1 to 0.3)" in listed[1]
    assert "eval.64.x.after" not in (project / "out.html").read_text()


def test_runs_that_are_not_there_or_are_meant_twice(project: Path, runs: list[str]) -> None:
    with pytest.raises(DataError, match=r"no run or experiment is called 'policies/c'.*policies/b/smoke/seed0"):
        compare(project, ["policies/c"], project / "out.html")
    with pytest.raises(DataError, match=r"did you mean 'policies/a/smoke/seed0'\? the latest are: "):
        compare(project, ["policies/a/smok/seed0"], project / "out.html")
    with pytest.raises(DataError, match="named twice"):
        compare(project, [runs[0], "policies/a/smoke/seed0"], project / "out.html")
    with pytest.raises(DataError, match="nor does an id begin with it; the latest are"):
        compare(project, ["0" * 32], project / "out.html")
    assert not (project / "out.html").exists()


def test_names_from_outside_are_escaped(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    with open_run(project, "paco/x", "<script>alert(1)</script>", {}) as tracker:
        tracker.params({"<b>": "<i>"})
    compare(project, [str(tracker.run_id)], project / "out.html")
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
    text = compare(experiments, ["fazed-lich", "pursy-haet"], experiments / "out.html")
    assert "eval/…" not in text, "these runs have no figures of that kind"
    policies, t2is = text.split("\n\n[2] ")
    for table, stage in ((policies, "poli"), (t2is, "t2is")):
        (figure,) = [line.split() for line in table.splitlines() if line.startswith(f"{stage}/score")]
        assert figure == [f"{stage}/score", "1", "2", "+1"]
        (rate,) = [line.split() for line in table.splitlines() if line.startswith("rate")]
        assert rate == ["rate", "0.1", "0.2"], "of a stage that ran twice the last run counts"
    assert "[3] " in t2is and "t2is/score" not in policies
    html = (experiments / "out.html").read_text()
    assert html.count("(fazed-lich)") >= 2 and "t2is/smoke (pursy-haet)" in html


@pytest.mark.slow
def test_one_stage_of_an_experiment_meets_a_run_of_no_experiment(experiments: Path) -> None:
    found = Runs(experiments).find("policies@x/smoke")
    assert [run.title for run in found] == ["policies@x/smoke"], "the last of that name"
    text = compare(experiments, ["pursy-haet:policies@x", found[0].run_id], experiments / "out.html")
    (rate,) = [line.split() for line in text.splitlines() if line.startswith("rate")]
    assert rate == ["rate", "0.2", "0.3"] and "t2is" not in text
    with pytest.raises(DataError, match="no run or experiment is called 'pursy-haet:gedit'"):
        Runs(experiments).find("pursy-haet:gedit")


def test_a_store_that_does_not_answer_is_named(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    with pytest.raises(DataError, match=r"MLflow at http://127\.0\.0\.1:9 does not answer"):
        compare(project, ["x"], project / "out.html")
