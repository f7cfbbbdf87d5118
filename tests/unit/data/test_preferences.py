"""The best and the worst picture of a prompt, from the graph's rankings and from people's."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from paco_core.data.preferences import Preference, Preferences, preferences_of_grids, read_preferences
from paco_core.io.rejected import Rejected

CONSISTENT, ODD = [0.9, 0.9, 0.9, 0.9], [0.9, 0.9, 0.1, 0.9]


def tables(
    folder: Path, prompts: dict[str, dict[str, list[tuple[list[int], list[float] | None]]]]
) -> tuple[pd.DataFrame, ...]:
    """Instances and annotations: prompt -> grid -> (ranking, scores) by each reference."""
    instances, annotations = [], []
    for prompt, grids in prompts.items():
        for grid, answers in grids.items():
            for number, (ranking, scores) in enumerate(answers):
                name = f"{prompt}-{grid}-{number}"
                candidates = [f"{grid}#{panel}" for panel in range(len(ranking))]
                instances.append((name, prompt, f"other#{number}", candidates))
                annotations.append((name, ranking, scores))
    first = pd.DataFrame(instances, columns=["instance_id", "prompt_id", "reference", "candidates"])
    second = pd.DataFrame(annotations, columns=["instance_id", "ranking", "scores"])
    for name, table in (("first", first), ("second", second)):  # as the stages leave them
        table.to_parquet(folder / name)
    return pd.read_parquet(folder / "first"), pd.read_parquet(folder / "second")


def test_the_grid_whose_panels_answer_alike_is_the_best(tmp_path: Path) -> None:
    order = [0, 1, 2, 3]
    preferences = preferences_of_grids(
        *tables(
            tmp_path,
            {
                "p": {
                    "b": [(order, CONSISTENT), (order, CONSISTENT)],
                    "a": [(order, ODD), (order, CONSISTENT)],
                    "c": [(order, ODD)] * 2,
                },
                "equal": {"d": [(order, ODD)], "e": [(order, ODD)]},
                "one": {"f": [(order, ODD)]},
            },
        )
    )
    assert preferences == {"p": Preference("b", "c")}


def test_without_scores_the_grid_whose_odd_panel_all_agree_on_is_the_worst(tmp_path: Path) -> None:
    agreed = [([0, 1, 3, 2], None), ([1, 0, 3, 2], None), ([3, 1, 0, 2], None)]
    chance = [([0, 1, 2, 3], None), ([3, 2, 1, 0], None), ([1, 3, 0, 2], None)]
    assert preferences_of_grids(*tables(tmp_path, {"p": {"a": agreed, "b": chance}})) == {"p": Preference("b", "a")}


def test_one_missing_score_makes_the_whole_prompt_be_read_by_order(tmp_path: Path) -> None:
    agreed = [([0, 1, 3, 2], CONSISTENT), ([1, 0, 3, 2], CONSISTENT)]  # alike by score, and odd by order
    chance = [([0, 1, 2, 3], ODD), ([3, 2, 1, 0], [math.nan, 0.1, 0.9, 0.9])]
    assert preferences_of_grids(*tables(tmp_path, {"p": {"a": agreed, "b": chance}})) == {"p": Preference("b", "a")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for number in range(4):
        Image.fromarray(np.full((16, 16, 3), 60 * number, np.uint8)).save(tmp_path / f"{number}.png")
    return tmp_path


def ranked(folder: Path, *rows: object) -> tuple[Preferences, Rejected]:
    lines = [row if isinstance(row, str) else json.dumps(row) for row in rows]
    (folder / "rankings.jsonl").write_text("\n".join(lines) + "\n")
    rejected = Rejected()
    return read_preferences(folder, {"p", "q"}, rejected), rejected


def row(prompt: str, pictures: list[int], ranking: list[int]) -> dict[str, object]:
    return {"prompt_id": prompt, "pictures": [f"{number}.png" for number in pictures], "ranking": ranking}


def test_people_are_averaged_and_pictures_are_read(folder: Path) -> None:
    preferences, rejected = ranked(
        folder,
        row("p", [0, 1, 2], [2, 1, 0]),  # 2 best
        row("p", [1, 2, 0], [0, 1, 2]),  # 1 best; 0 worst both times
        row("p", [2, 1], [0, 1]),
        row("q", [0, 3], [0, 1]),
        row("q", [0, 3], [1, 0]),
    )
    assert not rejected
    assert preferences.pairs == {"p": Preference("2.png", "0.png")}, "q is a draw"
    best, worst = preferences.pictures("p")
    assert best.getpixel((0, 0)) == (120, 120, 120) and worst.getpixel((0, 0)) == (0, 0, 0)


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ({"prompt_id": "p", "pictures": ["0.png", "1.png"]}, "record: key 'ranking' is missing"),
        (row("x", [0, 1], [0, 1]), "prompt: there is no prompt x"),
        (row("p", [0], [0]), "pictures: .* is not a list of two or more"),
        (row("p", [0, 0], [0, 1]), "pictures: .* names one twice"),
        (row("p", [0, 1], [0, 0]), "ranking: .* does not order pictures 0 to 1"),
        (row("p", [0, 9], [0, 1]), "picture: '9.png' is not in"),
        ({"prompt_id": "p", "pictures": ["0.png", "../1.png"], "ranking": [0, 1]}, "picture: .* lies outside"),
        ("{", "line: "),
    ],
)
def test_what_cannot_be_used_is_left_out_with_its_cause(folder: Path, line: object, cause: str) -> None:
    preferences, rejected = ranked(folder, line, row("q", [1, 2], [1, 0]))
    assert list(preferences.pairs) == ["q"]
    [(place, why)] = rejected
    assert place.endswith("rankings.jsonl:1")
    with pytest.raises(AssertionError, match=cause):
        raise AssertionError(why)


def test_a_pair_of_different_proportions_or_a_damaged_one_is_left_out(folder: Path) -> None:
    upright = Image.new("RGB", (32, 16)).getexif()
    upright[0x0112] = 6  # turned by a quarter: 16 x 32 px as it is seen
    Image.new("RGB", (32, 16)).save(folder / "0.png", exif=upright)
    Image.new("RGB", (16, 32)).save(folder / "1.png")
    (folder / "3.png").write_bytes(b"no image")
    preferences, rejected = ranked(folder, row("p", [0, 2], [0, 1]), row("q", [0, 1], [0, 1]))
    assert list(preferences.pairs) == ["q"]
    assert [cause.partition(":")[0] for _, cause in rejected] == ["picture"] and "2.png" in rejected.example
    preferences, rejected = ranked(folder, row("p", [0, 3], [0, 1]))
    assert not preferences.pairs and "3.png" in rejected.example
