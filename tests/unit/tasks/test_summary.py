"""The few figures of a training that matter first."""

from __future__ import annotations

from dagster_dvc.metrics import arrange_metrics
from paco_core.stages import policies
from paco_core.tasks.base import Success
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.training import Summary


def test_a_painters_summary_names_its_goal_guard_and_ratio() -> None:
    summary = Summary(SETS.success("storybook"), 128)
    begun = {"eval/64/gold_consistency": 0.9, "eval/128/gold_consistency": 0.4, "eval/128/gold_following": 0.8}
    found = summary.of({**begun, "change/128/gold_consistency": 0.0})
    assert found == {"Summary/goal": 0.4, "Summary/guard": 0.8, "Summary/goal_change": 0.0}
    assert summary.of({"reward_ratio": 0.7, "reward/consistency": 0.5}) == {"Summary/reward_ratio": 0.7}
    later = summary.of({"change/128/gold_consistency": 0.3, "eval/128/panel_diversity": 0.2})
    assert later == {"Summary/goal_change": 0.3, "Summary/panel_diversity": 0.2}
    assert summary.last == {**found, "Summary/reward_ratio": 0.7, **later}


def test_where_nothing_guards_nothing_is_shown() -> None:
    summary = Summary(EDITS.success("published"), 64)
    assert summary.of({"eval/64/editing": 0.5}) == {"Summary/goal": 0.5}
    assert Summary(Success("x"), 64).of({}) == {}


def test_with_a_hack_meter_drift_stands_among_the_first_figures() -> None:
    figures = {
        f"eval/{side}/{name}": side / 1000 for side in (64, 128) for name in ("drift", "drift_low", "drift_high")
    }
    found = Summary(SETS.success("storybook"), 128).of({**figures, "agreement": 0.9, "eval/128/gold_consistency": 0.4})
    assert found == {
        "Summary/agreement": 0.9, "Summary/drift": 0.128, "Summary/drift_low": 0.128, "Summary/goal": 0.4,
    }  # fmt: skip
    assert policies.STAGE.view is not None
    charts = [metric for metric, _kind in policies.STAGE.view.charts]
    assert {"Summary/agreement", "Summary/drift", "Summary/drift_low"} <= set(charts)
    shown = list(
        arrange_metrics(
            {"eval.64.x.change": 1.0, "epochs": 3, "eval.64.drift.change": 0.1}, policies.STAGE.headline, ""
        )
    )
    assert shown.index("Δ eval.64.drift") < shown.index("epochs")
