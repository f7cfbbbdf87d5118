"""Figures reach MLflow once and in full, whatever the store or the process does meanwhile."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
import types
from pathlib import Path
from typing import Any

import mlflow
import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE
from PIL import Image

from paco_core.runtime import tracking
from paco_core.runtime.tracking import delivery, open_run, send_left_over
from paco_core.runtime.tracking.journal import FOLDER, RunJournal
from paco_core.runtime.tracking.system import SystemMetrics
from tests.support.waiting import until


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    monkeypatch.setattr(tracking, "PATIENCE_S", 200.0)  # none of it is spent but on a busy machine


def only_run(project: Path) -> Any:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (run,) = client.search_runs([e.experiment_id for e in client.search_experiments()])
    return run


def history(project: Path, run_id: str, key: str) -> list[tuple[int, float]]:
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    return [(m.step, m.value) for m in client.get_metric_history(run_id, key)]


class Outage:
    """Makes every request fail for a while, before it is done or after (its answer is lost)."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down, self.answer_lost, self.failed = False, False, 0
        real = delivery.Delivery._deliver

        def flaky(this: delivery.Delivery, events: list[dict[str, Any]]) -> None:
            if self.down:
                self.failed += 1
                raise MlflowException("API request failed with exception: connection refused")
            real(this, events)
            if self.answer_lost:
                self.answer_lost, self.failed = False, self.failed + 1
                raise MlflowException("API request failed with timeout exception")

        monkeypatch.setattr(delivery.Delivery, "_deliver", flaky)


def test_all_kinds_arrive_and_the_journal_goes(project: Path) -> None:
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
    run = only_run(project)
    assert run.info.run_id == tracker.run_id and str(tracker.url).endswith(f"/runs/{tracker.run_id}")
    assert run.info.status == "FINISHED" and run.data.params == {"grpo.lr": "0.1"}
    assert history(project, run.info.run_id, "loss") == [(3, 1.0)]
    assert run.inputs.dataset_inputs[0].dataset.digest == "ab.dir" and run.data.tags["paco.model_id"]
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.model_id, model.name) == (run.data.tags["paco.model_id"], "paco-x")
    assert {i.path for i in client.list_artifacts(run.info.run_id)} == {"images", "notes", "page.html"}
    assert Path(client.download_artifacts(run.info.run_id, "page.html")).read_text() == "page"
    assert len(client.list_artifacts(run.info.run_id, "images")) == 2  # full size and small
    assert list((project / FOLDER).iterdir()) == []


def test_models_belong_to_the_experiment_of_their_run(project: Path) -> None:
    """Where `mlflow server` made the store, nobody but a server can store the files of "Default"."""
    with sqlite3.connect(project / "mlflow.db") as store:
        store.execute("update experiments set artifact_location = 'mlflow-artifacts:/0' where name = 'Default'")
    said = list[str]()
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        tracker.external_model("paco-x", Path("data/policies/x"), {"dvc.md5": "cd"})
    run = only_run(project)
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (model,) = client.search_logged_models([run.info.experiment_id])
    assert (model.name, model.tags["dvc.md5"], model.status) == ("paco-x", "cd", "READY")
    assert run.info.status == "FINISHED" and said == []


def test_a_file_that_a_healthy_store_never_takes_is_set_aside_and_the_run_ends(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: delivery.Delivery, _event: dict[str, Any]) -> None:
        raise MlflowException("no place for this")

    monkeypatch.setattr(delivery.Delivery, "_model", broken)
    said = list[str]()
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        tracker.external_model("paco-x", Path("data/policies/x"), {"dvc.md5": "cd"})
        tracker.metrics({"loss": 1.0})
    run = only_run(project)
    assert run.info.status == "FINISHED" and run.data.metrics == {"loss": 1.0}
    (kept,) = (project / FOLDER / "refused").glob("*/events.jsonl")
    assert "no place for this" in kept.read_text() and "MLflow refused model" in said[-1]


@pytest.mark.slow
def test_a_store_that_goes_down_in_mid_run_gets_all_when_it_is_back(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, said = Outage(monkeypatch), list[str]()
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        tracker.metrics({"loss": 0.0}, 0)
        outage.down = True
        began = time.perf_counter()
        for step in range(1, 2001):
            tracker.metrics({"loss": float(step)}, step)
        told = time.perf_counter() - began
        until(lambda: bool(said))  # it is noticed while the run goes on, and so is its end
        outage.down = False
        until(lambda: len(said) > 1)
    assert told < 20, "telling a figure never waits for the store"
    run = only_run(project)
    assert history(project, run.info.run_id, "loss") == [(s, float(s)) for s in range(2001)]
    assert "does not accept figures now" in said[0] and "answers again" in said[1]


def test_a_store_that_stays_down_is_not_waited_for_and_the_next_run_sends_all(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage, said = Outage(monkeypatch), list[str]()
    outage.down = True
    with open_run(project, "paco/x", "first", {}, say=said.append) as tracker:
        tracker.metrics({"loss": 1.0}, 0)
        tracker.image(Image.new("RGB", (8, 8)), "sheet", 0)
        assert tracker.run_id is None and tracker.url is None
    assert "wait in" in said[-1] and len(list((project / FOLDER).iterdir())) == 1
    outage.down = False
    with open_run(project, "paco/x", "second", {}, say=said.append):
        until(lambda: len(list((project / FOLDER).iterdir())) == 1)  # its own
    assert list((project / FOLDER).iterdir()) == []
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    (experiment,) = client.search_experiments(filter_string="name = 'paco/x'")
    runs = {run.info.run_name: run for run in client.search_runs([experiment.experiment_id])}
    assert runs["first"].info.status == "FINISHED" and runs["first"].data.metrics == {"loss": 1.0}
    assert runs["first"].info.end_time < runs["second"].info.start_time, "times are those of the telling"


def test_a_store_that_hangs_stops_nothing_and_gets_all_once_it_moves(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves, said = threading.Event(), list[str]()
    real = delivery.Delivery._deliver

    def hung(this: delivery.Delivery, events: list[dict[str, Any]]) -> None:
        assert moves.wait(120)
        real(this, events)

    monkeypatch.setattr(delivery.Delivery, "_deliver", hung)
    monkeypatch.setattr(tracking, "PATIENCE_S", 0.05)
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        for step in range(100):
            tracker.metrics({"loss": float(step)}, step)
    assert not moves.is_set() and "102 events of this run wait in" in said[-1]
    moves.set()
    until(lambda: send_left_over(project).waiting == 0 and not list((project / FOLDER).iterdir()))
    run = only_run(project)
    assert run.info.status == "FINISHED"
    assert history(project, run.info.run_id, "loss") == [(s, float(s)) for s in range(100)]


@pytest.mark.slow
def test_lost_answers_double_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outage = Outage(monkeypatch)
    outage.answer_lost = True  # of the run's creation
    with open_run(project, "paco/x", "x", {}) as tracker:
        until(lambda: tracker.run_id is not None)
        for kind in ("metrics", "image"):
            seen = outage.failed
            outage.answer_lost = True
            tracker.metrics({"loss": 1.0}, 7) if kind == "metrics" else tracker.image(Image.new("L", (8, 8)), "a", 7)
            until(lambda seen=seen: outage.failed > seen)  # type: ignore[misc]
    # A stage does not wait for a store that failed at its end: the next one sends the rest.
    until(lambda: send_left_over(project).waiting == 0 and tracking.unsent(project) == 0)
    run = only_run(project)
    assert history(project, run.info.run_id, "loss") == [(7, 1.0)]
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    assert len(client.list_artifacts(run.info.run_id, "images")) == 2


def test_what_the_store_refuses_is_kept_with_its_reason_and_stops_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()
    real = delivery.Delivery._log_batch

    def picky(this: delivery.Delivery, events: list[dict[str, Any]]) -> None:
        if any("bad" in event["values"] for event in events):
            raise MlflowException("no such name", error_code=INVALID_PARAMETER_VALUE)
        real(this, events)

    monkeypatch.setattr(delivery.Delivery, "_log_batch", picky)
    with open_run(project, "paco/x", "x", {}, say=said.append) as tracker:
        for name in ("a", "bad", "c"):
            tracker.metrics({name: 1.0})
        tracker.image(Image.new("L", (8, 8)), "no:such:key")
    run = only_run(project)
    assert run.info.status == "FINISHED" and run.data.metrics == {"a": 1.0, "c": 1.0}
    (kept,) = (project / FOLDER / "refused").glob("*/events.jsonl")
    refused = [json.loads(line) for line in kept.read_text().splitlines()]
    assert refused[0]["values"] == {"bad": 1.0} and "no such name" in refused[0]["refused"]
    assert (kept.parent / refused[1]["file"]).is_file()
    assert len(said) == 2 or said[0].startswith("2 refusals, the last: MLflow refused image"), "in one look or in two"


def test_a_deleted_experiment_is_named_with_the_remedy_which_works(project: Path) -> None:
    with open_run(project, "paco/x", "x", {}) as tracker:
        tracker.metrics({"a": 1.0})
    client = mlflow.MlflowClient(f"sqlite:///{project / 'mlflow.db'}")
    number = client.get_experiment_by_name("paco/x").experiment_id
    client.delete_experiment(number)
    said = list[str]()
    with open_run(project, "paco/x", "y", {}, say=said.append) as tracker:
        tracker.metrics({"b": 2.0})
    assert f"mlflow experiments restore --experiment-id {number}" in " ".join(said)
    client.restore_experiment(number)
    with open_run(project, "paco/x", "z", {}, say=said.append):
        until(lambda: ("y", {"b": 2.0}) in [(r.info.run_name, r.data.metrics) for r in client.search_runs([number])])


def test_kill_minus_nine_loses_nothing_that_was_told(project: Path) -> None:
    code = f"""
        from pathlib import Path
        from paco_core.runtime import tracking
        tracking.outbox.start = lambda *_args: None  # nothing is sent before the kill
        with tracking.open_run(Path({str(project)!r}), "paco/x", "x", {{}}) as tracker:
            for step in range(100):
                tracker.metrics({{"loss": float(step)}}, step)
            print("told", flush=True)
            input()
    """
    stage = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert stage.stdout is not None and stage.stdout.readline() == "told\n"
    assert send_left_over(project).runs == 0, "the journal of a living process is left alone"
    stage.send_signal(signal.SIGKILL)
    stage.wait(30)
    (home,) = (project / FOLDER).iterdir()
    with (home / "events.jsonl").open("a") as stream:
        stream.write('{"kind": "metrics", "va')  # the kill hit in the middle of a line
    assert send_left_over(project).events == 102
    run = only_run(project)
    assert run.info.status == "KILLED" and len(history(project, run.info.run_id, "loss")) == 100
    assert send_left_over(project).events == 0 and not home.exists()


def test_tracking_off_writes_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PACO_TRACKING", "off")
    with open_run(project, "paco/x", "x", {}) as tracker:
        tracker.metrics({"loss": 1.0})
        tracker.image(Image.new("L", (8, 8)), "a")
        assert tracker.run_id is None
    assert not (project / FOLDER).exists()


def test_the_machine_is_sampled_at_least_once(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "true")
    with open_run(project, "paco/x", "x", {}):
        pass
    assert only_run(project).data.metrics["system/system_memory_usage_megabytes"] > 0


class FakeDriver(types.ModuleType):
    """Stands in for `pynvml`: two GPUs, the second of which cannot tell its power."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, number: int) -> int:
        return number

    def nvmlDeviceGetMemoryInfo(self, _gpu: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(used=20e9, total=80e9)

    def nvmlDeviceGetUtilizationRates(self, _gpu: int) -> types.SimpleNamespace:
        return types.SimpleNamespace(gpu=93)

    def nvmlDeviceGetPowerUsage(self, gpu: int) -> int:
        if gpu:
            raise self.NVMLError
        return 350_000

    def nvmlDeviceGetEnforcedPowerLimit(self, _gpu: int) -> int:
        return 700_000


def test_the_machine_is_described_as_mlflow_does(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = FakeDriver("pynvml")
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    from mlflow.system_metrics.metrics import cpu_monitor, disk_monitor, gpu_monitor, network_monitor

    monkeypatch.setattr(gpu_monitor, "pynvml", driver, raising=False)
    theirs: dict[str, float] = {}
    machine = (cpu_monitor.CPUMonitor(), disk_monitor.DiskMonitor(), network_monitor.NetworkMonitor())
    for monitor in (*machine, gpu_monitor.GPUMonitor()):
        monitor.collect_metrics()
        theirs |= {f"system/{name}": value for name, value in monitor.aggregate_metrics().items()}
    told: list[dict[str, float]] = []
    ours = SystemMetrics(lambda values, _step: told.append(dict(values)))
    ours.start()
    ours.stop()
    assert told[0].keys() == theirs.keys() and "system/gpu_1_power_usage_watts" not in theirs
    gpus = {name: value for name, value in theirs.items() if "gpu_" in name}
    assert {name: told[0][name] for name in gpus} == gpus and gpus["system/gpu_0_power_usage_percentage"] == 50
    for name in ("system_memory_usage_megabytes", "disk_usage_megabytes"):
        assert told[0][f"system/{name}"] == pytest.approx(theirs[f"system/{name}"], rel=0.5)


def test_links_lead_to_the_server_or_to_the_local_pages() -> None:
    assert tracking.run_url("https://me:key@example.org/", "1", "ab") == "https://example.org/#/experiments/1/runs/ab"
    assert tracking.run_url("sqlite:////tmp/mlflow.db", "1", "ab").startswith("http://127.0.0.1:5000/#/")


def test_a_journal_that_never_began_is_removed(project: Path) -> None:
    journal = RunJournal.begin(project, {"kind": "run"})
    (journal.home / "events.jsonl").write_text('{"kind": "ru')
    journal.leave()
    assert send_left_over(project).waiting == 0 and not journal.home.exists()
