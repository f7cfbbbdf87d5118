"""Runs of MLflow that are compared: figures, curves, parameters, pictures, and scores of single samples."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from paco_core.benchmarks.statistics import Estimate, estimate_difference
from paco_core.io.files import DataError, read_json, read_table
from paco_core.io.messages import did_you_mean
from paco_core.io.pictures import read_image
from paco_core.io.project import EXPERIMENT_TAG
from paco_core.runtime.provenance.chain import STAGE_TAG, SUMMARY_TAG
from paco_core.runtime.tracking import connect, run_url, tracking_uri

if TYPE_CHECKING:
    from PIL.Image import Image

_PICTURE = re.compile(r"^images/(?P<key>.+)\+step\+(?P<step>-?\d+)\+timestamp\+(?P<time>\d+)\+[0-9a-f-]{36}\.png$")
SAMPLES = "samples_seen"
LATEST = 8
EVALUATION = "evaluation.json"  # of a training: scores of each image before and after
TABLES = "tables"  # of a benchmark: one folder per stage, with a table of its cases

#: Scores by metric, indexed by the group that a case belongs to and by the case.
Samples = Mapping[str, "pd.Series[float]"]


@dataclass(frozen=True)
class ComparedRun:
    """One run: its figures, curves, parameters, tags, and where its pictures lie."""

    run_id: str
    title: str  # its name, with the experiment of DVC that it belongs to: runs of one stage have the same name
    experiment: str
    status: str
    seconds: float | None
    url: str
    metrics: Mapping[str, float]
    params: Mapping[str, str]
    tags: Mapping[str, str]
    datasets: Mapping[str, str]  # name -> digest
    curves: Mapping[str, Sequence[tuple[int, float]]]  # (step, value) in order
    pictures: Mapping[tuple[str, int], str]  # (key, step) -> artefact
    samples: Mapping[int, float]  # step -> samples seen, where the run logs them
    started: int = 0  # milliseconds since 1970
    scores: Samples = field(default_factory=dict)  # of single samples, where the run logged them


class Runs:
    """Reads runs of one store.

    Raises:
        DataError: when the store does not answer.
    """

    def __init__(self, root: Path) -> None:
        self._uri = tracking_uri(root)
        self._client = connect(self._uri)
        self._experiments = {e.experiment_id: e.name for e in self._client.search_experiments()}

    def find(self, text: str) -> list[ComparedRun]:
        """A run by its id, the beginning of its id, or its name (the latest of that name).

        The name of an experiment of DVC stands for its runs, in the order in which they began (of a stage that ran
        again the last one); ``NAME:STAGE``, as ``fazed-lich:policies@flux_t2is``, for that of one stage.

        Raises:
            DataError: when none is meant, or several that are no experiment.
        """
        return [self._read(run) for run in self._find(text.replace("'", ""))]

    def _find(self, text: str) -> list[Any]:
        name, _, stage = text.partition(":")
        experiment = f"tags.`{EXPERIMENT_TAG}` = '{name}'" + (f" and tags.`{STAGE_TAG}` = '{stage}'" if stage else "")
        if matches := self._search(f"attributes.run_name = '{text}'", 1):
            return matches
        if of := self._search(experiment)[::-1]:
            return list({run.data.tags.get(STAGE_TAG, run.info.run_id): run for run in of}.values())
        matches = self._search(f"attributes.run_id LIKE '{text}%'") if re.fullmatch(r"[0-9a-f]{4,32}", text) else []
        if len(matches) == 1:
            return matches
        if matches:
            raise DataError(f"{text} is the beginning of the ids of {len(matches)} runs; give more characters")
        recent = self._search("", LATEST)
        latest = ", ".join(f"{run.info.run_id[:8]} ({run.info.run_name})" for run in recent) or "none"
        raise DataError(
            f"no run or experiment is called {text!r}, nor does an id begin with it; "
            f"{did_you_mean(text, {run.info.run_name for run in recent})}the latest are: {latest}"
        )

    def _search(self, query: str, most: int = 1000) -> list[Any]:
        """Runs of all experiments, the latest first."""
        latest = ["attributes.start_time DESC"]
        return list(self._client.search_runs(list(self._experiments), query, order_by=latest, max_results=most))

    def _read(self, run: Any) -> ComparedRun:
        info, tags, run_id = run.info, run.data.tags, run.info.run_id
        metrics = {key: value for key, value in run.data.metrics.items() if not key.startswith("system/")}
        histories = {
            key: sorted((m.step, m.value) for m in self._client.get_metric_history(run_id, key)) for key in metrics
        }
        artifacts = {item.path for item in self._client.list_artifacts(run_id)}
        images = "images" in artifacts
        logged = self._client.list_artifacts(run_id, "images") if images else []
        matches = [match for item in logged if (match := _PICTURE.match(item.path))]
        return ComparedRun(
            run_id=run_id,
            title=f"{info.run_name} ({tags[EXPERIMENT_TAG]})" if tags.get(EXPERIMENT_TAG) else info.run_name,
            experiment=self._experiments.get(info.experiment_id, info.experiment_id),
            status=info.status,
            seconds=(info.end_time - info.start_time) / 1000 if info.end_time else None,
            url=run_url(self._uri, info.experiment_id, run_id),
            metrics=metrics,
            params=run.data.params,
            tags=tags,
            datasets={d.dataset.name: d.dataset.digest for d in run.inputs.dataset_inputs} if run.inputs else {},
            curves={k: h for k, h in histories.items() if len(h) > 1 and k not in (SAMPLES, "epoch")},
            pictures={(match["key"].replace("~", "/"), int(match["step"])): match.string for match in matches},
            samples=dict(histories.get(SAMPLES, [])),
            started=info.start_time,
            scores=with_summary(self._scores(run_id, artifacts & {EVALUATION, TABLES}), tags),
        )

    def _scores(self, run_id: str, artifacts: set[str]) -> Samples:
        with tempfile.TemporaryDirectory() as folder:
            for name in artifacts:
                self._client.download_artifacts(run_id, name, folder)
            return read_samples(Path(folder))

    def picture(self, run: ComparedRun, key: str, step: int) -> Image:
        """A logged picture, loaded into memory."""
        with tempfile.TemporaryDirectory() as folder:
            path = self._client.download_artifacts(run.run_id, run.pictures[key, step], folder)
            return read_image(Path(path), f"{run.pictures[key, step]} of run {run.run_id}")


def read_samples(folder: Path) -> Samples:
    """The scores in the artifacts of one run, by the names of the metrics that are their means.

    Raises:
        DataError: when a file is damaged.
    """
    samples: dict[str, pd.Series[float]] = {}
    if (folder / EVALUATION).is_file():
        samples |= _of_training(read_json(folder / EVALUATION))
    for file in sorted((folder / TABLES).glob("*/per_*.parquet")):
        samples |= _of_benchmark(file.parent.name, read_table(file))
    return samples


def with_summary(samples: Samples, tags: Mapping[str, str]) -> Samples:
    """The scores, also by the names of the summary metrics that repeat a metric of the training log.

    Raises:
        DataError: when the tag of the run is damaged.
    """
    try:
        sources: dict[str, str] = json.loads(tags.get(SUMMARY_TAG, "{}"))
        return {**samples, **{name: samples[key] for name, key in sources.items() if key in samples}}
    except (ValueError, AttributeError) as error:
        raise DataError(f"tag {SUMMARY_TAG} of a run: expected a JSON object ({error}); remove the tag") from None


def _of_training(evaluation: Mapping[str, Any]) -> Iterator[tuple[str, pd.Series[float]]]:
    """``eval/64/x``, the score before training, and ``change/64/x``."""
    cases = pd.MultiIndex.from_product([evaluation["prompts"], evaluation["seeds"]])
    before, after = (
        {name: pd.Series([score for row in rows for score in row], cases, dtype=float) for name, rows in scores.items()}
        for scores in (evaluation["before"], evaluation["after"])
    )
    for name, scores in after.items():
        yield f"eval/{name}", scores
        if name in before:
            yield f"policies/eval.{name.replace('/', '.')}.before", before[name]
            yield f"change/{name}", scores - before[name]


def _of_benchmark(stage: str, table: pd.DataFrame) -> Iterator[tuple[str, pd.Series[float]]]:
    """``<stage>/<policy>.px<size>.<measure>.<when>`` and its change, or ``<stage>/<method>.<measure>``."""
    if "panels" in table and table["panels"].nunique() > 1:
        return  # means that weigh sets by their panels
    group = "picture" if "picture" in table else "prompt_id"
    case = "instance_id" if "instance_id" in table else "seed"
    if group not in table or case not in table:
        return
    table = table.set_index([table[group].astype(str), table["prompt_id"].astype(str) + " " + table[case].astype(str)])
    measures = list(table.select_dtypes("float"))
    if "policy" not in table:
        for method, rows in table.groupby("method"):
            yield from ((f"{stage}/{method}.{name}", rows[name]) for name in measures)
        return
    for (policy, size), rows in table.groupby(["policy", "size"]):
        sides = {str(phase): part[measures] for phase, part in rows.groupby("when")}
        for name in measures:
            key = f"{stage}/{policy}.px{size}.{name}"
            yield from ((f"{key}.{phase}", part[name]) for phase, part in sides.items())
            if {"before", "after"} <= sides.keys():
                yield f"{key}.change", sides["after"][name] - sides["before"][name]


def paired_difference(first: pd.Series[float], second: pd.Series[float]) -> Estimate:
    """Mean of first - second over the cases that both runs have, with its 95% interval over groups.

    A case that only one of them has counts as missing.
    """
    joined = first.to_frame("first").join(second.to_frame("second"), how="outer")
    groups = [str(group) for group, _ in joined.index]
    return estimate_difference(joined["first"].to_numpy(), joined["second"].to_numpy(), groups=groups)
