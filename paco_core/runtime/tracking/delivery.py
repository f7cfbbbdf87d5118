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
from paco_core.runtime.tracking.journal import DROPPED_TAG, NOTE_TAG, DamagedJournal, Event, RunJournal, store_of
from paco_core.runtime.tracking.models import Adapted

JOURNAL_TAG = "paco.journal"
#: MLflow's pages for trainings; without it they are shown among evaluations of chat models.
KIND = {"mlflow.experimentKind": "custom_model_development"}
BATCHED = {"metrics", "params", "tags"}
CARRIERS = {"file", "image", "model"}
METRICS_A_BATCH, OTHERS_A_BATCH = 1000, 100
#: What asking again will not change.
FINAL = {
    "INVALID_PARAMETER_VALUE", "BAD_REQUEST", "RESOURCE_DOES_NOT_EXIST", "RESOURCE_ALREADY_EXISTS", "NOT_IMPLEMENTED",
}  # fmt: skip
FILE_ATTEMPTS = 5
PAUSES_S = (0.5, 1.0, 2.0, 5.0, 10.0)  # after the first, second ... attempt that found no answer


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

    What people should know is noted in ``delivered.json``, from where the writer prints it.

    Args:
        uri: the store of who delivers, with its credentials.
        say: called with what people should know where the writer has gone.
        left: whether it has.
    """

    def __init__(self, journal: RunJournal, uri: str, say: Callable[[str], None], *, left: bool = False) -> None:
        self.journal, self.left, self._ours, self._say = journal, left, uri, say
        self.done = journal.delivered()
        self.failures = 0  # attempts in a row that found no answer
        self._next_attempt = 0.0
        self._attempts = 0  # at the next event
        self._singly = False  # one of a batch is refused
        self._resumed = self.done.offset > 0
        self._client: Any = None
        self._uri = ""  # of the journal's store, with its credentials, once it is connected
        self._models: dict[str, str] = {}  # the run that made a model ("": this one), and its id

    def attempt(self) -> bool:
        """Deliver the next events; whether the store took something.

        A store that does not answer is not asked too often, but once more after the run's end; what it says is noted.

        Raises:
            DamagedJournal: when a line is no event.
        """
        size = self.journal.size()
        over = self.left or self.journal.has_ended()
        if time.monotonic() < self._next_attempt and not (over and (self.done.failed_at or 0) < size):
            return False
        try:
            worked = self.step()
        except DamagedJournal:
            raise
        except Exception as error:
            if over and self._is_stuck():
                return True  # the store is well: a file is asked for again at once, and set aside after some attempts
            self.failures += 1
            self._next_attempt = time.monotonic() + PAUSES_S[min(self.failures, len(PAUSES_S)) - 1]
            self._note_outage(error, size)
            return False
        if worked:
            self.failures, self._next_attempt = 0, 0.0
        return worked

    def step(self) -> bool:
        """Deliver the next events; False when none waits.

        Raises:
            Exception: whatever MLflow raises when the store does not answer; call again later.
        """
        waiting = self.journal.waiting(self.done.offset)
        if not waiting:
            return False
        batch = waiting[:1] if self._singly else _batch(waiting)
        first = batch[0][0]
        if self._client is None:  # a store that cannot be opened refuses nothing
            self._connect(self.journal.waiting(0, limit=1)[0][0])
        try:
            self._attempts += 1
            self._deliver([event for event, _ in batch])
        except Exception as error:
            stuck = self._attempts >= FILE_ATTEMPTS and self._is_stuck()
            if not (is_final(error) or stuck) or first["kind"] == "run":
                raise
            if len(batch) > 1:  # one of them is to blame
                self._singly = True
                return True
            self._refuse(first, error)
        self._advance(batch)
        return True

    def _refuse(self, event: Event, error: Exception) -> None:
        home = self.journal.refuse(event, f"{type(error).__name__}: {error}")
        self.done.refused += 1
        self.done.refusal = f"MLflow refused {event['kind']} ({redacted(str(error))[:300]}); it is kept in {home}"
        self._report(self.done.refusal)

    def _note_outage(self, error: Exception, size: int) -> None:
        """Note that :meth:`step` found no answer; the journal had ``size`` bytes when it began."""
        self.done.outage = (
            f"MLflow at {store_of(self.journal)} does not accept figures now ({short(error)}); "
            f"they are kept in {self.journal.home} and sent later"
        )
        self.done.failed_at = size
        self.journal.mark(self.done)
        self._report(self.done.outage)

    def _report(self, line: str) -> None:
        if self.left:
            self._say(line)

    def _advance(self, batch: list[tuple[Event, int]]) -> None:
        self.done.offset, self.done.failed_at, self.done.outage = batch[-1][1], None, ""
        self.journal.mark(self.done)
        for event, _ in batch:
            self.journal.drop(event)
        self._attempts, self._singly = 0, False

    def _is_stuck(self) -> bool:
        """Whether the store itself is well, and it is the file of the next event that cannot be stored."""
        waiting = self.journal.waiting(self.done.offset, limit=1)
        if not waiting or waiting[0][0]["kind"] not in CARRIERS or self._client is None:
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

    def _connect(self, header: Event) -> None:
        self._uri = self._with_credentials(header)
        self._client = database.connect(self._uri)

    def _with_credentials(self, header: Event) -> str:
        """The URI of the journal's store; a journal does not hold the password of a database."""
        given = str(header["uri"])
        if bare(self._ours) == given:
            return self._ours
        if header.get("needs_credentials"):
            raise DataError(
                f"{self.journal.home}: its run goes to {given}, whose password no journal keeps; "
                "name that store with its password in MLFLOW_TRACKING_URI and run `paco sync`"
            )
        return given

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
        for start in range(0, len(metrics), METRICS_A_BATCH):
            self._client.log_batch(self.done.run_id, metrics=metrics[start : start + METRICS_A_BATCH])
        for start in range(0, len(params), OTHERS_A_BATCH):
            self._client.log_batch(self.done.run_id, params=params[start : start + OTHERS_A_BATCH])
        for start in range(0, len(tags), OTHERS_A_BATCH):
            self._client.log_batch(self.done.run_id, tags=tags[start : start + OTHERS_A_BATCH])

    def _image(self, event: Event) -> None:
        key, step = event["key"], event["step"]
        if self._attempts > 1 or self._resumed:  # it may have arrived with its answer lost
            stored = [item.path for item in self._client.list_artifacts(self.done.run_id, "images")]
            start = f"images/{key.replace('/', '~')}+step+{step}+timestamp+{event['time']}+"
            if sum(path.startswith(start) for path in stored) >= 2:  # the picture and its small version
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
