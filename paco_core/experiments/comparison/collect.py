"""What a comparison needs of each run, read from MLflow."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError
from paco_core.io.nearest import meant
from paco_core.io.pictures import read_image
from paco_core.io.project import EXPERIMENT_TAG
from paco_core.io.secrets import bare
from paco_core.runtime.provenance.chain import STAGE_TAG
from paco_core.runtime.tracking import brief_requests, connect, run_url, tracking_uri
from paco_core.runtime.tracking.delivery import short

if TYPE_CHECKING:
    from PIL.Image import Image

_PICTURE = re.compile(r"^images/(?P<key>.+)\+step\+(?P<step>-?\d+)\+timestamp\+(?P<time>\d+)\+[0-9a-f-]{36}\.png$")
SAMPLES = "samples_seen"
LATEST = 8


@dataclass(frozen=True)
class Point:
    step: int
    value: float
    samples: float | None  # samples seen at this step, where the run logs them


@dataclass(frozen=True)
class ComparedRun:
    """One run: its figures, curves, parameters, tags, and where its pictures lie."""

    run_id: str
    name: str
    experiment: str
    status: str
    seconds: float | None
    url: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    datasets: Mapping[str, str]  # name -> digest
    curves: Mapping[str, Sequence[Point]] = field(default_factory=dict)
    pictures: Mapping[tuple[str, int], str] = field(default_factory=dict)  # (key, step) -> artefact
    samples: Mapping[int, float] = field(default_factory=dict)  # step -> samples seen, where the run logs them

    @property
    def title(self) -> str:
        """Its name, with the experiment of DVC that it belongs to: runs of one stage have the same name."""
        of = self.tags.get(EXPERIMENT_TAG)
        return f"{self.name} ({of})" if of else self.name

    @property
    def stage(self) -> str | None:
        return self.tags.get(STAGE_TAG)


class Runs:
    """Reads runs of one store.

    Raises:
        DataError: when the store does not answer.
    """

    def __init__(self, root: Path) -> None:
        self._uri = tracking_uri(root)
        try:
            with brief_requests():
                self._client = connect(self._uri)
                self._experiments = {e.experiment_id: e.name for e in self._client.search_experiments()}
        except Exception as error:  # of requests, SQLAlchemy or MLflow
            raise DataError(f"MLflow at {bare(self._uri)} does not answer ({short(error)})") from None

    def find(self, text: str) -> list[ComparedRun]:
        """A run by its id, the beginning of its id, or its name (the latest of that name).

        The name of an experiment of DVC stands for its runs, in the order in which they began (of a stage that ran
        again the last one); ``NAME:STAGE``, as ``fazed-lich:policies@flux_t2is``, for that of one stage.

        Raises:
            DataError: when none is meant, or several that are no experiment.
        """
        with brief_requests():
            return [self._read(run) for run in self._find(text)]

    def _find(self, text: str) -> list[Any]:
        from mlflow.exceptions import MlflowException

        if re.fullmatch(r"[0-9a-f]{32}", text):
            try:
                return [self._client.get_run(text)]
            except MlflowException:
                raise DataError(f"MLflow at this project has no run {text}") from None
        ids = list(self._experiments)
        latest = ["attributes.start_time DESC"]
        named = self._client.search_runs(
            ids, f"attributes.run_name = '{_quoted(text)}'", order_by=latest, max_results=1
        )
        if named := named or self._of_experiment(ids, text):
            return list(named)
        if re.fullmatch(r"[0-9a-f]{4,31}", text):
            found = self._by_prefix(ids, text)
            if len(found) == 1:
                return found
            if found:
                raise DataError(f"{text} is the beginning of the ids of {len(found)} runs; give more characters")
        recent = self._client.search_runs(ids, order_by=latest, max_results=LATEST)
        latest_runs = ", ".join(f"{run.info.run_id[:8]} ({run.info.run_name})" for run in recent) or "none"
        raise DataError(
            f"no run or experiment is called {text!r}, nor does an id begin with it; "
            f"{meant(text, {run.info.run_name for run in recent})}the latest are: {latest_runs}"
        )

    def _of_experiment(self, ids: list[str], text: str) -> list[Any]:
        name, _, stage = text.partition(":")
        wanted = f"tags.`{EXPERIMENT_TAG}` = '{_quoted(name)}'"
        if stage:
            wanted += f" and tags.`{STAGE_TAG}` = '{_quoted(stage)}'"
        found = self._client.search_runs(ids, wanted, order_by=["attributes.start_time ASC"], max_results=1000)
        return list({run.data.tags.get(STAGE_TAG, run.info.run_id): run for run in found}.values())

    def _by_prefix(self, ids: list[str], prefix: str) -> list[Any]:
        found: list[Any] = []
        token: str | None = None
        while True:
            page = self._client.search_runs(ids, max_results=1000, page_token=token)
            found += [run for run in page if run.info.run_id.startswith(prefix)]
            token = page.token
            if not token:
                return found

    def _read(self, run: Any) -> ComparedRun:
        info, run_id = run.info, run.info.run_id
        histories = {
            key: [(m.step, m.value) for m in self._client.get_metric_history(run_id, key)]
            for key in run.data.metrics
            if not key.startswith("system/")
        }
        samples = dict(histories.get(SAMPLES, []))
        curves = {
            key: [Point(step, value, samples.get(step)) for step, value in sorted(points)]
            for key, points in histories.items()
            if len(points) > 1 and key not in (SAMPLES, "epoch")
        }
        pictures: dict[tuple[str, int], str] = {}
        if any(item.path == "images" for item in self._client.list_artifacts(run_id)):
            for item in self._client.list_artifacts(run_id, "images"):
                if named := _PICTURE.match(item.path):
                    pictures[named["key"].replace("~", "/"), int(named["step"])] = item.path
        seconds = (info.end_time - info.start_time) / 1000 if info.end_time else None
        return ComparedRun(
            run_id=run_id,
            name=info.run_name,
            experiment=self._experiments.get(info.experiment_id, info.experiment_id),
            status=info.status,
            seconds=seconds,
            url=run_url(self._uri, info.experiment_id, run_id),
            metrics={k: v for k, v in run.data.metrics.items() if not k.startswith("system/")},
            params=run.data.params,
            tags=run.data.tags,
            datasets={d.dataset.name: d.dataset.digest for d in run.inputs.dataset_inputs} if run.inputs else {},
            curves=curves,
            pictures=pictures,
            samples=samples,
        )

    def picture(self, run: ComparedRun, key: str, step: int) -> Image:
        """A logged picture, loaded into memory."""
        with tempfile.TemporaryDirectory() as folder, brief_requests():
            path = self._client.download_artifacts(run.run_id, run.pictures[key, step], folder)
            return read_image(Path(path), f"{run.pictures[key, step]} of run {run.run_id}")


def _quoted(text: str) -> str:
    return text.replace("'", "")


def differing(columns: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all columns, sorted."""
    keys = sorted({key for column in columns for key in column})
    return [key for key in keys if len({repr(column.get(key)) for column in columns}) > 1]
