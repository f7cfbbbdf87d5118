"""Run stages through DVC from inside an op, and report the outcome."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import dagster as dg
from dagster_pipes import PipesContextData
from pydantic import Field

from dagster_dvc.gates import failed_gates
from dagster_dvc.metrics import read_metrics
from dagster_dvc.partitions import reproduce_each
from dagster_dvc.pipes import open_stage_session, pipes_context_data
from dagster_dvc.process import Completed, began, interrupt_with_parent, run_group, tidy_up
from dagster_dvc.reproduction import LOCK_DIGEST_TAG, Outcome, Reproduction
from dagster_dvc.translator import STAGE_KEY, DagsterDvcTranslator, stage_of
from dvc_project.file_locks import locked
from dvc_project.lockfile import Entry
from dvc_project.process_group import DVC, search_path
from dvc_project.project import DvcProject, ResolvedStage
from dvc_project.repository import tmp_folder
from dvc_project.rwlock import release_dead_locks
from dvc_project.state import ProjectState, data_version

FORCE_TAG = "dvc/force"
DESPITE_TAG = "dvc/despite_checks"
FAILURE_CHARACTERS = 4000
_EVENTS_READ = 200


class DvcResource(dg.ConfigurableResource[Any]):
    """Runs stages of the DVC project in ``project_dir``.

    ``executable`` is the command that starts DVC, by default the ``dvc`` module of this interpreter; give
    another when DVC is in another environment. A Dagster run with the tag ``dvc/force: "true"`` runs its
    stages also where DVC thinks them up to date; one with ``dvc/despite_checks: "true"`` runs them although a
    blocking check refused what they read. A stopped stage has ``grace_seconds`` to end in order.
    """

    project_dir: str
    executable: list[str] = Field(default_factory=list)
    grace_seconds: float = 8.0

    def stream(
        self,
        context: dg.AssetExecutionContext,
        translator: DagsterDvcTranslator | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Iterator[dg.MaterializeResult[Any]]:
        """:meth:`reproduce` each selected asset of an op, producers first; a result as soon as each is made.

        Args:
            context: of an op with one asset or several.
            translator: the one that the assets were made with.
            extras: what the stages may read from Pipes.

        Raises:
            dagster.Failure: see :meth:`reproduce`.
        """
        translator = translator or DagsterDvcTranslator()
        specs = [spec for spec in context.assets_def.specs if spec.key in context.selected_asset_keys]
        if len(specs) > 1:
            if any(_takes_all(context, spec.key) for spec in specs):  # Dagster looks for the key between two assets
                raise dg.Failure("this op has assets with partitions: start the run with a partition")
            order = list(dict.fromkeys(stage.group for stage in DvcProject(self.project_dir).order()))
            specs.sort(key=lambda spec: order.index(str(spec.metadata[STAGE_KEY])))
        for spec in specs:
            yield self._reproduce_asset(context, spec.key, translator, extras or {}).result()

    def reproduce(
        self,
        context: dg.AssetExecutionContext,
        translator: DagsterDvcTranslator | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Reproduction:
        """``dvc --wait-for-lock repro --single-item`` of this asset's stage, in its own process group.

        Of a partitioned asset that is the stage of the run's partition; in a run without one, all its stages, each with
        its own event (:mod:`dagster_dvc.partitions`). The stage may report through Dagster Pipes: the
        environment reaches it through DVC. When the run is terminated, the whole group is ended, half-written outs are
        removed and dead locks released.

        Args:
            context: of an op with one asset; :meth:`stream` also serves ops with several.
            translator: the one that the asset was made with.
            extras: what the stage may read from Pipes.

        Raises:
            dagster.Failure: when the stage failed (with the end of its stderr), already runs elsewhere, or is held
                back by a blocking check that failed in another run (:mod:`dagster_dvc.gates`).
        """
        return self._reproduce_asset(context, context.asset_key, translator or DagsterDvcTranslator(), extras or {})

    def record(self, context: dg.AssetExecutionContext, translator: DagsterDvcTranslator | None = None) -> Reproduction:
        """``dvc commit --force``: take the outs on disk as this stage's results; it ran elsewhere.

        Raises:
            dagster.Failure: when an out is missing, or when the run of a partitioned asset names no partition.
        """
        translator = translator or DagsterDvcTranslator()
        key = context.asset_key
        (stage, *partitions) = _stages(context, key, DvcProject(self.project_dir), translator)
        if partitions:
            raise dg.Failure(f"{stage.group} has partitions: record one of them, in a run with a partition key")
        return self._run(context, key, stage, ["commit", "--force"], lambda *_: "executed", translator, {})

    def _reproduce_asset(
        self,
        context: dg.AssetExecutionContext,
        key: dg.AssetKey,
        translator: DagsterDvcTranslator,
        extras: Mapping[str, Any],
    ) -> Reproduction:
        interrupt_with_parent()
        project = DvcProject(self.project_dir)
        stages = _stages(context, key, project, translator)
        reproduce = partial(self._reproduce, context, key, translator=translator, extras=extras)
        if _takes_all(context, key):
            return reproduce_each(context, key, project, stages, translator, reproduce)
        return reproduce(stages[0])

    def _reproduce(
        self,
        context: dg.AssetExecutionContext,
        key: dg.AssetKey,
        stage: ResolvedStage,
        translator: DagsterDvcTranslator,
        extras: Mapping[str, Any],
    ) -> Reproduction:
        forced = context.run.tags.get(FORCE_TAG) == "true"
        verb = ["repro", "--single-item", *(["--force"] if forced else [])]
        if context.run.tags.get(DESPITE_TAG) != "true":
            _validate_gates(context, DvcProject(self.project_dir, translator.get_derived), stage, translator)
        state = self._run_bookkeeping(context, stage, translator)
        reproduction = None if forced else self._up_to_date(context, key, stage, translator, state)
        reproduction = reproduction or self._run(context, key, stage, verb, _outcome, translator, extras)
        if reproduction.outcome != "executed":
            reproduction = _with_execution_metadata(
                context, reproduction, DvcProject(self.project_dir), stage, translator
            )
        saved = f", saving {reproduction.saved_seconds:.1f} s" if reproduction.saved_seconds else ""
        context.log.info("%s: %s in %.1f s%s", reproduction.stage, reproduction.outcome, reproduction.seconds, saved)
        return reproduction

    def _up_to_date(
        self,
        context: dg.AssetExecutionContext,
        key: dg.AssetKey,
        stage: ResolvedStage,
        translator: DagsterDvcTranslator,
        state: ProjectState,
    ) -> Reproduction | None:
        """A stage that is up to date, described without starting DVC; None where only DVC can tell."""
        start, entry = time.monotonic(), state.lock.get(stage.name)
        if entry is None or not state.is_settled(state.project.stages[stage.name]):
            return None
        metadata = _described(context, state.project, stage, translator)
        return _reproduction(key, state.project, stage, "unchanged", entry, time.monotonic() - start, metadata, ())

    def _run_bookkeeping(
        self, context: dg.AssetExecutionContext, stage: ResolvedStage, translator: DagsterDvcTranslator
    ) -> ProjectState:
        """Run the bookkeeping stages that a stage reads and that would write something else now; the state after it.

        Raises:
            dagster.Failure: when one failed; it is busy while a stage runs that reads what it writes.
        """
        root = Path(self.project_dir)
        with locked(tmp_folder(root) / "dagster-bookkeeping.lock"):
            project = DvcProject(root, translator.get_derived)
            state = ProjectState(project)
            stages = project.bookkeeping(project.stages[stage.name])
            due = [other for other in stages if not state.of(other).in_sync]
            for other in due:
                command = [*self.dvc, "--wait-for-lock", "repro", "--single-item", "--force", other.name]
                context.log.info("%s", " ".join(command))
                environment = {**os.environ, "PATH": search_path()}
                completed = run_group(command, project.root, environment, self.grace_seconds)
                if completed.returncode:
                    raise _failure(other, completed)
        return ProjectState(DvcProject(root, translator.get_derived)) if due else state

    def _run(
        self,
        context: dg.AssetExecutionContext,
        key: dg.AssetKey,
        stage: ResolvedStage,
        verb: Sequence[str],
        outcome: Callable[[Completed, bool, bool], Outcome],
        translator: DagsterDvcTranslator,
        extras: Mapping[str, Any],
    ) -> Reproduction:
        project = DvcProject(self.project_dir)
        release_dead_locks(project.root)
        before = project.lock().get(stage.name)
        command = [*self.dvc, "--wait-for-lock", *verb, stage.name]
        context.log.info("%s", " ".join(command))
        data = pipes_context_data(context, key, translator.partition_key(stage), extras)
        completed, reported = self.execute(context, project, stage, command, data)
        after = project.lock().get(stage.name) if completed.returncode == 0 else None
        if after is None:
            raise _failure(stage, completed)
        metadata = _described(context, project, stage, translator)
        checks: list[dg.AssetCheckResult] = []
        metrics = read_metrics(project, stage)  # described already, rounded and in order
        for result in reported:
            metadata |= {k: v for k, v in (getattr(result, "metadata", None) or {}).items() if k not in metrics}
            checks += list(getattr(result, "check_results", None) or [])
        happened = outcome(completed, bool(reported), after == before)
        return _reproduction(key, project, stage, happened, after, completed.seconds, metadata, checks)

    def execute(
        self,
        context: dg.AssetExecutionContext,
        project: DvcProject,
        stage: ResolvedStage,
        command: Sequence[str],
        data: PipesContextData,
    ) -> tuple[Completed, list[Any]]:
        """Run DVC's command with Pipes around it: how it ended, and what the stage reported.

        Here in its own process group; a subclass may run it on another machine that sees the project's folder.

        Args:
            context: of the op.
            project: read before the command.
            stage: that the command runs.
            command: of DVC, in the project's folder.
            data: for :func:`dagster_dvc.pipes.open_stage_session`.
        """
        pipes = dg.PipesTempFileContextInjector(), dg.PipesTempFileMessageReader()
        with open_stage_session(context, *pipes, data) as session:
            stopped = partial(_tidy, context, project, stage)
            completed = run_group(command, project.root, self.environment(session), self.grace_seconds, stopped)
        return completed, list(session.get_results(implicit_materializations=False))

    @property
    def dvc(self) -> list[str]:
        return self.executable or [*DVC]

    def environment(self, session: dg.PipesSession) -> dict[str, str]:
        """This interpreter comes first on the path: ``python`` in a ``cmd`` means the one that runs Dagster."""
        return {**os.environ, "PATH": search_path(), **session.get_bootstrap_env_vars()}


def _takes_all(context: dg.AssetExecutionContext, key: dg.AssetKey) -> bool:
    """Whether a run without a partition key makes all partitions of an asset."""
    return context.assets_def.get_asset_spec(key).partitions_def is not None and not context.has_partition_key


def _stages(
    context: dg.AssetExecutionContext, key: dg.AssetKey, project: DvcProject, translator: DagsterDvcTranslator
) -> tuple[ResolvedStage, ...]:
    """The stages that an asset stands for in this run.

    The asset says whether it has partitions: in one run with a partition key there may be assets without.
    """
    spec = context.assets_def.get_asset_spec(key)
    group = str(spec.metadata[STAGE_KEY])
    if _takes_all(context, key):
        return project.groups[group].stages
    partition = context.partition_key if spec.partitions_def is not None else None
    return (stage_of(project, translator, group, partition),)


def _validate_gates(
    context: dg.AssetExecutionContext, project: DvcProject, stage: ResolvedStage, translator: DagsterDvcTranslator
) -> None:
    if failed := failed_gates(context.instance, project, stage, translator, context.run_id):
        text = f"stage {stage.name} is held back; the run tag {DESPITE_TAG} = true runs it anyway\n"
        raise dg.Failure(text + "\n".join(failed), allow_retries=False)


def _reproduction(
    key: dg.AssetKey,
    project: DvcProject,
    stage: ResolvedStage,
    outcome: Outcome,
    entry: Entry,
    seconds: float,
    metadata: Mapping[str, Any],
    checks: Sequence[dg.AssetCheckResult],
) -> Reproduction:
    return Reproduction(
        asset_key=key,
        stage=stage.name,
        outcome=outcome,
        md5s=entry.outs,
        data_version=data_version(stage, entry),
        lock_digest=entry.digest,
        project=str(project.root),
        seconds=seconds,
        metadata=metadata,
        check_results=checks,
    )


def _described(
    context: dg.AssetExecutionContext, project: DvcProject, stage: ResolvedStage, translator: DagsterDvcTranslator
) -> dict[str, Any]:
    """The translator's metadata. An image that cannot be drawn must not undo hours of work: it is reported."""
    try:
        return dict(translator.get_materialization_metadata(project, stage))
    except Exception as error:
        context.log.warning("%s ran, but its outs could not be described: %r", stage.name, error)
        return {"dvc/not_described": repr(error)}


def _with_execution_metadata(
    context: dg.AssetExecutionContext,
    reproduction: Reproduction,
    project: DvcProject,
    stage: ResolvedStage,
    translator: DagsterDvcTranslator,
) -> Reproduction:
    """A version that was restored or left alone, with the metadata of the run that made it."""
    event = executed_event(context, reproduction, translator.partition_key(stage))
    if event is None:
        seconds = translator.get_usual_seconds(project, stage)
        metadata: dict[str, Any] = {}
    else:
        seconds = float(str(event.metadata["dvc/seconds"].value))
        names = {*read_metrics(project, stage), *reproduction.metadata}
        metadata = {
            name: value
            for name, value in event.metadata.items()
            if not name.startswith(("dvc/", "dagster")) and name not in names
        }
    saved = None if seconds is None else max(0.0, seconds - reproduction.seconds)
    return replace(reproduction, saved_seconds=saved, metadata={**reproduction.metadata, **metadata})


def executed_event(
    context: dg.AssetExecutionContext, reproduction: Reproduction, partition: str | None
) -> dg.AssetMaterialization | None:
    """The materialization whose run made a recorded version of an asset; None when Dagster did not see it."""
    partitions = [partition] if partition is not None else None
    records = dg.AssetRecordsFilter(asset_key=reproduction.asset_key, asset_partitions=partitions)
    for record in context.instance.fetch_materializations(records, limit=_EVENTS_READ).records:
        event = record.asset_materialization
        if event is None or (event.tags or {}).get(LOCK_DIGEST_TAG) != reproduction.lock_digest:
            continue
        outcome = event.metadata.get("dvc/outcome")
        if outcome is not None and outcome.value == "executed" and "dvc/seconds" in event.metadata:
            return event
    return None


def _tidy(context: dg.AssetExecutionContext, project: DvcProject, stage: ResolvedStage, completed: Completed) -> None:
    for line in tidy_up(project, stage, completed):
        context.log.warning("%s", line)


def _outcome(completed: Completed, reported: bool, same_entry: bool) -> Outcome:
    """A stage that ran says so, through Pipes or in DVC's words; a silent one changed the lock or did not."""
    if reported or began(completed):
        return "executed"
    return "unchanged" if same_entry else "restored"


def _failure(stage: ResolvedStage, completed: Completed) -> dg.Failure:
    output = completed.stderr.strip() or completed.stdout.strip()
    if busy := re.search(r"is busy, it is being blocked by:\s*(.*(?:\n\s+.*)*)", output):
        text = f"stage {stage.name} is busy: another process runs it or writes what it reads.\n{busy[1].strip()}"
    else:
        text = f"stage {stage.name} failed (dvc ended with {completed.returncode})\n{output}"
    if len(text) > FAILURE_CHARACTERS:
        head, _, tail = text.partition("\n")
        text = f"{head}\n…{tail[-(FAILURE_CHARACTERS - len(head) - 2) :]}"
    return dg.Failure(
        description=text, metadata={"dvc/seconds": completed.seconds, "dvc/returncode": completed.returncode}
    )
