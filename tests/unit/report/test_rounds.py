"""The report of rounds: equal cases on both sides, earlier rounds on top, and what there is not said as such."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from paco_core.benchmarks.statistics import estimate
from paco_core.benchmarks.tables import read_tables, write_result_tables
from paco_core.io.files import DataError
from paco_core.report import rounds
from paco_core.sampling.generated_image import AFTER, BEFORE

T2IS = SimpleNamespace(seeds=(0,), steps=4, bootstrap=200, seed=0)
TRAINING = {
    "eval.64.consistency.before": 0.5,
    "eval.64.consistency.after": 0.6,
    "eval.64.consistency.change": 0.1,
    "eval.64.consistency.change_low": 0.02,
    "eval.64.consistency.change_high": None,
    "eval.64.drift.after": 0.07,
    "eval.64.drift_low.after": 0.01,
    "eval.64.drift_high.after": 0.13,
}


def write_scores(folder: Path, prompts: list[str], bare: float, trained: float) -> Path:
    """What ``t2is`` leaves of one policy."""
    rows = [
        {"policy": "flux_t2is", "size": 64, "when": phase, "prompt_id": prompt, "seed": 0, "gold_consistency": value}
        for prompt in prompts
        for phase, value in ((BEFORE, bare), (AFTER, trained + int(prompt[1:]) / 100))
    ]
    folder.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(folder / "per_prompt.parquet", index=False)
    return folder


def test_a_policy_is_compared_with_that_of_the_round_before_on_common_prompts(tmp_path: Path) -> None:
    before = write_scores(tmp_path / "data/t2is", ["p1", "p2", "p3"], 0.1, 0.4)
    after = write_scores(tmp_path / "data/rounds/1/t2is", ["p2", "p3", "p4"], 0.9, 0.7)
    consistency = rounds.changes(before, after, "flux_t2is", T2IS)[64]["gold_consistency"]
    assert consistency.before.mean == pytest.approx(0.425) and consistency.after.mean == pytest.approx(0.725)
    assert consistency.change.mean == pytest.approx(0.3) and consistency.change.groups == 2
    with pytest.raises(DataError):
        rounds.changes(before, write_scores(tmp_path / "apart", ["p9"], 0.1, 0.4), "flux_t2is", T2IS)


def test_rounds_stand_below_each_other(tmp_path: Path) -> None:
    policy = rounds.changes(*(write_scores(tmp_path / n, ["p1", "p2"], 0.1, v) for n, v in (("a", 0.4), ("b", 0.7))),
                            "flux_t2is", T2IS)  # fmt: skip
    best = asdict(estimate([1.0, 1.0, 0.0] * 2, groups=[f"p{n}" for n in range(6)]))
    estimates = {"reward": best, "before": {**best, "mean": 0.5}}
    methods = {name: {"metrics": {"accuracy": accuracy}} for name, accuracy in estimates.items()}
    exam = {"instances": 3, "prompts": 3, "best_above_worst": estimates, "methods": methods}
    before = tmp_path / "report"
    before.mkdir()
    first = rounds.RoundFigures("1", policy, exam, TRAINING)
    write_result_tables(before, "Rounds up to 1", rounds.added(tmp_path / "graph", first.tables()), "index")
    second = rounds.RoundFigures("2", policy, None, {})
    judges, policies, drift = rounds.added(before, second.tables())
    assert [row[0] for row in judges.rows] == ["1", "2"]
    assert judges.rows[0][1:5] == ["3", "3", "0.667 (0.300 to 0.903)", "0.500 (0.300 to 0.903)"]
    assert judges.rows[1][1:] == ["0", "0", "–", "–", "–", "–"], "no ranking was held out"
    assert policies.rows[0][:3] == ["1", "64 px", "Consistency (ground truth)"] and "+0.300" in policies.rows[0][5]
    assert policies.rows[1][2:] == ["Score by its reward model", "0.500", "0.600", "+0.100 (+0.020 to –)"]
    assert drift.rows[0] == ["1", "64 px", "–", "–", "+0.070 (+0.010 to +0.130)"]
    assert drift.rows[1][-1] == "no hack_meter in the recipe"
    assert [len(table.rows) for table in read_tables(before)] == [1, 2, 1], "what was written before stays"
    assert first.metrics()["judge.reward.best_above_worst"] == pytest.approx(2 / 3)
    assert not any(math.isnan(value) for name, value in first.metrics().items() if not name.endswith(("_low", "_high")))
