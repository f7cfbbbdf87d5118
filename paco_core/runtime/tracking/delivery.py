"""Brings a journal's events to an MLflow store. Every step may be repeated: what the store has, it keeps.

A run carries its journal's name as a tag, so that a creation whose answer was lost is found again; metrics
carry the time at which they were logged, and MLflow stores an equal (key, step, time, value) once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from paco_core.io.files import DataError
from paco_core.io.pictures import read_image
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking import database, models
from paco_core.runtime.tracking.journal import DROPPED_TAG, NOTE_TAG, Event, RunJournal
from paco_core.runtime.tracking.models import Adapted
from paco_core.runtime.tracking.store import short

JOURNAL_TAG = "paco.journal"
#: MLflow's pages for trainings; without it they are shown among evaluations of chat models.
KIND = {"mlflow.experimentKind": "custom_model_development"}
BATCHED = {"metrics", "params", "tags"}
CARRIERS = {"file", "image", "model"}
METRICS, OTHERS = 1000, 100  # that one request may hold
#: What asking again will not change.
FINAL = {
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "NOT_IMPLEMENTED",
}  # fmt: skip
FILE_PAUSES_S = (0.5, 1.0, 2.0)  # before a file that a store did not take is sent again


class FileNotTaken(ValueError):
    """A store that answers did not take a file, several times."""


def is_final(error: Exception) -> bool:
    """Whether the store refused for good; an unreachable, slow or failing one may take it later."""
    from mlflow.exceptions import MlflowException, RestException

    if isinstance(error, FileNotFoundError) or (
        isinstance(error, (ValueError, TypeError)) and not isinstance(error, OSError)  # requests' errors are both
    ):
        return True
    through_proxy = isinstance(error, MlflowException) and "failed with error code" in str(error)
    refused = isinstance(error, RestException) or (isinstance(error, MlflowException) and not through_proxy)
    return refused and getattr(error, "error_code", "") in FINAL


class Delivery:
    """Delivers one journal, a request or two at a time.

    What people should know is noted in ``delivered.json``, from where the writer prints it.

    Args:
        uri: the store of who delivers, with its credentials.
    """

    def __init__(self, journal: RunJournal, uri: str) -> None:
        self.journal, self._ours = journal, uri
        self.done = journal.delivered()
        self._certain = self.done.offset == 0  # that nothing has arrived of what comes next
        self._client: Any = None
        self._models: dict[str, str] = {}  # the run that made a model ("": this one), and its id

    def step(self) -> bool:
        """Deliver the next events; False when none waits.

        Raises:
            DamagedJournal: when a line is no event.
            Exception: whatever MLflow raises when the store does not answer; call again later.
        """
        waiting = self.journal.waiting(self.done.offset)
        if not waiting:
            return False
        if self._client is None:  # a store that cannot be opened refuses nothing
            self._client = database.open_client(self._uri())
        self._send(_batch(waiting))
        return True

    def note_outage(self, error: Exception) -> None:
        """Note that :meth:`step` found no answer."""
        self.done.failed += 1
        self.done.outage = (
            f"MLflow at {self.journal.store()} does not accept figures now ({short(error)}); "
            f"they are kept in {self.journal.home} and sent later"
        )
        self.journal.mark(self.done)

    def _send(self, batch: list[tuple[Event, int]]) -> None:
        events = [event for event, _ in batch]
        try:
            self._deliver(events)
        except Exception as error:
            self._certain = False
            if events[0]["kind"] == "run" or not is_final(error):
                raise
            if len(batch) > 1:  # one of them is to blame
                for one in batch:
                    self._send([one])
                return
            self._refuse(events[0], error)
        self.done.offset, self.done.outage = batch[-1][1], ""
        self.journal.mark(self.done)
        for event in events:
            self.journal.drop(event)
        self._certain = True

    def _refuse(self, event: Event, error: Exception) -> None:
        home = self.journal.refuse(event, f"{type(error).__name__}: {error}")
        self.done.refused += 1
        self.done.refusal = f"MLflow refused {event['kind']} ({redacted(str(error))[:300]}); it is kept in {home}"

    def _uri(self) -> str:
        """The URI of the journal's store; a journal does not hold the password of a database."""
        header = self.journal.header()
        given = str(header["uri"])
        if bare(self._ours) == given:
            return self._ours
        if header.get("needs_credentials"):
            raise DataError(
                f"{self.journal.home}: its run goes to {given}, whose password no journal keeps; "
                "name that store with its password in MLFLOW_TRACKING_URI and run `paco sync`"
            )
        return given

    # --- to the store --------------------------------------------------------------------------------

    def _deliver(self, events: list[Event]) -> None:
        first = events[0]
        if first["kind"] == "run":
            self._start(first)
        elif self.done.run_id is None:
            raise RuntimeError(f"{self.journal.events}: the first event names no run")
        elif first["kind"] in BATCHED:
            self._log_batch(events)
        else:
            log = getattr(self, f"_{first['kind']}")
            self._insist(log, first) if first["kind"] in CARRIERS else log(first)

    def _insist(self, log: Callable[[Event], None], event: Event) -> None:
        """Send a file, several times where the store itself is well: the rest must not wait for it for ever.

        Raises:
            FileNotTaken: when the store answers and does not take it.
        """
        for pause in FILE_PAUSES_S:
            try:
                log(event)
            except Exception as error:
                if is_final(error):
                    raise
                self._certain = False
                self._client.get_run(self.done.run_id)  # raises where it is the store that does not answer
                last = error
                time.sleep(pause)
            else:
                return
        raise FileNotTaken(f"{type(last).__name__}: {last}") from last

    def _start(self, event: Event) -> None:
        """Create the run, or find the one whose creation was answered to nobody."""
        experiment = self._client.get_experiment_by_name(event["experiment"])
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            raise DataError(
                f"MLflow's experiment {event['experiment']} was deleted: restore it with `mlflow experiments restore "
                f"--experiment-id {experiment.experiment_id}`, or remove it for good with `mlflow gc --experiment-ids "
                f"{experiment.experiment_id}`; `paco sync` then sends what is kept"
            )
        experiment_id = self._create_experiment(event) if experiment is None else experiment.experiment_id
        known = {} if experiment is None else experiment.tags
        for tag, value in event.get("views", {}).items():
            if known.get(tag) != value:
                self._client.set_experiment_tag(experiment_id, tag, value)
        name = self.journal.home.name
        found = self._client.search_runs([experiment_id], f"tags.`{JOURNAL_TAG}` = '{name}'", max_results=1)
        run = found[0] if found else self._client.create_run(
            experiment_id,
            start_time=event["time"],
            run_name=event["name"],
            tags={**event["tags"], JOURNAL_TAG: name},
        )  # fmt: skip
        self.done.run_id, self.done.experiment_id = run.info.run_id, experiment_id

    def _create_experiment(self, event: Event) -> str:
        from mlflow.exceptions import MlflowException

        tags = {**KIND, NOTE_TAG: event.get("about", "")}  # journals of earlier versions describe nothing
        try:
            made = self._client.create_experiment(event["experiment"], artifact_location=event["artifacts"], tags=tags)
            return str(made)
        except MlflowException:  # another process was faster
            found = self._client.get_experiment_by_name(event["experiment"])
            if found is None:
                raise
            return str(found.experiment_id)

    def _log_batch(self, events: list[Event]) -> None:
        from mlflow.entities import Metric, Param, RunTag

        metrics = [
            Metric(key, float(value), event["time"], event["step"], model_id=model)
            for event in events
            if event["kind"] == "metrics"
            for model in [None if event.get("measures") is None else self._measured(event["measures"])]
            for key, value in event["values"].items()
        ]
        params = [Param(k, v) for event in events if event["kind"] == "params" for k, v in event["values"].items()]
        tags = [RunTag(k, v) for event in events if event["kind"] == "tags" for k, v in event["values"].items()]
        for kind, found, most in (("metrics", metrics, METRICS), ("params", params, OTHERS), ("tags", tags, OTHERS)):
            for start in range(0, len(found), most):
                self._client.log_batch(self.done.run_id, **{kind: found[start : start + most]})

    def _image(self, event: Event) -> None:
        key, step = event["key"], event["step"]
        if not self._certain:  # it may have arrived with its answer lost
            stored = [item.path for item in self._client.list_artifacts(self.done.run_id, "images")]
            start = f"images/{key.replace('/', '~')}+step+{step}+timestamp+{event['time']}+"
            if sum(path.startswith(start) for path in stored) >= 2:  # the picture and its small version
                return
        image = read_image(self.journal.home / event["file"])
        self._client.log_image(self.done.run_id, image, key=key, step=step, timestamp=event["time"])

    def _file(self, event: Event) -> None:
        path = self.journal.home / str(event["file"])
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        folder = "/".join(part for part in (event["folder"], path.name if path.is_dir() else None) if part)
        log(self.done.run_id, str(path), folder or None)

    def _dataset(self, event: Event) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = Dataset(name=event["name"], digest=event["md5"][:36], source_type="dvc", source=f"dvc://{event['path']}")
        self._client.log_inputs(
            self.done.run_id, [DatasetInput(data, [InputTag("mlflow.data.context", event["context"])])]
        )

    def _model(self, event: Event) -> None:
        adapter = self.journal.home / event["file"] if event.get("file") else None
        adapted = Adapted(**event["adapted"]) if event.get("adapted") else None
        experiment, run, name = self.done.experiment_id, self.done.run_id, event["name"]
        made = models.log_model(self._client, str(experiment), str(run), name, event["tags"], adapter, adapted)
        self._client.set_tag(run, "paco.model_id", made)

    def _measured(self, run_id: str) -> str | None:
        """The model that a run made, None where MLflow knows none; another run's is an input of this one."""
        from mlflow.entities import LoggedModelInput
        from mlflow.exceptions import MlflowException

        if run_id not in self._models:
            try:
                experiment = self._client.get_run(run_id or self.done.run_id).info.experiment_id
            except MlflowException as error:  # a run of another store, or one that was deleted
                if not is_final(error):
                    raise
                return None
            model = models.model_of(self._client, experiment, run_id or str(self.done.run_id))
            if model is None:
                return None
            if run_id and run_id != self.done.run_id:
                self._client.log_inputs(self.done.run_id, models=[LoggedModelInput(model.model_id)])
            self._models[run_id] = str(model.model_id)
        return self._models[run_id]

    def _end(self, event: Event) -> None:
        if event.get("dropped"):
            self._client.set_tag(self.done.run_id, DROPPED_TAG, str(event["dropped"]))
        self._client.set_terminated(self.done.run_id, event["status"], end_time=event["time"])


def _batch(waiting: list[tuple[Event, int]]) -> list[tuple[Event, int]]:
    """The first events, as many as one request can carry: one, or some that MLflow logs together."""
    size = 0
    found: list[tuple[Event, int]] = []
    for event, offset in waiting:
        if event["kind"] not in BATCHED:
            return found or waiting[:1]
        size += len(event["values"])
        if found and size > METRICS:
            break
        found.append((event, offset))
    return found
