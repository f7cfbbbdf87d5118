"""Checks of a finished training: no collapse, and one bound of the ratio for training, promotion and Dagster."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from paco_core.config import profiles
from paco_core.config.params import parse
from paco_core.grpo import checks
from paco_core.io.check_report import CheckReport
from paco_core.operations import promote as promotion
from paco_core.stages.policies import STAGE
from tests.support.grpo_toys import recipe


@pytest.mark.parametrize(
    ("first", "last", "passed", "severity"),
    [
        (0.3, 0.27, True, "ERROR"),
        (0.3, 0.12, False, "ERROR"),
        (0.0, 0.0, False, "WARN"),  # copies before and after: there was nothing to lose
        (1e-9, 0.0, False, "WARN"),  # a share of rounding is no share
        (0.0, 0.3, True, "ERROR"),
        (0.3, 0.0, False, "ERROR"),
    ],
)
def test_a_collapse_is_found_by_the_share_of_the_first_diversity(
    first: float, last: float, passed: bool, severity: str
) -> None:
    rows = [{"eval/64/panel_diversity": first}, {"update/ratio_gap": 0.0}, {"eval/64/panel_diversity": last}]
    report = checks.collapse(rows, [64])
    assert (report.passed, report.severity) == (passed, severity)
    one_panel = [{"eval/64/panel_diversity": math.nan}] * 2
    assert checks.collapse(one_panel, [64]).passed
    report = checks.collapse([row | {"eval/128/panel_diversity": 0.3} for row in rows], [64, 128])
    assert report.metadata["diversity_kept_128px"] == 1.0 and (report.passed, report.severity) == (passed, severity)


@pytest.mark.parametrize(
    ("gap", "share", "changes", "passed", "severity"),
    [
        (1e-4, 0.0, {}, True, "ERROR"),
        (4e-4, 0.01, {}, False, "ERROR"),
        (4e-4, 0.01, {"dtype": "float32"}, False, "ERROR"),
        (4e-4, 0.0, {"clip_range": 1e-3}, True, "ERROR"),
        (4e-4, 0.01, {"max_ratio_gap": 1e-3}, True, "ERROR"),  # what training accepted
        (2.5e-4, 0.06, {}, False, "WARN"),
        (0.3, 1.0, {"loss": "nft"}, True, "ERROR"),
    ],
)
def test_the_check_accepts_what_training_does(
    gap: float, share: float, changes: dict[str, Any], passed: bool, severity: str
) -> None:
    rows = [{"update/ratio_gap": 0.0}, {"update/ratio_gap": gap, "update/first_clip_fraction": share}]
    rule = recipe(**{"dtype": "bfloat16", **changes})
    report = checks.ratio_before_update(rows, rule)
    assert (report.passed, report.severity) == (passed, severity), report.description
    assert passed or "old_log_prob: recomputed" in report.description
    assert not checks.ratio_before_update([{}], recipe()).passed, "a log without the metric"


def test_promotion_and_dagster_ask_the_same(repository: Path, tmp_path: Path) -> None:
    """A run that trained within max_ratio_gap is promoted; one that did not blocks both."""
    (check,) = (check for check in STAGE.checks if check.name == "ratio_is_one_before_update")
    (shared,) = (check for check in STAGE.checks if check.name == "gain_is_shared")
    tree = profiles.resolve(repository, "storybook")
    log = tmp_path / "data" / "policies" / "flux_t2is" / "training_log.csv"
    log.parent.mkdir(parents=True)
    log.write_text("epoch,eval/64/panel_diversity,update/ratio_gap\n0,0.3,\n1,0.3,0.02\n")

    def gate(limit: float | None) -> CheckReport:
        tree["policies"]["defaults"]["max_ratio_gap"] = limit
        return promotion.gates(tmp_path, parse(tree), "flux_t2is", log.parent)[1]

    assert not gate(None).passed and gate(0.03).passed
    (tmp_path / "params.yaml").write_text(json.dumps(tree))
    assert [report.severity for report in check.reports(tmp_path, "flux_t2is")] == ["ERROR"]
    assert [report.severity for report in shared.reports(tmp_path, "flux_t2is")] == ["WARN"], "it stops promotion alone"
