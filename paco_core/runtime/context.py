"""Stage context: the parameters, paths and progress of a stage, and one function to report metrics.

A stage reports its metrics once. They go to its DVC metrics file and its MLflow run. If Dagster started the stage, they
also go to the page of the asset, through Pipes.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dvc_project.lockfile import Inputs, Lock
from dvc_project.project import stages_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.config.references import is_folder
from paco_core.io import files, paths
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.progress import Progress
from paco_core.io.secrets import redacted
from paco_core.models.tokens import forget_texts, report_texts
from paco_core.runtime import checkpoints, metrics_text
from paco_core.runtime.code.inputs import StageInputs
from paco_core.runtime.code.stage_code import StageCode
from paco_core.runtime.process import prepare_process
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import RECIPE_TAG, STAGE_TAG, Run
from paco_core.runtime.rounds import params_of, placed
from paco_core.runtime.stage import Stage, write_skipped
from paco_core.runtime.tracking import Tracker, dagster_url, flatten, git_state, open_run
from paco_core.runtime.tracking.journal import NOTE_TAG
from paco_core.runtime.tracking.views import saved_view

if TYPE_CHECKING:
    from dagster_pipes import PipesContext
    from PIL import Image


_UNDECLARED = Stage()
_DEFAULTS, _RECIPES = "policies.defaults.", "policies.recipes."


@dataclass
class StageContext:
    """The surroundings of one running stage."""

    name: str
    item: str | None
    root: Path
    params: Params
    tracker: Tracker
    pipes: PipesContext | None
    # As they were when the stage started: code, libraries and files that parameters name; md5s of inputs, parameters.
    code: StageCode = field(default_factory=StageCode)
    inputs: Inputs | None = None
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    endpoint: str | None = None  # names of the servers that scored, with their fingerprints
    _reported: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        forget_texts()  # what ran before in this process is not counted for this stage

    @property
    def label(self) -> str:
        return stage_label(self.name, self.item)

    @property
    def round(self) -> str | None:
        """The number of the round in which the stage runs; None where it runs by itself."""
        return self.item if paths.in_round(self.name) else None

    def place(self, path: Path) -> Path:
        """A path of :mod:`paco_core.io.paths` as this stage uses it: in a round the round's own."""
        return placed(self.root, self.label, path)

    def read(self, path: Path) -> Path:
        """The absolute path of an input of this stage; logged as a data set with its DVC md5.

        Raises:
            DataError: when it does not exist, naming the stage that makes it.
        """
        return self._input(self.place(path))

    def read_before(self, path: Path) -> Path:
        """In a round the absolute path of what the round before made, which is an input, too.

        Raises:
            DataError: when it does not exist, naming the stage that makes it.
        """
        return self._input(Path(self.params.rounds.items[str(self.round)].after, path.relative_to(paths.DATA)))

    def _input(self, path: Path) -> Path:
        full = self.root / path
        if not full.exists():
            owner = paths.producer(path)
            hint = f"; it is made by `dvc repro {owner}`" if owner else ""
            raise DataError(f"stage {self.label}: input {path} is missing{hint}")
        dep = path.as_posix()
        md5 = self.code.files.get(dep) or (self.inputs.deps.get(dep) if self.inputs else None)
        if md5:
            self.tracker.dataset(dep.removeprefix("data/"), dep, md5)
        return full

    def model(self, name: str) -> str | Path:
        """A model of the project by its folder, read as an input; a name of a hub as it is.

        Raises:
            DataError: when it names a path below ``data/`` where nothing is.
        """
        return self.read(Path(name)) if is_folder(self.root, name) else name

    def writing(self, path: Path) -> AbstractContextManager[Path]:
        """A temporary path that becomes the out ``path`` when the block succeeds."""
        return atomic(self.root / self.place(path), replace=True)

    def progress(self, total: int, unit: str, label: str | None = None) -> Progress:
        return Progress(total, label or self.label, unit, self.log)

    def log(self, line: str) -> None:
        """A plain line in the log of the terminal and of the Dagster run, without secrets."""
        line = redacted(line)
        print(line, file=sys.stderr, flush=True)
        if self.pipes is not None:
            self.pipes.log.info(line)

    def image(self, image: Image.Image, key: str, step: int = 0) -> None:
        """A picture for people, in full size in MLflow. The asset's page draws its own sheet from the outs."""
        self.tracker.image(image, key, step)

    def skip(self, path: Path, reason: str) -> None:
        """End a stage that has nothing to do: its out ``path`` says why, and there are no figures."""
        with self.writing(path) as out:
            write_skipped(out, reason)
        self.log(f"{self.label}: skipped: {reason}")
        self.report({}, skipped=reason)

    def report(
        self,
        metrics: Mapping[str, float],
        measures: Mapping[str, Path] | None = None,
        /,
        *,
        tracked: Collection[str] | None = None,
        **notes: str | int | float,
    ) -> None:
        """Report the stage's metrics, once, at its end, with how many texts a model has cut (:func:`report_texts`).

        Args:
            metrics: may be nested by dotted names; NaN is written as null, for JSON has no NaN.
            measures: the beginnings of names of figures, and the out that holds the model which they measure: MLflow
                shows them on its page, too.
            tracked: names of the metrics that MLflow gets; None = all. A training has logged others as curves.
            notes: are shown on the asset's page only.
        """
        metrics = {**metrics, **report_texts(self.log)}
        self._reported = {**metrics, **notes}
        clean = {k: None if isinstance(v, float) and math.isnan(v) else v for k, v in metrics.items()}
        file = paths.metrics_file(self.name, self.item)
        files.write_json(self.root / file, clean)
        left = {f"{self.name}/{k}": float(v) for k, v in metrics.items() if tracked is None or k in tracked}
        for start, path in (measures or {}).items():
            of_model = {k: v for k, v in left.items() if k.startswith(f"{self.name}/{start}")}
            left = {k: v for k, v in left.items() if k not in of_model}
            self.tracker.metrics(of_model, measures=self._maker(self.place(path)))
        self.tracker.metrics(left)
        if metrics:
            self.log(f"{self.label}: {metrics_text.metrics_line(metrics, file.as_posix())}")

    def _maker(self, path: Path) -> str | None:
        """The MLflow run that made an out of another stage; "" for this one, None where it is not known."""
        if any(path.as_posix() == out.path for out in stages_of(self.root)[self.label].outs):
            return ""
        entry = Lock.read(self.root).maker(path.as_posix())
        run = records.load_run(self.root, entry.stage, entry.inputs.digest) if entry else None
        return run.mlflow_run if run else None

    def run(self) -> Run:
        """What is known of this stage's run: recorded beside its outs, never in them."""
        git = git_state(self.root)
        return Run(
            mlflow_run=self.tracker.run_id,
            mlflow_url=self.tracker.url,
            started=self.started.isoformat(timespec="seconds"),
            seconds=round((datetime.now(UTC) - self.started).total_seconds(), 1),
            profile=self.params.profile,
            git_commit=git.get("git.commit"),
            git_dirty=git["git.dirty"] == "true" if git else None,
            dagster_run=self.pipes.run_id if self.pipes else None,
            dagster_asset="/".join(self.pipes.asset_keys) if self.pipes else None,
            endpoint=self.endpoint,
        )

    def _materialise(self) -> None:
        if self.pipes is None:
            return
        metadata: dict[str, Any] = {k: v for k, v in self._reported.items() if v is not None}
        metadata = {k: str(v) if isinstance(v, float) and math.isnan(v) else v for k, v in metadata.items()}
        metadata["mlflow_run"] = _link(self.tracker.url, "the run is not in MLflow yet; its figures are kept locally")
        self.pipes.report_asset_materialization(metadata=metadata)

    def _prune_checkpoints(self) -> None:
        """Remove old checkpoints of all stages. This stage is complete, so an error is only a warning."""
        try:
            checkpoints.prune(self.root, self.params.checkpoints_gb)
        except OSError as error:
            self.log(f"warning: cannot remove old checkpoints ({error}); run `paco checkpoints drop` to free the disk")


def _link(url: str | None, otherwise: str) -> Any:
    return {"type": "url", "raw_value": url} if url else otherwise


@contextmanager
def _dagster_pipes() -> Iterator[PipesContext | None]:
    """Pipes to Dagster when it started this process, else None (outside, Pipes hands out a mock)."""
    if "DAGSTER_PIPES_CONTEXT" not in os.environ:
        yield None
        return
    from dagster_pipes import open_dagster_pipes

    with open_dagster_pipes() as pipes:
        yield pipes


@contextmanager
def open_stage(name: str, item: str | None, root: Path, stage: Stage = _UNDECLARED) -> Iterator[StageContext]:
    """Everything a stage needs, opened and closed around it.

    Raises:
        ParamsError: when ``params.yaml`` is invalid; nothing has been started then.
        DataError: when code or parameters are not what the stage ``code`` recorded; at the end, when anything that
            the stage reads was changed meanwhile.
    """
    params = params_of(load(root / PARAMS_FILE), name, item)
    prepare_process(params.threads)
    label = stage_label(name, item)
    reads = StageInputs.present(root, name, item)
    reads.validate_recorded_code(root)
    code, inputs = reads.code, reads.recipe
    described = stages_of(root).get(label)
    about = (described.desc if described else None) or ""
    tags = {STAGE_TAG: label, "profile": params.profile, "mlflow.source.name": label}
    if inputs is not None:
        tags[RECIPE_TAG] = inputs.digest
    views = saved_view(name, stage.view) if stage.view else None
    with (
        _dagster_pipes() as pipes,
        open_run(
            root, experiment(name), run_name(params, name, item, stage), tags, about=about, views=views
        ) as tracker,
    ):
        if pipes is not None:
            page = f"Dagster run: {dagster_url(pipes.run_id)}"
            tracker.tags(
                {
                    "dagster.run_id": pipes.run_id,
                    "dagster.asset_key": "/".join(pipes.asset_keys),
                    NOTE_TAG: page,
                }
            )
        declared = inputs.params.get(PARAMS_FILE, {}) if inputs else {}
        values = flatten({"profile": params.profile, **code.resolved, **declared})
        tracker.params(recipe_params(values) if stage.trains_recipe else values)
        context = StageContext(name, item, root, params, tracker, pipes, code, inputs)
        yield context
        reads.validate_unchanged(root, name, item)
        context._materialise()
        if inputs is not None:
            records.save_run(root, label, inputs.digest, context.run())
        context._prune_checkpoints()


def recipe_params(values: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters of a run that trains one recipe: ``policies.recipes.NAME.KEY`` is ``recipe.KEY``.

    A default, ``policies.defaults.KEY``, is ``recipe.KEY``, too, if the recipe does not set the key.
    """
    defaults, specific, remaining = dict[str, Any](), dict[str, Any](), dict[str, Any]()
    for key, value in values.items():
        if key.startswith(_DEFAULTS):
            defaults[f"recipe.{key.removeprefix(_DEFAULTS)}"] = value
        elif key.startswith(_RECIPES):
            specific[f"recipe.{key.removeprefix(_RECIPES).partition('.')[2]}"] = value
        else:
            remaining[key] = value
    return {**remaining, **defaults, **specific}


def experiment(name: str) -> str:
    """One experiment a stage: its runs can be compared."""
    return f"paco/{name}"


def stage_label(name: str, item: str | None) -> str:
    """What DVC calls a stage, or one item of it: ``grids@0``."""
    return f"{name}@{item}" if item else name


def run_name(params: Params, name: str, item: str | None, stage: Stage) -> str:
    """``policies/flux_t2is/storybook/seed0``: what ran, at which scale, with which seed; never a date."""
    seed = stage.seed(params, item) if stage.seed else getattr(getattr(params, name, None), "seed", None)
    parts = [name, item, params.profile, None if seed is None else f"seed{seed}"]
    return "/".join(part for part in parts if part)
