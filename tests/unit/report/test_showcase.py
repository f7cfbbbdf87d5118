"""The pair that opens the page is chosen by the stated rule, and all others are there."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dvc_project.lockfile import Lock
from paco_core.config.params import load
from paco_core.report import page
from paco_core.report.showcase import PicturePair, by_change, pairs_of
from paco_core.storybook.prompts import storybook_prompts
from tests.support.fixture_project import found_runs, write_t2is


def table(*rows: tuple[str, int, str, str, int, float]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["policy", "size", "when", "prompt_id", "seed", "gold"])


def test_pairs_of_one_policy_and_size_in_the_order_of_the_table() -> None:
    rows = table(
        ("a", 128, "before", "p2", 0, 0.5),
        ("a", 128, "before", "p1", 0, 0.1),
        ("a", 128, "separately", "p1", 0, 0.9),
        ("a", 64, "before", "p1", 0, 0.7),
        ("b", 128, "before", "p1", 0, 0.8),
        ("a", 128, "before", "p3", 0, math.nan),
        ("a", 128, "before", "p4", 0, 0.1),
        ("a", 128, "after", "p1", 0, 0.3),
        ("a", 128, "after", "p2", 0, 0.4),
        ("a", 64, "after", "p1", 0, 0.7),
        ("b", 128, "after", "p1", 0, 0.8),
        ("a", 128, "after", "p3", 0, 1.0),
        ("a", 128, "after", "p4", 0, math.nan),
    )
    assert pairs_of(rows, "a", 128, "gold") == [PicturePair("p2", 0, 0.5, 0.4), PicturePair("p1", 0, 0.1, 0.3)]


def test_equal_changes_by_the_higher_end_then_by_place() -> None:
    half = [PicturePair("low", 0, 0.0, 0.5), PicturePair("high", 0, 0.5, 1.0), PicturePair("high", 1, 0.5, 1.0)]
    fell, rose = PicturePair("fell", 0, 1.0, 0.5), PicturePair("rose", 0, 1 / 6, 1.0)
    assert by_change([fell, *half, rose]) == [rose, half[1], half[2], half[0], fell]
    # 0.5 - 1/3 and 1/3 - 1/6 differ in the last bit
    sixths = [PicturePair("first", 0, 1 / 3, 0.5), PicturePair("second", 0, 1 / 6, 1 / 3)]
    assert sixths[0].after - sixths[0].before != sixths[1].after - sixths[1].before
    assert by_change(sixths[::-1]) == sixths
    assert [pair.outcome for pair in (fell, rose, PicturePair("same", 0, 0.1 + 0.2, 0.3))] == ["fell", "rose", "same"]


@pytest.fixture
def project(tmp_path: Path, repository: Path) -> Path:
    """A project with the benchmark of the painter alone."""
    for name in ("params.yaml", "dvc.yaml"):
        shutil.copy(repository / name, tmp_path / name)
    write_t2is(tmp_path, storybook_prompts(6, seed=9))
    return tmp_path


def built(root: Path, **changed: Any) -> page.Report:
    params = load(root / "params.yaml").model_copy(update=changed)
    return page.build(root, params, Lock.read(root), found_runs())


def test_the_page_opens_with_the_largest_rise_and_shows_every_set(project: Path) -> None:
    rows = pd.read_parquet(project / "data/t2is/per_prompt.parquet")
    rows = rows[rows["size"] == 128].pivot(index="prompt_id", columns="when", values="gold_consistency")
    changes = (rows["after"] - rows["before"]).sort_values(ascending=False)
    report = built(project)
    values = report.figures.values
    key = "showcase.flux_t2is.128"
    displayed = [values[f"{key}.set.{n}.after"] - values[f"{key}.set.{n}.before"] for n in range(1, len(changes) + 1)]  # type: ignore[operator]
    assert displayed == pytest.approx(changes.tolist())
    assert (values[f"{key}.sets"], values[f"{key}.prompts"], values[f"{key}.rose"]) == (6, 6, int((changes > 0).sum()))
    opening = report.html[report.html.index('<figure class="showcase">') :]
    theme = next(p.theme for p in storybook_prompts(6, seed=9) if p.idx == changes.index[0])
    assert re.findall(r"<h2>(.*)</h2>", opening[: opening.index("</figure>")]) == [theme]
    every = report.html[report.html.index('id="all-sets"') :]
    assert every[: every.index("</details>")].count("<img") == 12
