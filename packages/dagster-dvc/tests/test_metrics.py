"""Metrics on a page: the headline first, the rest in tables, all of them unrounded, too."""

from __future__ import annotations

from typing import Any

import dagster as dg
import pytest

from dagster_dvc.metrics import ALL_METRICS, arrange_metrics, rounded

PAIRED = {
    "prompts": 48,
    "p.px64.gold.before": 0.4222222,
    "p.px64.gold.after": 0.6481481,
    "p.px64.gold.change": 0.2259259,
    "p.px64.gold.change_low": 0.1611111,
    "p.px64.gold.change_high": 0.2925925,
    "p.px64.gold.change_p": 0.0001234567,
    "p.px64.clip.before": 0.5,
    "p.px64.clip.after": 0.25,
    "gain": 0.25,
    "gain_low": 0.1,
    "gain_high": 0.4,
}


def rows(metadata: dict[str, Any], name: str) -> list[dict[str, Any]]:
    value = metadata[name]
    assert isinstance(value, dg.TableMetadataValue)
    assert [column.name for column in value.schema.columns] == list(value.records[0].data)
    return [dict(record.data) for record in value.records]


def test_before_and_after_are_one_row() -> None:
    metadata = arrange_metrics(PAIRED, [("*.gold.change",)], "t2is")
    assert list(metadata) == ["Δ p.px64.gold", "prompts", "before_and_after", "with_intervals", ALL_METRICS]
    assert rows(metadata, "with_intervals") == [{"figure": "gain", "value": 0.25, "low": 0.1, "high": 0.4}]
    assert (metadata["Δ p.px64.gold"], metadata["prompts"]) == (0.2259, 48)
    gold, clip = rows(metadata, "before_and_after")
    assert gold == {
        "figure": "p.px64.gold", "before": 0.4222, "after": 0.6481, "change": 0.2259,
        "low": 0.1611, "high": 0.2926, "p": 0.0001235,
    }  # fmt: skip
    assert clip == {
        "figure": "p.px64.clip", "before": 0.5, "after": 0.25, "change": "", "low": "", "high": "", "p": "",
    }  # fmt: skip
    assert metadata[ALL_METRICS].data == PAIRED


def test_figures_without_an_owner_are_those_of_the_stage() -> None:
    metadata = arrange_metrics({"accuracy": 0.75, "base.accuracy": 0.5, "steps": 9.0}, [], "reward_lora")
    assert rows(metadata, "side_by_side") == [{"of": "reward_lora", "accuracy": 0.75}, {"of": "base", "accuracy": 0.5}]
    assert [key for key in metadata if key != ALL_METRICS] == ["steps", "side_by_side"]


def test_no_figure_is_lost_whatever_the_names() -> None:
    odd = {"x.before": 1, "y.after": 2, "z_low": 3, "z": 4, "a.b.before": 5, "a.b.after": 6, "a.b": 7, "before": 8}
    metadata = arrange_metrics(odd, [], "s")
    names = {key for key in metadata if key in odd}
    names |= {f"{row['figure']}.{end}" for row in rows(metadata, "before_and_after") for end in ("before", "after")}
    names |= {
        f"{row['of']}.{end}" for row in rows(metadata, "side_by_side") for end in set(row) - {"of"} if row[end] != ""
    }
    assert {name.removeprefix("s.") for name in names} == set(odd) and metadata[ALL_METRICS].data == odd


def test_of_alternatives_the_first_that_fits() -> None:
    figures = {"64.editing.change": 0.1, "64.gold_editing.change": 0.2}
    headline = [("*.gold_consistency.change", "*.gold_editing.change", "*.editing.change"), ("none",)]
    assert next(iter(arrange_metrics(figures, headline, "policies"))) == "Δ 64.gold_editing"
    assert arrange_metrics({}, headline, "policies") == {}


@pytest.mark.parametrize(
    ("value", "expected"),
    [(24.0, 24), (7, 7), (0.0, 0), (1.90734863e-05, 1.907e-05), (-1234.5678, -1235.0), (1e300, 1e300)],
)
def test_four_digits_are_shown(value: float, expected: float) -> None:
    assert rounded(value) == pytest.approx(expected)
