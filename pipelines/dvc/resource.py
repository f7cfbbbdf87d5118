"""Run a stage through DVC from inside an asset, and say what came of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import dagster as dg
from dagster import PipesSession, PipesTempFileContextInjector, PipesTempFileMessageReader, open_pipes_session
from pydantic import Field

from pipelines.dvc.gates import failed_gates
from pipelines.dvc.process import DVC, Completed, began, run_group, search_path
from pipelines.dvc.project import DvcProject, LockEntry, Stage
from pipelines.dvc.state import data_version
from pipelines.dvc.tidying import tidy_up
from pipelines.dvc.translator import STAGE_KEY, DagsterDvcTranslator, stage_of

Outcome = Literal["executed", "restored", "unchanged"]
LOCK_DIGEST_TAG = "dvc/lock_digest"
FORCE_TAG = "dvc/force"
DESPITE_TAG = "dvc/despite_checks"
FAILURE_CHARACTERS = 4000
_EVENTS_READ = 200


@dataclass(frozen=True)
class Reproduction:
    """What ``dvc repro`` did: ran the stage, restored its outs from the run cache, or found nothing to do."""

    stage: str
    outcome: Outcome
    md5s: Mapping[str, str]
    data_version: str
    lock_digest: str
    seconds: float
    saved_seconds: float | None = None  # what a run would have taken longer, where that is known
    metadata: Mapping[str, Any] = field(default_factory=dict)
    check_results: Sequence[dg.AssetCheckResult] = ()

    def result(self, **metadata: Any) -> dg.MaterializeResult[Any]:
        """The materialisation: data version = md5, the stage's own metadata and ``metadata``."""
        saved = {} if self.saved_seconds is None else {"dvc/saved_seconds": round(self.saved_seconds, 2)}
        return dg.MaterializeResult(
            data_version=dg.DataVersion(self.data_version),
            metadata={
                "dvc/stage": self.stage,
                "dvc/outcome": self.outcome,
                "dvc/seconds": round(self.seconds, 2),
                **saved,
                "dvc/md5": dg.MetadataValue.json(dict(self.md5s)),
                **self.metadata,
                **metadata,
            },
            tags={LOCK_DIGEST_TAG: self.lock_digest},
            check_results=list(self.check_results),
        )


class DvcResource(dg.ConfigurableResource[Any]):
    """Runs stages of the DVC project in ``project_dir``.

    ``executable`` is the command that starts DVC, by default the ``dvc`` module of this interpreter; give
    another when DVC has an environment of its own. A Dagster run with the tag ``dvc/force: "true"`` runs its
    stages also where DVC thinks them up to date; one with ``dvc/despite_checks: "true"`` runs them although a
    blocking check refused what they read. A stopped stage has ``grace_seconds`` to end in order.
    """

    project_dir: str
    executable: list[str] = Field(default_factory=list)
    grace_seconds: float = 8.0

    def reproduce(
        self,
        context: dg.AssetExecutionContext,
        translator: DagsterDvcTranslator | None = None,
        extras: Mapping[str, Any] | None = None,
    ) -> Reproduction:
        """``dvc --wait-for-lock repro --single-item`` of this asset's stage, in a process group of its own.

        The stage may report through Dagster Pipes: the environment reaches it through DVC. When the run is
        terminated, the whole group is ended, half-written outs are removed and dead locks released.

        Raises:
            dagster.Failure: when the stage failed (with the end of its stderr), already runs elsewhere, or is held
                back by a blocking check that failed in another run (:mod:`pipelines.dvc.gates`).
        """
        forced = context.run.tags.get(FORCE_TAG) == "true"
        verb = ["repro", "--single-item", *(["--force"] if forced else [])]
        chosen = translator or DagsterDvcTranslator()
        if context.run.tags.get(DESPITE_TAG) != "true":
            _ask_gates(context, DvcProject(self.project_dir), chosen)
        made = self._run(context, verb, _outcome, chosen, extras)
        if made.outcome != "executed":
            made = _with_the_run_that_made_it(context, made, DvcProject(self.project_dir), chosen)
        saved = f", saving {made.saved_seconds:.1f} s" if made.saved_seconds else ""
        context.log.info("%s: %s in %.1f s%s", made.stage, made.outcome, made.seconds, saved)
        return made

    def record(self, context: dg.AssetExecutionContext, translator: DagsterDvcTranslator | None = None) -> Reproduction:
        """``dvc commit --force``: take the outs on disk as this stage's results; it ran elsewhere.

        Raises:
            dagster.Failure: when an out is missing.
        """
        chosen = translator or DagsterDvcTranslator()
        return self._run(context, ["commit", "--force"], lambda *_: "executed", chosen, None)

    def _run(
        self,
        context: dg.AssetExecutionContext,
        verb: Sequence[str],
        outcome: Callable[[Completed, bool, bool], Outcome],
        translator: DagsterDvcTranslator,
        extras: Mapping[str, Any] | None,
    ) -> Reproduction:
        project = DvcProject(self.project_dir)
        stage = _stage(context, project, translator)
        before = project.lock().get(stage.name)
        command = [*self.dvc, "--wait-for-lock", *verb, stage.name]
        context.log.info("%s", " ".join(command))
        done, reported = self.execute(context, project, stage, command, dict(extras or {}))
        after = project.lock().get(stage.name) if done.returncode == 0 else None
        if after is None:
            raise _failure(stage, done)
        metadata = _described(context, project, stage, translator)
        checks: list[dg.AssetCheckResult] = []
        for result in reported:
            metadata |= dict(getattr(result, "metadata", None) or {})
            checks += list(getattr(result, "check_results", None) or [])
        happened = outcome(done, bool(reported), after == before)
        return _reproduction(stage, happened, after, done.seconds, metadata, checks)

    def execute(
        self,
        context: dg.AssetExecutionContext,
        project: DvcProject,
        stage: Stage,
        command: Sequence[str],
        extras: Mapping[str, Any],
    ) -> tuple[Completed, list[Any]]:
        """Run DVC's command with Pipes around it: how it ended, and what the stage reported.

        Here in a process group of its own; a subclass may run it on another machine that sees the project's folder.
        """
        with open_pipes_session(context, PipesTempFileContextInjector(), DvcStageMessages(), extras=extras) as session:
            stopped = partial(_tidy, context, project, stage)
            done = run_group(command, project.root, self.environment(session), self.grace_seconds, stopped)
        return done, list(session.get_results(implicit_materializations=False))

    @property
    def dvc(self) -> list[str]:
        return self.executable or [*DVC]

    def environment(self, session: PipesSession) -> dict[str, str]:
        """This interpreter comes first on the path: ``python`` in a ``cmd`` means the one that runs Dagster."""
        return {**os.environ, "PATH": search_path(), **session.get_bootstrap_env_vars()}


class DvcStageMessages(PipesTempFileMessageReader):
    """Dagster warns of a process that said nothing; here that is no fault."""

    def no_messages_debug_text(self) -> str:
        return "That is so where DVC restored the outs or found nothing to do, and for a command without Pipes."


def _stage(context: dg.AssetExecutionContext, project: DvcProject, translator: DagsterDvcTranslator) -> Stage:
    spec = next(iter(context.assets_def.specs))
    group = spec.metadata[STAGE_KEY]
    partition = context.partition_key if context.has_partition_key else None
    return stage_of(project, translator, str(group), partition)


def _ask_gates(context: dg.AssetExecutionContext, project: DvcProject, translator: DagsterDvcTranslator) -> None:
    stage = _stage(context, project, translator)
    if failed := failed_gates(context.instance, project, stage, translator, context.run_id):
        text = f"stage {stage.name} is held back; the run tag {DESPITE_TAG} = true runs it all the same\n"
        raise dg.Failure(text + "\n".join(failed), allow_retries=False)


def _reproduction(
    stage: Stage,
    outcome: Outcome,
    entry: LockEntry,
    seconds: float,
    metadata: Mapping[str, Any],
    checks: Sequence[dg.AssetCheckResult],
) -> Reproduction:
    version = data_version(stage, entry)
    return Reproduction(stage.name, outcome, entry.outs, version, entry.digest, seconds, None, metadata, checks)


def _described(
    context: dg.AssetExecutionContext, project: DvcProject, stage: Stage, translator: DagsterDvcTranslator
) -> dict[str, Any]:
    """The translator's metadata. A picture that cannot be drawn must not undo hours of work: it is reported."""
    try:
        return dict(translator.get_materialization_metadata(project, stage))
    except Exception as error:
        context.log.warning("%s ran, but its outs could not be described: %r", stage.name, error)
        return {"dvc/not_described": repr(error)}


def _with_the_run_that_made_it(
    context: dg.AssetExecutionContext, made: Reproduction, project: DvcProject, translator: DagsterDvcTranslator
) -> Reproduction:
    """A version that was restored or left alone, with what the stage said when it made it, and the seconds saved."""
    event = executed_event(context, made.lock_digest)
    if event is None:
        took = translator.get_usual_seconds(project, _stage(context, project, translator))
        said: dict[str, Any] = {}
    else:
        took = float(str(event.metadata["dvc/seconds"].value))
        said = {name: value for name, value in event.metadata.items() if not name.startswith(("dvc/", "dagster"))}
    saved = None if took is None else max(0.0, took - made.seconds)
    return replace(made, saved_seconds=saved, metadata={**said, **made.metadata})


def executed_event(context: dg.AssetExecutionContext, lock_digest: str) -> dg.AssetMaterialization | None:
    """The materialisation whose run made a recorded version of this asset; None when Dagster did not see it."""
    partitions = [context.partition_key] if context.has_partition_key else None
    chosen = dg.AssetRecordsFilter(asset_key=context.asset_key, asset_partitions=partitions)
    for record in context.instance.fetch_materializations(chosen, limit=_EVENTS_READ).records:
        event = record.asset_materialization
        if event is None or (event.tags or {}).get(LOCK_DIGEST_TAG) != lock_digest:
            continue
        outcome = event.metadata.get("dvc/outcome")
        if outcome is not None and outcome.value == "executed" and "dvc/seconds" in event.metadata:
            return event
    return None


def _tidy(context: dg.AssetExecutionContext, project: DvcProject, stage: Stage, done: Completed) -> None:
    for line in tidy_up(project, stage, done):
        context.log.warning("%s", line)


def _outcome(done: Completed, reported: bool, same_entry: bool) -> Outcome:
    """A stage that ran says so, through Pipes or in DVC's own words; a silent one changed the lock or did not."""
    if reported or began(done):
        return "executed"
    return "unchanged" if same_entry else "restored"


def _failure(stage: Stage, done: Completed) -> dg.Failure:
    said = done.stderr.strip() or done.stdout.strip()
    if busy := re.search(r"is busy, it is being blocked by:\s*(.*(?:\n\s+.*)*)", said):
        text = f"stage {stage.name} is busy: another process runs it or writes what it reads.\n{busy[1].strip()}"
    else:
        text = f"stage {stage.name} failed (dvc ended with {done.returncode})\n{said}"
    if len(text) > FAILURE_CHARACTERS:
        head, _, tail = text.partition("\n")
        text = f"{head}\n…{tail[-(FAILURE_CHARACTERS - len(head) - 2) :]}"
    return dg.Failure(description=text, metadata={"dvc/seconds": done.seconds, "dvc/returncode": done.returncode})
