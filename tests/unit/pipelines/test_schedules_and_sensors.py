"""Champions and nights are materialised, and people are told of a worse one."""

import asyncio
import json
import time
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, patch

import dagster as dg
import pytest
from dagster._core.definitions.freshness_evaluator import FRESHNESS_EVALUATORS_BY_POLICY_TYPE
from dagster._core.storage.event_log.base import AssetRecord

from paco_core.operations.promotion.decision import Decision, Rule, Side
from paco_core.operations.promotion.paired import Paired
from paco_pipelines.defs import operations, sensors
from pipelines.definitions import defs

WORSE = Paired(-0.1, -0.2, -0.05, 24, 48, 0)


def test_housekeeping_reaps(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.serving.servers.registry import FOLDER

    lease = project / FOLDER / "paco-reward@abc" / "leases" / "1-gone"
    lease.parent.mkdir(parents=True)
    lease.touch()
    monkeypatch.setattr(sensors, "ROOT", project)
    with dg.DagsterInstance.ephemeral() as instance:
        message = sensors.housekeeping.evaluate_tick(dg.build_sensor_context(instance=instance)).skip_message
    assert "lease 1-gone expired" in str(message) and not lease.exists()


def failed_night(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance, test: Paired
) -> dg.ExecuteInProcessResult:
    """A night in which the reward's figures changed by ``test``."""
    from paco_core.operations import reevaluation

    def night(_root: Path, name: str, **_options: object) -> reevaluation.Reevaluation:
        subject = reevaluation.Subject(name, Path(), "ab.dir", "3")
        figures = {"fixed/accuracy": 0.4}
        return reevaluation.Reevaluation(
            subject, Rule("accuracy", ()), figures, "2026-01-01", "ab.dir", test, None, "http://x"
        )

    monkeypatch.setattr(reevaluation, "reevaluate", night)
    monkeypatch.setattr(reevaluation, "policies", lambda _root: ["flux_t2is"])
    job = defs.get_repository_def().get_job("reevaluation")
    return job.execute_in_process(instance=instance, raise_on_error=False)


def test_a_worse_night_fails_its_check_and_its_run_and_people_are_told(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sensors, "ROOT", project)
    with dg.DagsterInstance.ephemeral() as instance:
        good = failed_night(monkeypatch, instance, Paired(0.0, -0.01, 0.01, 24, 48, 0))
        assert good.success and all(e.passed for e in good.get_asset_check_evaluations())
        bad = failed_night(monkeypatch, instance, WORSE)
        assert not bad.success
        (first, *_) = bad.get_asset_check_evaluations()
        assert not first.passed and first.severity is dg.AssetCheckSeverity.ERROR
        failure = next(e for e in bad.all_events if e.event_type is dg.DagsterEventType.RUN_FAILURE)
        context = dg.build_run_status_sensor_context(
            sensor_name="alert_on_failure",
            dagster_event=failure,
            dagster_instance=instance,
            dagster_run=bad.dagster_run,
        ).for_run_failure()
        sensors.alert_on_failure(context)
    (line,) = [json.loads(text) for text in (project / ".paco/alerts.jsonl").read_text().splitlines()]
    assert line["title"] == "reevaluation failed" and "accuracy changed by -0.1000" in line["text"]
    assert bad.dagster_run.run_id in line["link"]


def test_the_decision_is_the_metadata_of_the_champion(monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.operations import promote as command
    from paco_core.operations.promotion import champions

    sides = Side("2", "b", {"gold_consistency": 0.7}), Side("1", "a", {"gold_consistency": 0.6})
    test = Paired(0.1, -0.02, 0.2, 24, 48, 0)
    decision = Decision("flux_t2is", False, "said why", Rule("gold_consistency", ()), *sides, (), test)
    champion = champions.Version("flux_t2is", "1", "p", "a", None, None, "")
    monkeypatch.setattr(champions, "Champions", lambda _root: SimpleNamespace(at=lambda *_args: champion))
    monkeypatch.setattr(command, "promote", lambda _root, name, log: decision)
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([operations.champion_policies], partition_key="flux_t2is", instance=instance)
    (event,) = result.asset_materializations_for_node("champion__policies")
    metadata = {key: value.value for key, value in event.metadata.items()}
    assert metadata["promoted"] is False and metadata["difference"] == 0.1
    assert (metadata["candidate/gold_consistency"], metadata["incumbent/gold_consistency"]) == (0.7, 0.6)
    assert (event.tags or {})["dagster/data_version"] == "a", "the champion's, not the candidate's"


def test_an_audit_that_finds_other_bytes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.operations import audit

    failed_audit = audit.Audit(
        (audit.Audited("pairs", "data/pairs", "a.dir", "b.dir"),), {"policies": "needs the pool gpu"}, {}
    )
    monkeypatch.setattr(audit, "audit", lambda _root, log: failed_audit)
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([operations.audit_reproducibility], instance=instance, raise_on_error=False)
    (check,) = result.get_asset_check_evaluations()
    assert not result.success and check.description == "data/pairs: recorded a.dir, made again b.dir"


@pytest.mark.parametrize(
    ("key", "interval"),
    [
        ("nightly/reward", timedelta(days=1)),
        ("nightly/policies", timedelta(days=1)),
        ("audit/reproducibility", timedelta(days=7)),
    ],
)
def test_an_asset_whose_schedule_is_off_becomes_overdue(key: str, interval: timedelta) -> None:
    """Dagster's evaluator warns between one and two intervals after the last run, and fails before the third."""
    node = defs.get_repository_def().asset_graph.get(dg.AssetKey(key.split("/")))
    policy = node.freshness_policy_or_from_metadata
    assert policy is not None
    evaluator = FRESHNESS_EVALUATORS_BY_POLICY_TYPE[type(policy)]()

    def state(age: timedelta) -> str:
        event = SimpleNamespace(timestamp=time.time() - age.total_seconds())
        record = SimpleNamespace(asset_entry=SimpleNamespace(last_materialization=event))
        with patch.object(AssetRecord, "gen", AsyncMock(return_value=record)):
            return asyncio.run(evaluator.evaluate_freshness(None, node)).value  # type: ignore[arg-type]

    ages = (0.9 * interval, interval + timedelta(hours=5), 1.9 * interval, 2.5 * interval)
    assert [state(age) for age in ages] == ["PASS", "WARN", "WARN", "FAIL"]
