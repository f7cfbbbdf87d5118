"""Metrics reach MLflow once and in full, whatever the store or the process does meanwhile."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from PIL import Image

from paco_core.runtime.tracking import count_journals, delivery, open_run, send_left_over
from paco_core.runtime.tracking.journal import FOLDER, RunJournal, journals
from tests.support.tracked import history, runs, store
from tests.support.waiting import until


class Outage:
    """Lets every request fail, before it is done or after (its answer is lost)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down, self.answer_lost = False, False
        real = delivery.Delivery._deliver

        def flaky(this: delivery.Delivery, events: list[dict[str, Any]]) -> None:
            if self.down:
                raise MlflowException("API request failed with exception: connection refused")
            real(this, events)
            if self.answer_lost:
                self.answer_lost = False
                raise MlflowException("API request failed with timeout exception")

        monkeypatch.setattr(delivery.Delivery, "_deliver", flaky)


def test_all_kinds_arrive_and_the_journal_is_removed(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.1")
    (project / "page.html").write_text("page")
    with open_run(project, "paco/x", "x", {"profile": "smoke"}) as tracker:
        tracker.params({"grpo": {"lr": 0.1}})
        tracker.metrics({"loss": 1.0, "share": float("nan")}, 3)
        tracker.image(Image.new("RGB", (8, 8), "red"), "eval/64px", 3)
        tracker.artifact(project / "page.html")
        tracker.text("words", "notes/a.txt")
        tracker.dataset("grids", "data/grids", "ab.dir")
        tracker.external_model("paco-x", Path("data/policies/x"), {"dvc.md5": "cd"})
        (project / "page.html").write_text("changed later")
        run_id, client = str(tracker.run_id), store(project)
        until(lambda: "system/system_memory_usage_megabytes" in client.get_run(run_id).data.metrics)
    run = runs(project)["x"]
    assert run.info.run_id == tracker.run_id and str(tracker.url).endswith(f"/runs/{tracker.run_id}")
    assert run.info.status == "FINISHED" and run.data.params == {"grpo.lr": "0.1"}
    assert history(project, run.info.run_id) == [(3, 1.0)]
    assert run.inputs.dataset_inputs[0].dataset.digest == "ab.dir" and run.data.tags["paco.model_id"]
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.model_id, model.name) == (run.data.tags["paco.model_id"], "paco-x")
    assert {i.path for i in client.list_artifacts(run.info.run_id)} == {"images", "notes", "page.html"}
    assert Path(client.download_artifacts(run.info.run_id, "page.html")).read_text() == "page"
    assert len(client.list_artifacts(run.info.run_id, "images")) == 2  # full size and small
    monkeypatch.setenv("PACO_TRACKING", "off")
    with open_run(project, "paco/x", "off", {}) as tracker:
        tracker.metrics({"loss": 1.0})
    assert list((project / FOLDER).iterdir()) == [] and runs(project).keys() == {"x"}


@pytest.mark.slow
def test_a_store_that_goes_down_in_mid_run_gets_all_when_it_is_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, messages = Outage(monkeypatch), list[str]()
    with open_run(project, "paco/x", "x", {}, print_line=messages.append) as tracker:
        assert tracker.run_id
        outage.down = True
        for step in range(2001):
            tracker.metrics({"loss": float(step)}, step)
        (journal,) = journals(project)
        until(lambda: "connection refused" in journal.delivered().outage)
        outage.down = False
        until(lambda: not journal.delivered().outage)
    assert history(project, runs(project)["x"].info.run_id) == [(s, float(s)) for s in range(2001)]
    assert messages == [] and count_journals(project) == 0


@pytest.mark.slow
def test_a_store_that_stays_down_is_not_waited_for_and_the_next_run_sends_all(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, messages = Outage(monkeypatch), list[str]()
    outage.down = True
    with open_run(project, "paco/x", "first", {}, print_line=messages.append) as tracker:
        tracker.metrics({"loss": 1.0}, 0)
        tracker.image(Image.new("RGB", (8, 8)), "sheet", 0)
        assert tracker.run_id is None and tracker.url is None
    assert len(messages) == 1 and "4 events" in messages[0] and "connection refused" in messages[0]
    outage.down = False
    with open_run(project, "paco/x", "second", {}):
        until(lambda: count_journals(project) == 1)  # its own
    first, second = runs(project)["first"], runs(project)["second"]
    assert first.info.status == "FINISHED" and first.data.metrics == {"loss": 1.0}
    assert first.info.end_time < second.info.start_time, "times are those of the events"


@pytest.mark.slow
def test_lost_answers_double_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch)
    outage.answer_lost = True  # of the run's creation
    with open_run(project, "paco/x", "x", {}) as tracker:
        (journal,) = journals(project)
        until(lambda: journal.delivered().run_id is not None)
        for number, kind in enumerate(("metrics", "image"), start=1):
            until(lambda: journal.delivered().offset == journal.size())
            outage.answer_lost = True
            tracker.metrics({"loss": 1.0}, 7) if kind == "metrics" else tracker.image(Image.new("L", (8, 8)), "a", 7)
            until(lambda number=number: journal.delivered().failed > number)  # type: ignore[misc]
    # A stage does not wait for a store that failed at its end: the next one sends the rest.
    until(lambda: send_left_over(project).waiting == 0 and count_journals(project) == 0)
    run = runs(project)["x"]
    assert history(project, run.info.run_id) == [(7, 1.0)]
    assert len(store(project).list_artifacts(run.info.run_id, "images")) == 2


def test_what_the_store_refuses_is_kept_with_its_reason_and_stops_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages = list[str]()
    real = delivery.Delivery._log_batch

    def picky(this: delivery.Delivery, events: list[dict[str, Any]]) -> None:
        if any("bad" in event["values"] for event in events):
            raise MlflowException("no such name", error_code=INVALID_PARAMETER_VALUE)
        real(this, events)

    monkeypatch.setattr(delivery.Delivery, "_log_batch", picky)
    with open_run(project, "paco/x", "x", {}, print_line=messages.append) as tracker:
        for name in ("a", "bad", "c"):
            tracker.metrics({name: 1.0})
        tracker.image(Image.new("L", (8, 8)), "no:such:key")
    run = runs(project)["x"]
    assert run.info.status == "FINISHED" and run.data.metrics == {"a": 1.0, "c": 1.0}
    (events,) = (project / FOLDER / "refused").glob("*/events.jsonl")
    rejected_events = [json.loads(line) for line in events.read_text().splitlines()]
    assert rejected_events[0]["values"] == {"bad": 1.0} and "no such name" in rejected_events[0]["refused"]
    assert (events.parent / rejected_events[1]["file"]).is_file()
    assert len(messages) == 1 and "2 events" in messages[0] and str(events.parent) in messages[0]


@pytest.mark.slow
def test_a_deleted_experiment_is_named_with_the_remedy_which_works(project: Path) -> None:
    with open_run(project, "paco/x", "x", {}):
        pass
    client, messages = store(project), list[str]()
    number = client.get_experiment_by_name("paco/x").experiment_id
    client.delete_experiment(number)
    with open_run(project, "paco/x", "y", {}, print_line=messages.append) as tracker:
        tracker.metrics({"b": 2.0})
    assert f"mlflow experiments restore --experiment-id {number}" in " ".join(messages)
    client.restore_experiment(number)
    with open_run(project, "paco/x", "z", {}):
        until(lambda: "y" in runs(project) and runs(project)["y"].data.metrics == {"b": 2.0})


def test_kill_minus_nine_loses_nothing_that_was_logged(project: Path) -> None:
    code = f"""
        from pathlib import Path
        from paco_core.runtime import tracking
        tracking.sender.start = lambda *_args: None  # nothing is sent before the kill
        with tracking.open_run(Path({str(project)!r}), "paco/x", "x", {{}}) as tracker:
            for step in range(100):
                tracker.metrics({{"loss": float(step)}}, step)
            print("logged", flush=True)
            input()
    """
    stage = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert stage.stdout is not None and stage.stdout.readline() == "logged\n"
    assert send_left_over(project).runs == 0, "the journal of a living process is left alone"
    stage.send_signal(signal.SIGKILL)
    stage.wait(30)
    (journal,) = journals(project)
    with journal.events.open("a") as stream:
        stream.write('{"kind": "metrics", "va')  # the kill hit in the middle of a line
    assert send_left_over(project).events == 102
    run = runs(project)["x"]
    assert run.info.status == "KILLED" and len(history(project, run.info.run_id)) == 100
    assert send_left_over(project).events == 0 and not journal.home.exists()
    never_begun = RunJournal.begin(project, {"kind": "run"})
    never_begun.events.write_text('{"kind": "ru')
    never_begun.close()
    assert send_left_over(project).waiting == 0 and not never_begun.home.exists()
