"""The pair that opens the page is chosen by the stated rule, and all others are there."""

from __future__ import annotations

import math
import re
import shlex
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from dvc_project.lockfile import Lock
from paco_core.cli.arguments import parser
from paco_core.config.params import load
from paco_core.data.prompts.prompts import storybook_record
from paco_core.operations.prompt_records import set_record
from paco_core.report import page
from paco_core.report.showcase import PicturePair, by_change, examples, has_different_texts, paint_command, pairs_of
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


def test_examples_are_the_median_and_the_90th_percentile_of_the_gains() -> None:
    gains = [PicturePair(f"p{n}", 0, 0.0, n / 10) for n in range(1, 11)]
    no_gains = [PicturePair("same", 0, 0.5, 0.5), PicturePair("fell", 0, 1.0, 0.0)]
    assert examples([*no_gains, *gains]) == {"typical": gains[4], "clear": gains[8]}
    assert examples(gains[:1]) == {"typical": gains[0]}, "one pair is shown once"
    assert examples(no_gains) == {}
    ties = [PicturePair(f"p{n}", n, 0.5, 1.0, score_change=score) for n, score in enumerate((0.2, -0.1, 0.4))]
    assert examples(ties) == {"typical": ties[0], "clear": ties[2]}, "by the reward model's change"


def test_the_clear_example_has_another_prompt_than_the_typical_one() -> None:
    first = [PicturePair("first", seed, 0.0, gain) for seed, gain in enumerate((0.1, 0.4, 0.7, 0.8))]
    second = [PicturePair("second", seed, 0.0, gain) for seed, gain in enumerate((0.2, 0.6))]
    assert examples([*first, *second]) == {"typical": first[1], "clear": second[1]}
    assert examples([*first, second[0]]) == {"typical": first[1], "clear": first[3]}, "not below the typical gain"
    assert examples(first) == {"typical": first[1], "clear": first[3]}


def test_a_set_of_equal_panels_is_no_example() -> None:
    prompts = storybook_prompts(60, seed=9)
    varied = [has_different_texts(storybook_record(prompt, 64, 64)) for prompt in prompts]
    assert varied == [len(set(prompt.panels)) > 1 for prompt in prompts] and 40 < sum(varied) < 60


def test_the_command_generates_the_prompt_of_the_benchmark_again(repository: Path) -> None:
    recipe = load(repository / "params.yaml").policies.recipes["flux_t2is"]
    for prompt in storybook_prompts(6, seed=9):
        record = storybook_record(prompt, 64, 64)
        command = paint_command(record, "flux_t2is", recipe, 7)
        assert command is not None
        args = parser().parse_args(shlex.split(command)[1:])
        assert set_record(args.prompt, args.panels, 192, args.layout).idx == record.idx, "the id determines the noise"
        assert (args.policy, args.seed, args.seeds, args.compare) == ("flux_t2is", 7, 1, True)
    wide = storybook_record(storybook_prompts(1, seed=9)[0], 64, 64).model_copy(update={"width": 128})
    square = recipe.model_copy(update={"record_size": "ignore"})
    assert paint_command(wide, "flux_t2is", recipe, 7) is not None
    assert paint_command(wide, "flux_t2is", square, 7) is None, "the benchmark's image is square, that of paint is wide"


def test_the_page_opens_with_two_examples_and_shows_every_set(project: Path) -> None:
    rows = pd.read_parquet(project / "data/t2is/per_prompt.parquet")
    rows = rows[rows["size"] == 192].pivot(index="prompt_id", columns="when", values="gold_consistency")
    changes = (rows["after"] - rows["before"]).sort_values(ascending=False)
    report = built(project)
    values = report.figures.values
    key = "showcase.flux_t2is.192"
    displayed = [values[f"{key}.set.{n}.after"] - values[f"{key}.set.{n}.before"] for n in range(1, len(changes) + 1)]  # type: ignore[operator]
    assert displayed == pytest.approx(changes.tolist())
    assert (values[f"{key}.sets"], values[f"{key}.prompts"], values[f"{key}.rose"]) == (6, 6, int((changes > 0).sum()))
    opening = report.html[report.html.index('<figure class="showcase">') :]
    opening = opening[: opening.index("</figure>")]
    table = pd.read_parquet(project / "data/t2is/per_prompt.parquet")
    prompts = {prompt.idx: prompt for prompt in storybook_prompts(6, seed=9)}
    pairs = by_change(pairs_of(table, "flux_t2is", 192, "gold_consistency"))
    selected = examples([pair for pair in pairs if len(set(prompts[pair.prompt_id].panels)) > 1])
    themes = {idx: prompt.theme for idx, prompt in prompts.items()}
    assert re.findall(r"<h2>(.*)</h2>", opening) == [themes[pair.prompt_id] for pair in selected.values()]
    counts = [values[f"{key}.{outcome}"] for outcome in ("rose", "same", "fell")]
    assert all(f'data-figure="{key}.{outcome}"' in opening for outcome in ("rose", "same", "fell"))
    assert sum(counts) == 6  # type: ignore[arg-type]
    assert report.example_command == report.metrics()["example_command"] is not None
    every = report.html[report.html.index('id="all-sets"') :]
    assert every[: every.index("</details>")].count("<img") == 12
