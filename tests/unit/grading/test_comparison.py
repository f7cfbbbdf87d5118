"""The set that cannot be told apart from the best, differences, and warnings."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from paco_core.grading.candidates import Candidate
from paco_core.grading.comparison import best_candidates, compare_adapters
from paco_core.grading.measures import CONSISTENCY, COPIES, DIVERSITY, GRID, IDENTITY, TEXT

PROMPTS = 12
rng = np.random.default_rng(0)
NOISE = rng.normal(0, 0.02, PROMPTS)


def table(main: float, text: float = 0.3, diversity: float = 0.4, copies: float = 0.0, seed: int = 1) -> pd.DataFrame:
    """Measures of an adapter, which vary by prompt as those of all adapters do, and a little by adapter."""
    deviations = np.random.default_rng(seed).normal(0, 0.002, (2, PROMPTS))
    return pd.DataFrame({
        IDENTITY: main + NOISE + deviations[0], CONSISTENCY: 0.5 + NOISE, TEXT: text + NOISE + deviations[1],
        DIVERSITY: diversity, COPIES: copies, GRID: 0.5,
    })  # fmt: skip


def compare(**tables: pd.DataFrame) -> dict[str, object]:
    names = [name for name in tables if name != "base"]
    candidates = [Candidate(name, name, name.rpartition("_")[0], int(name.rpartition("_")[2])) for name in names]
    comparison = compare_adapters(candidates, tables, "base")
    rows = {adapter.candidate.name: adapter for adapter in comparison.adapters}
    return {"best": comparison.best, "order": list(rows), "rows": rows, "comparison": comparison}


def test_a_clearly_worse_adapter_is_told_apart_and_equal_ones_are_not() -> None:
    result = compare(base=table(0.3), a_1=table(0.800, seed=1), b_1=table(0.8005, seed=2), c_1=table(0.7, seed=3))
    rows = result["rows"]
    assert result["order"][-1] == "c_1" and result["best"] == result["order"][0]  # type: ignore[index]
    assert [rows[name].can_be_best for name in ("a_1", "b_1", "c_1")] == [True, True, False]  # type: ignore[index]
    difference = rows["c_1"].difference  # type: ignore[index]
    assert difference.low < difference.mean < difference.high < -0.09
    assert result["comparison"].base_difference.high < -0.4  # type: ignore[attr-defined]


def test_the_set_contains_the_true_best_in_95_of_100_cases() -> None:
    """Three adapters with equal true means are all the best: each must be in the set with at least 95%."""
    draws = np.random.default_rng(1)
    in_sets = np.array([
        best_candidates(draws.normal(0, 0.1, PROMPTS) + draws.normal(0, 0.05, (3, PROMPTS)), resamples=400, seed=trial)
        for trial in range(200)
    ])  # fmt: skip
    assert in_sets.mean(axis=0).min() >= 0.93


def test_two_almost_equal_adapters_do_not_hide_a_worse_one() -> None:
    draws = np.random.default_rng(2)
    best = draws.normal(0.7, 0.1, PROMPTS)
    almost = best.copy()
    almost[3] += 0.001
    values = np.stack([best, almost, best - 0.05 + draws.normal(0, 0.02, PROMPTS)])
    assert best_candidates(values) == [True, True, False]


def test_few_prompts_and_missing_values() -> None:
    values = np.array([[0.9] * 5, [0.1] * 5])
    assert best_candidates(values) == [True, True], "five prompts are too few for an interval"
    wide = np.array([[0.9] * 8, [0.1] * 8])
    assert best_candidates(wide) == [True, False], "a difference that is equal for all prompts"
    wide[0, 3:] = np.nan
    assert best_candidates(wide) == [True, True], "three complete prompts are left"
    assert best_candidates(np.array([[0.5] * 8] * 2)) == [True, True]


def test_copies_and_collapse_are_not_the_best() -> None:
    result = compare(
        base=table(0.3), copies_1=table(0.95, copies=0.5), collapse_1=table(0.9, diversity=0.1), good_1=table(0.8)
    )
    rows = result["rows"]
    assert result["order"] == ["copies_1", "collapse_1", "good_1"] and result["best"] == "good_1"
    assert [len(rows[name].warnings) for name in result["order"]] == [1, 1, 0]  # type: ignore[attr-defined, index]
    assert [rows[name].can_be_best for name in result["order"]] == [False, False, True]  # type: ignore[attr-defined, index]


def test_overtraining_is_a_fall_of_text_following() -> None:
    result = compare(
        base=table(0.3), fox_100=table(0.6, 0.30, seed=1), fox_200=table(0.7, 0.30, seed=2),
        fox_300=table(0.8, 0.20, seed=3), cat_100=table(0.8, 0.3, seed=4), cat_200=table(0.7, 0.2, seed=5),
        cat_300=table(0.4, 0.3, seed=6), owl_100=table(0.5, 0.3, seed=7), owl_200=table(0.5, 0.2985, seed=7),
    )  # fmt: skip
    warned = {name for name, adapter in result["rows"].items() if adapter.warnings}  # type: ignore[attr-defined]
    assert warned == {"fox_300", "cat_200"}, "cat_300 loses identity only, and owl_200 half a percent"
    assert result["best"] == "cat_100"


def test_if_every_adapter_has_a_warning_one_is_still_the_best() -> None:
    result = compare(base=table(0.3), a_1=table(0.9, copies=1.0), b_1=table(0.8, copies=1.0))
    assert result["best"] == "a_1"


@pytest.mark.parametrize("missing", [CONSISTENCY, IDENTITY])
def test_without_images_consistency_decides(missing: str) -> None:
    tables = {name: frame.drop(columns=[missing]) for name, frame in {"base": table(0.3), "a_1": table(0.9)}.items()}
    comparison = compare_adapters([Candidate("a_1", "a", "a", 1)], tables, "base")
    assert comparison.main == (IDENTITY if missing == CONSISTENCY else CONSISTENCY)
