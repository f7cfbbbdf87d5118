"""Every schedule and sensor is ticked; champions and nights are materialised."""

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from paco_core.operations.promotion.decision import Decision, Rule, Side
from paco_core.operations.promotion.paired import Paired
from paco_pipelines.defs import operations, sensors
from pipelines.definitions import defs

WORSE = Paired(-0.1, -0.2, -0.05, 24, 48, 0)


def tick(name: str) -> Any:
    schedule = defs.get_repository_def().get_schedule_def(name)
    context = dg.build_schedule_context(scheduled_execution_time=datetime(2026, 1, 4, 5, tzinfo=UTC))
    return schedule.evaluate_tick(context)


@pytest.mark.parametrize("name", ["nightly_reevaluation", "weekly_audit"])
def test_schedules_ask_for_a_run(name: str) -> None:
    (request,) = tick(name).run_requests
    assert request is not None


def test_the_endpoint_is_asked_only_while_one_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.serving.servers import registry

    monkeypatch.setattr(registry, "living", lambda _root: [])
    asleep = tick("endpoint_health_every_5_minutes")
    assert asleep.run_requests == [] and asleep.skip_message == "no server is up"
    monkeypatch.setattr(registry, "living", lambda _root: ["paco-reward@abc"])
    (request,) = tick("endpoint_health_every_5_minutes").run_requests
    assert request.tags["serving"] == "paco-reward@abc"


def test_housekeeping_reaps_and_sends(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.runtime import tracking
    from paco_core.serving.servers.registry import FOLDER

    lease = project / FOLDER / "paco-reward@abc" / "leases" / "1-gone"
    lease.parent.mkdir(parents=True)
    lease.touch()
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.0)
    monkeypatch.setattr(tracking.sender, "start", lambda *_args: None)  # nobody sends
    with tracking.open_run(project, "paco/x", "x", {}, say=lambda _line: None) as tracker:
        tracker.metrics({"loss": 1.0})
    monkeypatch.undo()
    monkeypatch.setattr(sensors, "ROOT", project)
    monkeypatch.chdir(project)

    def message() -> str:
        with dg.DagsterInstance.ephemeral() as instance:
            context = dg.build_sensor_context(instance=instance)
            return sensors.housekeeping.evaluate_tick(context).skip_message or ""

    said = message()
    assert "lease 1-gone expired" in said and "1 runs brought up to date (3 events)" in said
    assert not lease.exists() and message() == "nothing to clean up"


def failed_night(
    monkeypatch: pytest.MonkeyPatch, instance: dg.DagsterInstance, test: Paired
) -> dg.ExecuteInProcessResult:
    """A night in which the reward's figures changed by ``test``."""
    from paco_core.operations import reevaluation

    def night(_root: Path, name: str, **_more: object) -> reevaluation.Reevaluation:
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


@pytest.mark.parametrize("promoted", [True, False])
def test_the_decision_is_the_metadata_of_the_champion(promoted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.operations import promote as command
    from paco_core.operations.promotion import champions

    sides = [
        Side(version, md5, {"gold_consistency": figure}) for version, md5, figure in (("2", "b", 0.7), ("1", "a", 0.6))
    ]
    test = Paired(0.1, 0.02 if promoted else -0.02, 0.2, 24, 48, 0)
    made = Decision("flux_t2is", promoted, "said why", Rule("gold_consistency", ()), *sides, (), test)
    champion = champions.Version("flux_t2is", "2" if promoted else "1", "p", "b" if promoted else "a", None, None, "")
    asked: list[str] = []

    class Known:
        def __init__(self, _root: Path) -> None: ...

        at: Callable[..., Any] = lambda _self, *_args: champion

    monkeypatch.setattr(champions, "Champions", Known)
    monkeypatch.setattr(command, "promote", lambda _root, name, say: asked.append(name) or made)
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([operations.champion_policies], partition_key="flux_t2is", instance=instance)
    (event,) = done.asset_materializations_for_node("champion__policies")
    told = {key: value.value for key, value in event.metadata.items()}
    assert asked == ["flux_t2is"] and told["promoted"] is promoted and told["reason"] == "said why"
    assert (told["candidate/gold_consistency"], told["incumbent/gold_consistency"]) == (0.7, 0.6)
    assert told["difference"] == 0.1 and told["decision"]["test"]["high"] == 0.2
    assert (event.tags or {})["dagster/data_version"] == champion.md5


def test_an_audit_that_finds_other_bytes_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    from paco_core.operations import audit

    found = audit.Audit(
        (audit.Audited("pairs", "data/pairs", "a.dir", "b.dir"),), {"policies": "needs the pool gpu"}, {}
    )
    monkeypatch.setattr(audit, "audit", lambda _root, say: found)
    with dg.DagsterInstance.ephemeral() as instance:
        done = dg.materialize([operations.audit_reproducibility], instance=instance, raise_on_error=False)
    (check,) = done.get_asset_check_evaluations()
    assert not done.success and check.description == "data/pairs: recorded a.dir, made again b.dir"
