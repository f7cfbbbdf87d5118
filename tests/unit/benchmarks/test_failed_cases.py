"""Cases without a score: how many a benchmark accepts, and what its means and differences are then over."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paco_core.benchmarks import generated, rankings
from paco_core.benchmarks.edit_changes import compare_edits
from paco_core.benchmarks.paired_changes import compare_changes
from paco_core.benchmarks.tables import signed
from paco_core.config.params import load
from paco_core.experiments import reproduction_summary
from paco_core.io.files import DataError
from paco_core.operations.promotion import decision
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.tasks.sets import SETS
from tests.support.grpo_toys import record

NAN = float("nan")
SCORES = {BEFORE: [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8], AFTER: [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, NAN, NAN]}


def table(**columns: Any) -> pd.DataFrame:
    """One image per prompt, before and after training; two of those after have no score."""
    rows = [
        {"policy": "p", "size": 64, "when": phase, "prompt_id": f"p{n}", "seed": 0, "editing": score, **columns}
        for phase, scores in SCORES.items()
        for n, score in enumerate(scores)
    ]
    return pd.DataFrame(rows)


def test_a_change_and_its_two_means_are_over_the_cases_that_both_have() -> None:
    result = compare_changes(table(), seeds=[0], steps=4, resamples=50)
    editing = result.changes["p"][64]["editing"]
    assert (editing.before.mean, editing.after.mean, editing.change.mean) == pytest.approx((0.35, 0.45, 0.1))
    assert editing.before.missing == editing.after.missing == editing.change.missing == 2
    assert result.metrics()["p.px64.editing.change_missing"] == 2
    assert signed(editing.change) == "+0.100 (+0.100 to +0.100), 2 missing"


def test_means_by_task_type_are_over_the_edits_that_both_have() -> None:
    rows = table(picture="a", task_type="colour", language="en").assign(picture=[f"p{n}" for n in range(8)] * 2)
    result = compare_edits(rows, seeds=[0], steps=4, resamples=50)
    assert result.by_task[0]["editing"] == pytest.approx([0.35, 0.45])


@pytest.mark.parametrize(("share", "accepted"), [(0.25, True), (0.2, False)])
def test_too_many_failed_images_of_one_mean_end_a_benchmark(share: float, accepted: bool) -> None:
    """2 of 8 images after training, which are 2 of 16 of all."""
    with nullcontext() if accepted else pytest.raises(DataError, match="editing of p at 64 px"):
        generated.validate_measures(table(), ["editing"], share, {})


def test_measuring_sets_counts_failures(monkeypatch: pytest.MonkeyPatch, repository: Path) -> None:
    def fails(_batch: Any) -> np.ndarray:
        return np.array([NAN, 0.5])

    fails.name, fails.causes = "consistency", {"no answer": 1}  # type: ignore[attr-defined]
    monkeypatch.setattr(generated, "set_measures", lambda *_args: [fails])
    monkeypatch.setattr(GeneratedImage, "panels", [])
    params = load(repository / "params.yaml").model_copy(update={"world": "published"})
    images = [GeneratedImage("p", 64, AFTER, record(n), 0, None) for n in range(2)]  # type: ignore[arg-type]
    with pytest.raises(DataError, match="consistency: no answer"):
        generated.measure_images(images, generated.Cases(SETS, [], [], 1), repository, params, repository)


def test_a_judge_that_fails_on_too_many_rankings_is_refused() -> None:
    judged = rankings.CandidateScores("base", [(0.1, 0.2), (NAN, 0.3), (0.1, 0.2)], Counter({"no answer": 1}))
    assert rankings.validate_scores(judged, 0.4) is judged
    with pytest.raises(DataError, match="base"):
        rankings.validate_scores(judged, 0.3)


def test_a_decision_shows_the_means_that_its_difference_is_of() -> None:
    sides = [
        pd.DataFrame({"prompt_id": [f"p{n}" for n in range(8)], "unit": 0, "accuracy": SCORES[phase]})
        for phase in (AFTER, BEFORE)
    ]
    rule = decision.Rule("accuracy", ())
    result = decision.decide("reward", rule, ("2", "b", sides[0]), ("1", "a", sides[1]), [], resamples=50)
    assert result.incumbent is not None and result.test is not None
    assert result.candidate.figures["accuracy"] - result.incumbent.figures["accuracy"] == pytest.approx(0.1)
    assert result.test.difference == pytest.approx(0.1) and result.metrics()["difference/accuracy_missing"] == 2


def test_a_group_with_a_failed_case_has_no_mean_in_a_reproduction(tmp_path: Path) -> None:
    """Else the group's mean after training would be over other seeds than that before."""
    rows = [("after", "p0", 0, 0.2), ("after", "p0", 1, NAN), ("after", "p1", 0, 0.4), ("after", "p1", 1, 0.6)]
    table = pd.DataFrame(rows, columns=["when", "prompt_id", "seed", "x"]).assign(policy="flux", size=64)
    table.to_parquet(tmp_path / "per_prompt.parquet")
    result, task = SimpleNamespace(folder=lambda _path: tmp_path), SimpleNamespace(results=Path(), group="prompt_id")
    means = reproduction_summary._cases(result, "flux", task)["x"]  # type: ignore[arg-type]
    assert math.isnan(means["after", 64, "p0"]) and means["after", 64, "p1"] == 0.5
