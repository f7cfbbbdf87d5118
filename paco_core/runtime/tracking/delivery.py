"""Delivery of a journal to an MLflow store. Every step may be repeated: the store keeps what it has.

A run has the name of its journal as a tag, so a run whose creation was not confirmed is found again. Metrics have the
time at which they were logged, and MLflow stores an equal (key, step, time, value) once.
"""

from __future__ import annotations

from itertools import takewhile
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
METRICS_PER_REQUEST, ENTRIES_PER_REQUEST = 1000, 100  # limits of one request; entries are params or tags
#: Errors that a second attempt does not change.
FINAL = {
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "NOT_IMPLEMENTED",
}  # fmt: skip


def is_final(error: Exception) -> bool:
    """Whether the store refused for good; one that is unreachable, slow or failing may accept it later."""
    from mlflow.exceptions import MlflowException, RestException

    if isinstance(error, FileNotFoundError) or (
        isinstance(error, (ValueError, TypeError)) and not isinstance(error, OSError)  # requests' errors are both
    ):
        return True
    if not isinstance(error, MlflowException):
        return False
    through_proxy = not isinstance(error, RestException) and "failed with error code" in str(error)
    return not through_proxy and error.error_code in FINAL


class Delivery:
    """Delivers one journal, a request or two at a time, and records the progress and problems in ``delivered.json``.

    Args:
        uri: the store of this process, with its credentials.
    """

    def __init__(self, journal: RunJournal, uri: str) -> None:
        self.journal, self._process_uri = journal, uri
        self.progress = journal.delivered()
        self._client: Any = None
        self._models: dict[str, str] = {}  # id of the run that made a model ("": this run) -> id of the model

    def step(self) -> int:
        """Deliver the next events; their number, 0 when none waits.

        Raises:
            DamagedJournal: when a line is not an event.
            Exception: whatever MLflow raises when the store does not answer; call again later.
        """
        waiting = self.journal.waiting(self.progress.offset)
        if not waiting:
            return 0
        self._client = self._client or database.open_client(self._uri())  # if that fails, no event is refused
        batch = list(takewhile(lambda entry: entry[0]["kind"] in BATCHED, waiting)) or waiting[:1]
        self._send(batch)
        return len(batch)

    def note_outage(self, error: Exception) -> None:
        """Record that :meth:`step` got no answer."""
        self.progress.failed += 1
        self.progress.outage = short(error)
        self.journal.mark(self.progress)

    def _send(self, batch: list[tuple[Event, int]]) -> None:
        events = [event for event, _ in batch]
        try:
            self._deliver(events)
        except Exception as error:
            if events[0]["kind"] == "run" or not is_final(error):
                raise
            if len(batch) > 1:  # only one of them may be wrong
                for single in batch:
                    self._send([single])
                return
            self._reject(events[0], error)
        self.progress.offset, self.progress.outage = batch[-1][1], ""
        self.journal.mark(self.progress)
        for event in events:
            self.journal.drop(event)

    def _reject(self, event: Event, error: Exception) -> None:
        folder = self.journal.reject(event, f"{type(error).__name__}: {error}")
        self.progress.refused += 1
        self.progress.refusal = f"MLflow refused {event['kind']} ({redacted(str(error))[:300]}); it is now in {folder}"

    def _uri(self) -> str:
        """The URI of the journal's store; a journal does not contain the password of a database."""
        header = self.journal.header()
        if bare(self._process_uri) == header["uri"]:
            return self._process_uri
        if header.get("needs_credentials"):
            raise DataError(
                f"{self.journal.home}: its run goes to {bare(header['uri'])}, whose password no journal keeps; "
                "name that store with its password in MLFLOW_TRACKING_URI and run `paco sync`"
            )
        return str(header["uri"])

    # --- to the store --------------------------------------------------------------------------------

    def _deliver(self, events: list[Event]) -> None:
        first = events[0]
        if first["kind"] == "run":
            self._start(first)
        elif self.progress.run_id is None:
            raise RuntimeError(f"{self.journal.events}: the first event does not open a run")
        elif first["kind"] in BATCHED:
            self._log_batch(events)
        else:
            getattr(self, f"_{first['kind']}")(first)

    def _start(self, event: Event) -> None:
        """Create the run, or find it if it was created and the answer was lost."""
        experiment = self._client.get_experiment_by_name(event["experiment"])
        if experiment is not None and experiment.lifecycle_stage == "deleted":
            raise DataError(
                f"MLflow's experiment {event['experiment']} was deleted: restore it with `mlflow experiments restore "
                f"--experiment-id {experiment.experiment_id}`, or remove it for good with `mlflow gc --experiment-ids "
                f"{experiment.experiment_id}`; `paco sync` then sends what is kept"
            )
        if experiment is None:  # if another process creates it at the moment, the next attempt finds it
            tags = {**KIND, NOTE_TAG: event.get("about", ""), **event.get("views", {})}
            location = event["artifacts"]
            experiment_id = self._client.create_experiment(event["experiment"], artifact_location=location, tags=tags)
        else:
            experiment_id = experiment.experiment_id
            for tag, value in event.get("views", {}).items():
                if experiment.tags.get(tag) != value:
                    self._client.set_experiment_tag(experiment_id, tag, value)
        name = self.journal.home.name
        runs = self._client.search_runs([experiment_id], f"tags.`{JOURNAL_TAG}` = '{name}'", max_results=1)
        run = runs[0] if runs else self._client.create_run(
            experiment_id,
            start_time=event["time"],
            run_name=event["name"],
            tags={**event["tags"], JOURNAL_TAG: name},
        )  # fmt: skip
        self.progress.run_id, self.progress.experiment_id = run.info.run_id, experiment_id

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
        for kind, values in (("metrics", metrics), ("params", params), ("tags", tags)):
            limit = METRICS_PER_REQUEST if kind == "metrics" else ENTRIES_PER_REQUEST
            for start in range(0, len(values), limit):
                self._client.log_batch(self.progress.run_id, **{kind: values[start : start + limit]})

    def _image(self, event: Event) -> None:
        """MLflow gives each image a new name: one that has arrived already is known by key, step and time."""
        key, step = event["key"], event["step"]
        prefix = f"images/{key.replace('/', '~')}+step+{step}+timestamp+{event['time']}+"
        stored = self._client.list_artifacts(self.progress.run_id, "images")
        if sum(item.path.startswith(prefix) for item in stored) < 2:  # the image and its small version
            image = read_image(self.journal.home / event["file"])
            self._client.log_image(self.progress.run_id, image, key=key, step=step, timestamp=event["time"])

    def _file(self, event: Event) -> None:
        path = self.journal.home / str(event["file"])
        log = self._client.log_artifacts if path.is_dir() else self._client.log_artifact
        folder = "/".join(part for part in (event["folder"], path.name if path.is_dir() else None) if part)
        log(self.progress.run_id, str(path), folder or None)

    def _dataset(self, event: Event) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        data = Dataset(name=event["name"], digest=event["md5"][:36], source_type="dvc", source=f"dvc://{event['path']}")
        tags = [InputTag("mlflow.data.context", event["context"])]
        self._client.log_inputs(self.progress.run_id, [DatasetInput(data, tags)])

    def _model(self, event: Event) -> None:
        adapter = self.journal.home / event["file"] if event.get("file") else None
        adapted = Adapted(**event["adapted"]) if event.get("adapted") else None
        experiment, run, name = str(self.progress.experiment_id), str(self.progress.run_id), event["name"]
        model_id = models.log_model(self._client, experiment, run, name, event["tags"], adapter, adapted)
        self._client.set_tag(run, "paco.model_id", model_id)

    def _measured(self, run_id: str) -> str | None:
        """The model that a run made, None if the store has none; that of another run becomes an input of this one."""
        from mlflow.entities import LoggedModelInput
        from mlflow.exceptions import MlflowException

        if run_id not in self._models:
            try:
                experiment = self._client.get_run(run_id or self.progress.run_id).info.experiment_id
            except MlflowException as error:  # a run of another store, or one that was deleted
                if not is_final(error):
                    raise
                return None
            model = models.model_of(self._client, experiment, run_id or str(self.progress.run_id))
            if model is None:
                return None
            if run_id and run_id != self.progress.run_id:
                self._client.log_inputs(self.progress.run_id, models=[LoggedModelInput(model.model_id)])
            self._models[run_id] = str(model.model_id)
        return self._models[run_id]

    def _end(self, event: Event) -> None:
        if event.get("dropped"):
            self._client.set_tag(self.progress.run_id, DROPPED_TAG, str(event["dropped"]))
        self._client.set_terminated(self.progress.run_id, event["status"], end_time=event["time"])
