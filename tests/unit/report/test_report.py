"""The report: complete in itself, honest about what is missing, and at one with its metrics file."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from dvc_project.lockfile import Lock
from paco_core.config.params import load
from paco_core.report import charts, judges, page
from paco_core.report.html import Figures, duration, text_of
from paco_core.report.page import stage_runs
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Run
from paco_core.runtime.provenance.records import recorded_runs
from tests.support.fixture_project import found_runs, write_project

MADE = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
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
    return page.build(finished, load(finished / "params.yaml"), Lock.read(finished), found_runs(), MADE)


class Reader(HTMLParser):
    """Collects what a browser would fetch, what stands in marked numbers, headings and their first words."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.numbers: list[tuple[str, str, str]] = []
        self.images: list[dict[str, str | None]] = []
        self.charts: list[str] = []
        self.ids: set[str] = set()
        self.anchors: list[str] = []
        self._open: tuple[str, str] | None = None
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in LOADING:
            self.fetched += [v for k in ("src", "href", "data", "srcset") if (v := values.get(k))]
        if tag == "img":
            self.images.append(values)
        if tag == "svg" and values.get("role") == "img":
            self.charts.append(values.get("aria-label") or "")
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
def test_the_page_loads_nothing_describes_its_images_and_links_to_its_parts(report: page.Report) -> None:
    found = Reader(report.html)
    assert found.images and all(url.startswith("data:") for url in found.fetched)
    assert not re.search(r"@import|url\(\s*['\"]?https?:", report.html)
    assert "<script" not in report.html
    assert all((image.get("alt") or "").strip() for image in found.images)
    assert len(found.charts) >= 6 and all(found.charts)
    inside = [a[1:] for a in found.anchors if a.startswith("#")]
    assert inside and set(inside) <= found.ids


def test_every_number_equals_the_metrics_file(report: page.Report) -> None:
    figures = json.loads(json.dumps(report.metrics(), allow_nan=False))["figures"]
    numbers = Reader(report.html).numbers
    assert len(numbers) > 100
    for key, form, text in numbers:
        assert text == text_of(figures[key], form), key


def test_headline_repeats_the_figures_and_nothing_is_missing(report: page.Report) -> None:
    assert [missing.make for missing in report.missing] == []
    values = report.figures.values
    gain = report.headline["rank_accuracy_gain"]
    assert gain == values["consistency_rank.comparisons.reward - base.accuracy.mean"]
    assert gain == pytest.approx(report.headline["rank_accuracy"] - report.headline["rank_accuracy_base"])
    for size in (64, 128):
        short = f"flux_t2is.px{size}.gold_consistency"
        assert report.headline[f"{short}.after"] > report.headline[f"{short}.before"]


@pytest.mark.slow
def test_the_headline_does_not_depend_on_how_long_stages_took(report: page.Report, finished: Path) -> None:
    slower = {label: replace(run, seconds=2 * (run.seconds or 0)) for label, run in found_runs().items()}
    again = page.build(finished, load(finished / "params.yaml"), Lock.read(finished), slower, MADE)
    assert again.figures.values["seconds.total"] == pytest.approx(2 * report.figures.values["seconds.total"])
    assert again.headline == report.headline


def test_curves_are_the_logged_ones(report: page.Report, finished: Path) -> None:
    import pandas as pd

    log = pd.read_csv(finished / "data/policies/flux_t2is/training_log.csv").dropna(subset=["reward_ratio"])
    (points,) = report.curves["flux_t2is.reward_ratio"].values()
    assert points == list(zip(log["epoch"], log["reward_ratio"], strict=True))


def test_all_stages_with_their_times_and_runs(report: page.Report) -> None:
    values = report.figures.values
    assert values["seconds.grids"] == pytest.approx(28.1 + 27.7)
    assert values["seconds.report"] is None
    known = [v for k, v in values.items() if k.startswith("seconds.") and k != "seconds.total" and v]
    assert values["seconds.total"] == pytest.approx(sum(known))
    runs = re.findall(r'<a href="http://127.0.0.1:5000/#/experiments/1/runs/([^"]+)">', report.html)
    assert sorted(runs) == sorted(found_runs())


def test_stage_needs_follow_the_graph(finished: Path) -> None:
    stages = stage_runs(finished, Lock.read(finished), {})
    names = [stage.name for stage in stages]
    needs = {stage.name: {names[n] for n in stage.needs} for stage in stages}
    assert needs["reward_merged"] >= {"reward_lora"}
    assert needs["prompts"] == set()
    assert all(n < row for row, stage in enumerate(stages) for n in stage.needs)
    assert all(stage.seconds is None and not stage.recorded for stage in stages)


def test_equal_data_give_an_equal_page(report: page.Report, finished: Path) -> None:
    again = page.build(finished, load(finished / "params.yaml"), Lock.read(finished), found_runs(), MADE)
    assert again.html == report.html and again.metrics() == report.metrics()


def test_nothing_is_invented_where_nothing_ran(tmp_path: Path, repository: Path) -> None:
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    empty = page.build(tmp_path, load(tmp_path / "params.yaml"), Lock.read(tmp_path), {}, MADE)
    made_by = {missing.make for missing in empty.missing}
    policies = [f"policies@{name}" for name in ("flux_t2is", "kontext_edit", "qwen_edit")]
    stages = ["grids", "cot_labels", "reward_lora", "consistency_rank", "edit_reward", "t2is", "gedit", *policies]
    assert made_by == {f"dvc repro {stage}" for stage in stages}
    assert all(missing.make in empty.html for missing in empty.missing)
    assert empty.headline == {} and empty.curves == {}
    measured = {k: v for k, v in empty.figures.values.items() if not k.startswith("published.")}
    assert all(value is None for value in measured.values())


def test_published_rows_are_marked(report: page.Report) -> None:
    rows = re.findall(r"<tr><td>([^<]*)(<span class=\"tag\">published</span>)?</td>", report.html)
    marked = {name for name, tag in rows if tag}
    assert {"PaCo-Reward-7B", "DreamSim", "Qwen2.5-VL-7B"} <= marked
    assert "PaCo-Reward, trained here" not in marked


def test_edits_are_judged_in_each_respect(report: page.Report) -> None:
    section = report.html[report.html.index("And of edits?") :]
    section = section[: section.index("How the judge learnt")]
    assert all(words in section for words in judges.DIMENSIONS.values())
    shown = {key for key, _, text in Reader(section).numbers if text != "–"}
    for dimension in judges.DIMENSIONS:
        assert f"edit_reward.methods.reward.accuracy.{dimension}.strict.mean" in shown
        assert f"edit_reward.comparisons.reward - base.{dimension}.low" in shown
    assert "edit_reward.methods.clip_i.accuracy.overall.strict.mean" not in shown  # it reads no instruction
    values = report.figures.values
    right = [values[f"edit_reward.methods.{name}.accuracy.overall.strict.mean"] for name in ("reward", "base")]
    assert right[0] > right[1]


def test_text_from_data_is_escaped(finished: Path, tmp_path: Path) -> None:
    import pandas as pd

    root = tmp_path / "copy"
    shutil.copytree(finished, root)
    path = root / "data/cot_labels/train.parquet"
    table = pd.read_parquet(path)
    table["theme"] = "<script>alert(1)</script>"
    table.to_parquet(path)
    html = page.build(root, load(root / "params.yaml"), Lock.read(root), {}, MADE).html
    assert "<script" not in html and "&lt;script&gt;" in html


def test_a_figure_has_one_value() -> None:
    figures = Figures()
    figures.add("a", 1.0)
    figures.add("a", 1.0)
    with pytest.raises(ValueError, match="figure a"):
        figures.add("a", 2.0)
    assert figures.values[figures.add("b", float("nan"))] is None
    assert "not measured" in figures.show("b")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7800, "2 h 10 min")],
)
def test_durations_in_words(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.31, 0.47), (-3.0, 120.0), (5.0, 5.0), (0.0, 0.0)])
def test_ticks_are_even_and_cover_the_data(low: float, high: float) -> None:
    ticks = charts.nice_ticks(low, high)
    steps = {round(b - a, 9) for a, b in pairwise(ticks)}
    assert len(steps) == 1 and 2 <= len(ticks) <= 8
    assert ticks[0] <= low + 1e-9 and ticks[-1] >= high - 1e-9


def test_gaps_and_single_points_draw() -> None:
    nan = float("nan")
    svg = charts.line_chart([charts.Line("a", [0, 1, 2], [1.0, nan, 3.0])], title="t", x_label="x")
    assert "nan" not in svg and "a: 1 at 0, 3 at 2" in svg
    assert "<svg" in charts.line_chart([charts.Line("a", [5], [1.0])], title="t", x_label="x")
    assert "nothing was logged" in charts.line_chart([charts.Line("a", [0], [nan])], title="t", x_label="x")


def test_a_time_is_that_of_the_run_that_made_what_lies_here(tmp_path: Path) -> None:
    assert recorded_runs(tmp_path, Lock.read(tmp_path)) == {}
    lock = "schema: '2.0'\nstages:\n  prompts:\n    cmd: x\n    deps:\n    - path: a.py\n      md5: {}\n"
    (tmp_path / "dvc.lock").write_text(lock.format("a234"))
    made = Run(seconds=3.5, mlflow_url="http://127.0.0.1:5000/#/experiments/1/runs/ab")
    records.keep(tmp_path, "prompts", Lock.read(tmp_path).entries["prompts"].inputs.digest, made)
    assert recorded_runs(tmp_path, Lock.read(tmp_path)) == {"prompts": made}
    (tmp_path / "dvc.lock").write_text(lock.format("b678"))
    assert recorded_runs(tmp_path, Lock.read(tmp_path)) == {}, "another version: who made it is not told here"
