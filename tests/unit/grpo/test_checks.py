"""Checks of a finished training: no collapse, and one bound of the ratio for training, promotion and Dagster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from paco_core.config import profiles
from paco_core.config.params import PolicyRecipe, parse
from paco_core.grpo import checks
from paco_core.io.check_report import CheckReport
from paco_core.io.files import DataError
from paco_core.operations import promote as promotion
from paco_core.stages.policies import STAGE
from paco_core.training.log import write_log
from tests.support.grpo_toys import recipe


def test_a_collapse_is_found() -> None:
    def log(kept: float) -> list[dict[str, float]]:
        return [{"eval/64/panel_diversity": 0.3}, {"update/ratio_gap": 0.0}, {"eval/64/panel_diversity": 0.3 * kept}]

    assert checks.collapse(log(0.9), [64]).passed and not checks.collapse(log(0.4), [64]).passed


@pytest.mark.parametrize(
    ("first", "last", "passed", "severity"),
    [
        (0.0, 0.0, False, "WARN"),  # copies before and after: there was nothing to lose
        (1e-9, 0.0, False, "WARN"),  # a share of rounding is no share
        (0.0, 0.3, True, "ERROR"),
        (0.3, 0.0, False, "ERROR"),
    ],
)
def test_no_share_is_taken_of_a_first_diversity_of_nothing(
    first: float, last: float, passed: bool, severity: str
) -> None:
    rows = [{"eval/64/panel_diversity": first}, {"eval/64/panel_diversity": last}]
    report = checks.collapse(rows, [64])
    assert (report.passed, report.severity) == (passed, severity)
    both = checks.collapse([row | {"eval/128/panel_diversity": 0.3} for row in rows], [64, 128])
    assert both.metadata["diversity_kept_128px"] == 1.0 and (both.passed, both.severity) == (passed, severity)


def test_log_is_read_back(tmp_path: Path) -> None:
    rows = [{"epoch": 0.0, "eval/64/a": 0.5}, {"epoch": 1.0, "b": 2.0}]
    write_log(tmp_path / "log.csv", rows)
    assert checks.read_log(tmp_path / "log.csv") == rows
    with pytest.raises(DataError, match="no such file"):
        checks.read_log(tmp_path / "nothing.csv")


def settings(**changes: Any) -> PolicyRecipe:
    return recipe(**{"dtype": "bfloat16", **changes})


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
    report = checks.ratio_before_update(rows, settings(**changes))
    assert (report.passed, report.severity) == (passed, severity), report.description
    assert passed or "old_log_prob: recomputed" in report.description
    assert passed or severity == "WARN" or gap > checks.max_ratio_gap(settings(**changes))


def test_a_log_without_the_figure_fails() -> None:
    assert not checks.ratio_before_update([{}], settings()).passed


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


@pytest.mark.parametrize("profile", ["storybook", "paper", "published", "one_gpu", "gpu_24gb", "klein"])
def test_every_profile_bounds_the_gap_by_its_clip_range(repository: Path, profile: str) -> None:
    for rule in parse(profiles.resolve(repository, profile)).policies.recipes.values():
        assert checks.max_ratio_gap(rule) == pytest.approx(3 * rule.clip_range)
