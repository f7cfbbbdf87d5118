"""Brings a journal's events to an MLflow store. Every step may be repeated: what the store has, it keeps.

A run carries its journal's name as a tag, so that a creation whose answer was lost is found again; metrics
carry the time at which they were logged, and MLflow stores an equal (key, step, time, value) once.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paco_core.io.files import DataError
from paco_core.io.pictures import read_image
from paco_core.io.secrets import bare, redacted
from paco_core.runtime.tracking import database, models
from paco_core.runtime.tracking.journal import DROPPED_TAG, NOTE_TAG, DamagedJournal, Event, RunJournal
from paco_core.runtime.tracking.models import Adapted

JOURNAL_TAG = "paco.journal"
#: MLflow's pages for trainings; without it they are shown among evaluations of chat models.
KIND = {"mlflow.experimentKind": "custom_model_development"}
BATCHED = {"metrics", "params", "tags"}
CARRIERS = {"file", "image", "model"}
METRICS_A_BATCH = 1000
#: What asking again will not change.
FINAL = {
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "NOT_IMPLEMENTED",
}  # fmt: skip
FILE_ATTEMPTS = 5
PAUSE_S = 1.0  # after an attempt that found no answer


def short(error: Exception) -> str:
    """One line; what names its remedy is given in full."""
    text = " ".join(str(error).split())
    text = redacted(text)
    if isinstance(error, DataError):
        return text
    return f"{type(error).__name__}: {text[:200]}"


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

    Args:
        uri: the store of who delivers, with its credentials.
        say: called with what people should know where the writer has gone; one that lives prints it itself.
        left: whether it has gone.
    """

    def __init__(self, journal: RunJournal, uri: str, say: Callable[[str], None], *, left: bool = False) -> None:
        self.journal, self.left, self._ours, self._say = journal, left, uri, say
        self.done = journal.delivered()
        self._header = journal.header()
        self._store = str(self._header.get("uri", ""))
        self._next_attempt = 0.0
        self._attempts = 0  # at the next event
        self._client: Any = None
        self._models: dict[str, str] = {}  # the run that made a model ("": this one), and its id

    def attempt(self) -> bool:
        """Deliver the next events; whether there were some and the store is well.

        A store that does not answer is asked again after a pause; that it does not is noted.

        Raises:
            DamagedJournal: when a line is no event.
        """
        if time.monotonic() < self._next_attempt:
            return False
        size = self.journal.size()
        try:
            return self.step()
        except DamagedJournal:
            raise
        except Exception as error:
            self._next_attempt = time.monotonic() + PAUSE_S
            self._note_outage(error, size)
            return False

    def step(self) -> bool:
        """Deliver the next events; False when none waits.

        Raises:
            Exception: whatever MLflow raises when the store does not answer; call again later.
        """
        waiting = self.journal.waiting(self.done.offset)
        if not waiting:
            return False
        if self._client is None:  # a store that cannot be opened refuses nothing
            self._client = database.connect(self._with_credentials())
        self._send(_batch(waiting))
        return True

    def _send(self, batch: list[tuple[Event, int]]) -> None:
        first = batch[0][0]
        try:
            self._attempts += 1
            self._deliver([event for event, _ in batch])
        except Exception as error:
            stuck = self._is_stuck(first)
            if stuck and self._attempts < FILE_ATTEMPTS:
                time.sleep(PAUSE_S)
                return
            if not (is_final(error) or stuck) or first["kind"] == "run":
                raise
            if len(batch) > 1:  # one of them is to blame
                for one in batch:
                    self._send([one])
                return
            home = self.journal.refuse(first, f"{type(error).__name__}: {error}")
            self._report(f"MLflow refused {first['kind']} ({redacted(str(error))[:300]}); it is kept in {home}")
        self._advance(batch)

    def _note_outage(self, error: Exception, size: int) -> None:
        """Note that :meth:`step` found no answer; the journal had ``size`` bytes when it began."""
        if self.left or self.done.failed_at is None:
            self._report(
                f"MLflow at {self._store} does not accept figures now ({short(error)}); "
                f"they are kept in {self.journal.home} and sent later"
            )
        self.done.failed_at = size
        self.journal.mark(self.done)

    def _report(self, line: str) -> None:
        (self._say if self.left else self.journal.note)(line)

    def _advance(self, batch: list[tuple[Event, int]]) -> None:
        if self.done.failed_at is not None:
            self.journal.note(f"MLflow at {self._store} answers again")
        self.done.offset, self.done.failed_at = batch[-1][1], None
        self.journal.mark(self.done)
        for event, _ in batch:
            self.journal.drop(event)
        self._attempts = 0

    def _is_stuck(self, event: Event) -> bool:
        """Whether it is the file of an event that cannot be stored, and the store itself is well."""
        if event["kind"] not in CARRIERS:
            return False
        try:
            self._client.get_run(self.done.run_id)
        except Exception:
            return False
        return True

    # --- to the store --------------------------------------------------------------------------------

    def _deliver(self, events: list[Event]) -> None:
        first = events[0]
        if first["kind"] == "run":
            self._start(first)
            return
        if self.done.run_id is None:
            raise RuntimeError(f"{self.journal.events}: the first event names no run")
        if first["kind"] in BATCHED:
            self._log_batch(events)
        else:
            getattr(self, f"_{first['kind']}")(first)

    def _with_credentials(self) -> str:
        """The URI of the journal's store; a journal does not hold the password of a database."""
        if bare(self._ours) == self._store:
            return self._ours
        if self._header.get("needs_credentials"):
            raise DataError(
                f"{self.journal.home}: its run goes to {self._store}, whose password no journal keeps; "
                "name that store with its password in MLFLOW_TRACKING_URI and run `paco sync`"
            )
        return self._store

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
        self._client.log_batch(self.done.run_id, metrics=metrics, params=params, tags=tags)

    def _image(self, event: Event) -> None:
        key, step = event["key"], event["step"]
        stored = [item.path for item in self._client.list_artifacts(self.done.run_id, "images")]
        start = f"images/{key.replace('/', '~')}+step+{step}+timestamp+{event['time']}+"
        if sum(path.startswith(start) for path in stored) >= 2:  # it and its small version: the answer was lost
            return
        image = read_image(self.journal.home / event["file"])
        self._client.log_image(self.done.run_id, image, key=key, step=step, timestamp=event["time"])

    def _file(self, event: Event) -> None:
        path: Path = self.journal.home / event["file"]
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
        if found and size > METRICS_A_BATCH:
            break
        found.append((event, offset))
    return found
