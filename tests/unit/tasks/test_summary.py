"""The few figures of a training that matter first."""

from __future__ import annotations

from paco_core.config.measures import IMAGE_CONTENT
from paco_core.stages import policies
from paco_core.tasks.base import Success
from paco_core.tasks.sets import SETS
from paco_core.tasks.training import Summary


def test_a_painters_summary_names_its_goal_guard_ratio_and_drift() -> None:
    summary = Summary(SETS.success("storybook"), 128)
    begun = {"eval/64/gold_consistency": 0.9, "eval/128/gold_consistency": 0.4, "eval/128/gold_following": 0.8}
    first = summary.of({**begun, "change/128/gold_consistency": 0.0})
    assert first == {"Summary/goal": 0.4, "Summary/guard": 0.8, "Summary/goal_change": 0.0}
    assert summary.of({"reward_ratio": 0.7, "reward/consistency": 0.5}) == {"Summary/reward_ratio": 0.7}
    later = summary.of({"change/128/gold_consistency": 0.3, "eval/128/panel_diversity": 0.2})
    assert later == {"Summary/goal_change": 0.3, "Summary/panel_diversity": 0.2}
    assert summary.last == {**first, "Summary/reward_ratio": 0.7, **later}
    drift = summary.of({"eval/64/drift": 0.1, "eval/128/drift": 0.2, "eval/128/drift_low": 0.0, "agreement": 0.9})
    assert drift == {"Summary/agreement": 0.9, "Summary/drift": 0.2, "Summary/drift_low": 0.0}
    assert Summary(Success("x"), 64).of({}) == {}
    assert summary.sources["Summary/goal"] == "eval/128/gold_consistency"
    assert policies.STAGE.view is not None
    assert drift.keys() <= {metric for metric, _kind in policies.STAGE.view.charts}


def test_mlflow_gets_each_metric_of_a_training_once() -> None:
    sets = ("consistency", "clip_t", "gold_consistency", "gold_following", "panel_diversity")
    meter = ("grid_score", "start_distance", "drift_prompts", *IMAGE_CONTENT)
    gains = [f"{gain}{end}" for gain in ("trained_gain", "held_out_gain", "drift") for end in ("", "_low", "_high")]
    values = {f"eval/{side}/{name}" for side in (64, 128) for name in (*sets, *meter, *gains, "consistency/2x2")}
    values |= {f"change/{side}/{name}{end}" for side in (64, 128) for name in sets for end in ("", "_low", "_high")}
    values |= {f"{group}/{name}" for group in ("gap", "tamed", "reward", "variation") for name in sets[:2]}
    values |= {"reward_ratio", "agreement", "panel_diversity", "update/loss", "groups/zero_std", "seconds/sample"}
    distinct = {name: float(number) for number, name in enumerate(sorted(values))}
    tracked = Summary(SETS.success("storybook"), 128).tracked(distinct)
    assert len(set(tracked.values())) == len(tracked) <= 45, "two names of one value"
    assert {"eval/64/gold_consistency", "eval/128/consistency", "reward/clip_t", "update/loss"} <= tracked.keys()
    assert tracked["Summary/goal"] == distinct["eval/128/gold_consistency"]
    assert tracked["Summary/goal_change_low"] == distinct["change/128/gold_consistency_low"]
    assert tracked["Summary/drift"] == distinct["eval/128/drift"] and "eval/64/drift" not in tracked
    assert tracked["Summary/edge_density"] == distinct["eval/128/edge_density"]
    assert "eval/64/edge_density" not in tracked
    assert not [name for name in tracked if name.startswith(("change/", "gap/", "tamed/"))]
