"""Headline metrics: few rows in a fixed order, and a table that fits a terminal of 80 columns."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pandas as pd
import pytest

from paco_core.cli.tour import tour
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.io import paths
from paco_core.io.answer import to_jsonable
from paco_core.io.files import DataError, write_json
from paco_core.models.metric_meanings import CHARACTER_METRICS, METRICS
from paco_core.operations.benchmark_result import result_section
from paco_core.report.headline import MOST_ROWS, headline, headline_metrics, headline_table
from paco_core.report.policies import EDITORS, PAINTERS

RANK = "consistency_rank"


@pytest.fixture
def params(repository: Path) -> Params:
    return load(repository / "params.yaml")


def figures_of(params: Params) -> dict[str, float | int | None]:
    """Numbers of a report in which each metric of each policy rose from 0.25 to 0.5."""
    ends = {"before.mean": 0.25, "after.mean": 0.5, "change.mean": 0.25, "change.low": 0.125, "change.high": 0.375}
    figures: dict[str, float | int | None] = {
        f"{RANK}.methods.base.metrics.accuracy.mean": 0.5,
        f"{RANK}.methods.reward.metrics.accuracy.mean": 0.75,
        f"{RANK}.comparisons.reward - base.accuracy.mean": 0.25,
    }
    for recipe_name, recipe in params.policies.recipes.items():
        for kind in (PAINTERS, EDITORS):
            for metric in (name for name in kind.measures if name not in CHARACTER_METRICS):
                key = f"{kind.stage}.policies.{recipe_name}.{max(recipe.eval_sizes)}.{metric}"
                figures |= {f"{key}.{end}": value for end, value in ends.items()}
    return figures


def test_rows_are_the_reward_model_then_the_recipes(params: Params, tmp_path: Path) -> None:
    rows = headline(tmp_path, params, figures_of(params))
    assert [(row.model, row.metric) for row in rows] == [
        ("reward", "accuracy"),
        ("flux_t2is", "gold_consistency"), ("flux_t2is", "gold_following"), ("flux_t2is", "clip_t"),
        ("kontext_edit", "gold_editing"), ("kontext_edit", "gold_kept"),
        ("qwen_edit", "gold_editing"), ("qwen_edit", "gold_kept"),
    ]  # fmt: skip
    assert headline_metrics(rows)["flux_t2is.consistency"] == 0.5


def test_the_documented_columns_of_dvc_exp_show_are_the_headline_metrics(
    repository: Path, params: Params, tmp_path: Path
) -> None:
    page = (repository / "docs/how-to/operate.md").read_text()
    (command,) = (line for line in page.splitlines() if line.startswith("dvc exp show"))
    words = shlex.split(command)
    dropped, protected = (re.compile(words[words.index(option) + 1]) for option in ("--drop", "--keep"))
    metrics = list(headline_metrics(headline(tmp_path, params, figures_of(params))))
    unlisted = [
        "flux_t2is.px192.after.consistency",
        "reward.consistency",
        "policies.recipes.flux_t2is.model",
        "data/grids",
    ]
    columns = ["Experiment", "policies.defaults.learning_rate", *metrics, *unlisted]
    assert all(dropped.match(column) for column in columns)
    expected = ["Experiment", "policies.defaults.learning_rate", *(m for m in metrics if m.startswith("flux_t2is."))]
    assert [column for column in columns if protected.match(column)] == expected and len(expected) == 5
    assert f"-S {expected[1]}=" in page


def test_more_than_ten_rows_keep_the_goals_and_the_hack_meter(params: Params, tmp_path: Path) -> None:
    folder = tmp_path / paths.POLICIES / "flux_t2is"
    folder.mkdir(parents=True)
    log = pd.DataFrame({"epoch": [0, 14], "eval/192/drift": [0.0, 0.5], "eval/192/drift_low": [0.0, 0.25]})
    log.assign(**{"eval/192/drift_high": [0.0, 0.75]}).to_csv(folder / "training_log.csv", index=False)
    recipes = {**params.policies.recipes, "second": params.policies.recipes["flux_t2is"]}
    policies = params.policies.model_copy(update={"recipes": recipes})
    params = params.model_copy(update={"policies": policies})
    rows = headline(tmp_path, params, figures_of(params))
    assert len(rows) == MOST_ROWS and rows[-1].key == "second.following"
    drift = next(row for row in rows if row.metric == "drift")
    assert (drift.before, drift.after, drift.low, drift.high) == (None, 0.5, 0.25, 0.75)
    goals = {"flux_t2is.consistency", "kontext_edit.editing", "qwen_edit.editing", "second.consistency"}
    assert goals <= {row.key for row in rows}


def test_the_table_fits_a_terminal(params: Params, tmp_path: Path) -> None:
    rows = headline(tmp_path, params, figures_of(params))
    lines = headline_table(to_jsonable(rows))[: len(rows) + 2]
    assert max(map(len, lines)) <= 80
    assert lines[3].split()[-6:] == ["0.250", "0.500", "+0.250", "+0.125", "to", "+0.375"]


def test_tour_prints_the_table_and_the_command(params: Params, tmp_path: Path, repository: Path) -> None:
    file = tmp_path / paths.REPORT / "metrics.json"
    with pytest.raises(DataError, match="no such file"):
        tour(tmp_path)
    file.parent.mkdir(parents=True)
    write_json(file, {"headline": {"rank_accuracy": 0.8}})
    with pytest.raises(DataError, match="dvc repro report"):
        tour(tmp_path)
    rows, command = headline(tmp_path, params, figures_of(params)), "paco paint 'a cat. All' --seed 3"
    write_json(file, {"headline": to_jsonable(rows), "example_command": command})
    (tmp_path / PARAMS_FILE).write_bytes((repository / PARAMS_FILE).read_bytes())
    answer = tour(tmp_path)
    assert f"  {command}\n" in answer and '  git add . && git commit -m "First run"\n' in answer
    assert all(line in answer for line in headline_table(to_jsonable(rows)))
    assert json.loads(answer.json())["headline"][0]["model"] == "reward"


def test_each_metric_has_one_meaning_for_report_and_model_card() -> None:
    names = {*PAINTERS.measures, *EDITORS.measures}
    assert names <= METRICS.keys()
    ends = {"before": 0.25, "after": 0.5, "change": 0.25, "change_low": 0.1, "change_high": 0.4}
    metrics = {f"flux_t2is.px192.{name}.{end}": value for name in names for end, value in ends.items()}
    card = result_section("flux_t2is", "t2is", "gold_consistency", metrics)
    assert card is not None and all(f"- `{name}`: {METRICS[name].meaning}" in card for name in names)


def test_dvc_declares_a_file_of_metrics_per_stage(repository: Path, tmp_path: Path) -> None:
    from dvc_project.project import DvcProject

    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    stages = DvcProject(tmp_path).stages
    files = {out.path: out for stage in stages.values() for out in stage.outs if out.kind == "metrics"}
    assert {paths.metrics_file(stage.group, stage.item).as_posix() for stage in stages.values()} - files.keys() == {
        "data/metrics/code.json"
    }
    assert not any(out.cache for out in files.values())
    assert all(len(stage.data) <= 1 for stage in stages.values()), "a file of metrics is not data"
