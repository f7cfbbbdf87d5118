"""The versions of an asset in Dagster's event log, and whether its figures moved."""

from __future__ import annotations

import dagster as dg
import pytest

from paco_core.benchmarks.checks import figures_hold
from paco_pipelines.defs.checks import last_two_versions

KEY = dg.AssetKey("bench")


def _report_gain(instance: dg.DagsterInstance, digest: str, gain: float) -> None:
    tags = {"dvc/lock_digest": digest}
    instance.report_runless_asset_event(dg.AssetMaterialization(KEY, metadata={"gain": gain, "n": "words"}, tags=tags))


def test_the_version_before_is_of_another_run() -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        assert last_two_versions(instance, KEY) == ({}, None)
        _report_gain(instance, "a", 0.1)
        assert last_two_versions(instance, KEY) == ({"gain": 0.1}, None)
        _report_gain(instance, "b", 0.2)
        _report_gain(instance, "b", 0.2)  # found unchanged
        assert last_two_versions(instance, KEY) == ({"gain": 0.2}, {"gain": 0.1})


def test_figures_that_the_page_shows_in_tables_count_unrounded() -> None:
    exact = {"t.change": 0.123456, "t.change_low": 0.1}
    metadata = {"t.change": 0.1235, "dvc/figures": dg.MetadataValue.json(exact), "dvc/seconds": 3.0}
    with dg.DagsterInstance.ephemeral() as instance:
        instance.report_runless_asset_event(
            dg.AssetMaterialization(KEY, metadata=metadata, tags={"dvc/lock_digest": "a"})
        )
        assert last_two_versions(instance, KEY) == (exact, None)


def _figures(gain: float, width: float = 0.1) -> dict[str, float | None]:
    return {"gain": gain, "gain_low": gain - width, "gain_high": gain + width, "alone": 1.0}


@pytest.mark.parametrize(("before", "holds"), [(0.30, True), (0.49, True), (0.52, False), (0.08, False)])
def test_a_figure_moves_when_the_intervals_part(before: float, holds: bool) -> None:
    report = figures_hold(_figures(0.30), _figures(before))
    assert report.passed is holds and report.metadata["compared"] == 1
    assert holds or f"gain {before:.3f} -> 0.300" in report.description
