"""The report: complete in itself, honest about what is missing, and at one with its metrics file."""

from __future__ import annotations

import json
import re
import shutil
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dvc_project.lockfile import Lock
from paco_core.config.params import load
from paco_core.report import judges, page
from paco_core.report.html import text_of
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Run
from paco_core.runtime.provenance.records import load_runs
from tests.support.fixture_project import found_runs, write_project

BUILT_AT = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
LOADING = {"img", "script", "link", "iframe", "source", "video", "audio", "object", "embed", "use", "image"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    root = tmp_path_factory.mktemp("project")
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, root / name)
    write_project(root)
    return root


@pytest.fixture(scope="module")
def report(finished: Path) -> page.Report:
    return page.build(finished, load(finished / "params.yaml"), Lock.read(finished), found_runs(), BUILT_AT)


class Reader(HTMLParser):
    """Collects what a browser would fetch, marked numbers, ids and links."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.ids: set[str] = set()
        self.anchors: list[str] = []
        self._open: tuple[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADING:
            self.fetched += [v for k in ("src", "href", "data", "srcset") if (v := values.get(k))]
        if tag == "a":
            self.anchors.append(values.get("href") or "")
        if "id" in values:
            self.ids.add(values["id"] or "")
        if tag == "data":
            self._open = (values["data-figure"] or "", values["data-format"] or "")

    def handle_data(self, data: str) -> None:
        if self._open:
            self.numbers.append((*self._open, data))
            self._open = None


@pytest.mark.slow
def test_the_page_loads_nothing_and_links_to_its_parts(report: page.Report) -> None:
    reader = Reader(report.html)
    assert reader.fetched and all(url.startswith("data:") for url in reader.fetched)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", report.html)
    assert "<script" not in report.html
    inside = [a[1:] for a in reader.anchors if a.startswith("#")]
    assert inside and set(inside) <= reader.ids


def test_every_number_equals_the_metrics_file(report: page.Report) -> None:
    figures = json.loads(json.dumps(report.metrics(), allow_nan=False))["figures"]
    numbers = Reader(report.html).numbers
    assert len(numbers) > 100
    for key, form, text in numbers:
        assert text == text_of(figures[key], form), key


def test_headline_repeats_the_figures_and_nothing_is_missing(report: page.Report) -> None:
    assert [missing.make for missing in report.missing] == []
    values = report.figures.values
    rows = {row.key: row for row in report.headline}
    reward = rows["reward.accuracy"]
    assert reward.change == values["consistency_rank.comparisons.reward - base.accuracy.mean"]
    assert reward.change == pytest.approx(reward.after - reward.before)  # type: ignore[operator]
    consistency = rows["flux_t2is.consistency"]
    assert consistency.metric == "gold_consistency"
    assert consistency.after == values["t2is.policies.flux_t2is.192.gold_consistency.after.mean"]
    assert (consistency.low, consistency.high) == tuple(
        values[f"t2is.policies.flux_t2is.192.gold_consistency.change.{end}"] for end in ("low", "high")
    )


def test_the_recognizer_is_introduced_and_the_next_steps_fit(report: page.Report, finished: Path) -> None:
    assert "recognizer" in Reader(report.html).ids and "look" in Reader(report.html).ids
    section = report.html.partition('<section id="look">')[2]
    assert report.example_command is not None and "paco profile use paper" not in section
    params = load(finished / "params.yaml").model_copy(update={"world": "real"})
    real = page.build(finished, params, Lock.read(finished), found_runs(), BUILT_AT)
    assert "recognizer" not in Reader(real.html).ids


def test_a_training_evaluation_and_the_benchmark_have_different_names(report: page.Report) -> None:
    titles = re.findall(r'<figure class="card"><h3>([^<]*)</h3>', report.html)
    assert {"Training evaluation", "Reward ratio: consistency / text match"} <= set(titles)
    assert not {"Held-out prompts", "Held-out images", "Reward ratio"} & set(titles)


def test_all_stages_with_their_times_and_runs(report: page.Report) -> None:
    values = report.figures.values
    assert values["seconds.grids"] == pytest.approx(28.1 + 27.7)
    assert values["seconds.report"] is None
    seconds = [v for k, v in values.items() if k.startswith("seconds.") and k != "seconds.total" and v]
    assert values["seconds.total"] == pytest.approx(sum(seconds))
    assert not [row.key for row in report.headline if "second" in row.key], "a metric that each run changes"
    runs = re.findall(r'<a href="http://127.0.0.1:5000/#/experiments/1/runs/([^"]+)">', report.html)
    assert sorted(runs) == sorted(found_runs())


def test_nothing_is_invented_where_nothing_ran(tmp_path: Path, repository: Path) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    empty = page.build(tmp_path, load(tmp_path / "params.yaml"), Lock.read(tmp_path), {}, BUILT_AT)
    assert {"dvc repro t2is", "dvc repro policies@qwen_edit"} <= {missing.make for missing in empty.missing}
    assert all(missing.make in empty.html for missing in empty.missing)
    assert empty.headline == [] and empty.curves == {} and empty.example_command is None
    measured = {k: v for k, v in empty.figures.values.items() if not k.startswith("published.")}
    assert all(value is None for value in measured.values())


def test_edits_are_judged_in_each_respect(report: page.Report) -> None:
    keys = {key for key, _, text in Reader(report.html).numbers if text != "–"}
    for dimension in judges.DIMENSIONS:
        assert f"edit_reward.methods.reward.accuracy.{dimension}.strict.mean" in keys
        assert f"edit_reward.comparisons.reward - base.{dimension}.low" in keys
    assert "edit_reward.methods.clip_i.accuracy.overall.strict.mean" not in keys  # it reads no instruction


def test_text_from_data_is_escaped(finished: Path, tmp_path: Path) -> None:
    import pandas as pd

    root = tmp_path / "copy"
    shutil.copytree(finished, root)
    path = root / "data/cot_labels/train.parquet"
    table = pd.read_parquet(path)
    table["theme"] = "<script>alert(1)</script>"
    table.to_parquet(path)
    html = page.build(root, load(root / "params.yaml"), Lock.read(root), {}, BUILT_AT).html
    assert "<script" not in html and "&lt;script&gt;" in html


def test_a_time_is_that_of_the_run_that_made_what_lies_here(tmp_path: Path) -> None:
    assert load_runs(tmp_path, Lock.read(tmp_path)) == {}
    lock = "schema: '2.0'\nstages:\n  prompts:\n    cmd: x\n    deps:\n    - path: a.py\n      md5: {}\n"
    (tmp_path / "dvc.lock").write_text(lock.format("a234"))
    run = Run(seconds=3.5, mlflow_url="http://127.0.0.1:5000/#/experiments/1/runs/ab")
    records.save_run(tmp_path, "prompts", Lock.read(tmp_path).entries["prompts"].inputs.digest, run)
    assert load_runs(tmp_path, Lock.read(tmp_path)) == {"prompts": run}
    (tmp_path / "dvc.lock").write_text(lock.format("b678"))
    assert load_runs(tmp_path, Lock.read(tmp_path)) == {}, "another version: who made it is not told here"
