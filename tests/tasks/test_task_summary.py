"""The few figures of a training that matter first."""

from __future__ import annotations

import pytest

from paco_core.tasks.base import Success
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS
from paco_core.tasks.summary import Summary


def test_a_painters_summary_names_its_goal_guard_and_ratio() -> None:
    summary = Summary(SETS.success("storybook"), 128)
    begun = {"eval/64/gold_consistency": 0.9, "eval/128/gold_consistency": 0.4, "eval/128/gold_following": 0.8}
    found = summary.of(begun)
    assert list(found) == ["Summary/goal", "Summary/guard", "Summary/goal_change"]
    assert found == {"Summary/goal": 0.4, "Summary/guard": 0.8, "Summary/goal_change": 0.0}
    assert summary.of({"reward_ratio": 0.7, "reward/consistency": 0.5}) == {"Summary/reward_ratio": 0.7}
    later = summary.of({"eval/128/gold_consistency": 0.7, "eval/128/panel_diversity": 0.2})
    assert later["Summary/goal_change"] == pytest.approx(0.3) and later["Summary/panel_diversity"] == 0.2
    assert summary.last == {**found, "Summary/reward_ratio": 0.7, **later}


def test_where_nothing_guards_nothing_is_shown() -> None:
    summary = Summary(EDITS.success("published"), 64)
    assert summary.of({"eval/64/editing": 0.5}) == {"Summary/goal": 0.5, "Summary/goal_change": 0.0}
    assert Summary(Success("x"), 64).of({}) == {}
