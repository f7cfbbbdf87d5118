"""Executor: steps of a run have their own processes only if a stage has to run.

A process for each step lets stages run side by side. If every stage is up to date, the steps only say so, and starting
the processes takes longer than all that they do.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import dagster as dg

from dagster_dvc.launcher import HOST_TAG
from dagster_dvc.resource import FORCE_TAG
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject
from dvc_project.state import ProjectState


def in_process_if_up_to_date(
    executor: dg.ExecutorDefinition, project: DvcProject, translator: DagsterDvcTranslator | None = None
) -> dg.ExecutorDefinition:
    """``executor``, but the process of the run for all its steps where its assets are stages and none has to run.

        Definitions(executor=in_process_if_up_to_date(multiprocess_executor, project), ...)

    A run with the tag ``dvc/force: "true"`` is left to ``executor``.

    Raises:
        DvcProjectError: in a run, for a malformed ``dvc.yaml``, ``params.yaml`` or ``dvc.lock``.
    """
    translator = translator or DagsterDvcTranslator()

    def create(context: dg.InitExecutorContext) -> dg.Executor:
        config = {"retries": {"enabled": {}}, **context.executor_config}
        create_other, create_in_process = executor.executor_creation_fn, dg.in_process_executor.executor_creation_fn
        assert create_other is not None and create_in_process is not None
        in_process = create_in_process(context._replace(executor_config=config))
        return _InProcessIfUpToDate(create_other(context), in_process, project, translator)

    return dg.ExecutorDefinition(
        name=executor.name,
        config_schema=executor.config_schema,  # type: ignore[arg-type] # converted already; Dagster takes that, too
        requirements=executor.get_requirements,
        executor_creation_fn=create,
        description=executor.description,
    )


class _InProcessIfUpToDate(dg.Executor):
    def __init__(
        self, executor: dg.Executor, in_process: dg.Executor, project: DvcProject, translator: DagsterDvcTranslator
    ) -> None:
        self._executor, self._in_process, self._project, self._translator = executor, in_process, project, translator

    @property
    def retries(self) -> Any:
        return self._executor.retries

    @property
    def step_dependency_config(self) -> Any:
        return self._executor.step_dependency_config

    def execute(self, plan_context: Any, execution_plan: Any) -> Iterator[dg.DagsterEvent]:
        plan_context.instance.add_run_tags(plan_context.run_id, {HOST_TAG: socket.gethostname()})
        keys = set(plan_context.job.get_definition().asset_layer.executable_asset_keys)
        forced = plan_context.dagster_run.tags.get(FORCE_TAG) == "true"
        up_to_date = keys and not forced and self._are_up_to_date(keys)
        executor = self._in_process if up_to_date else self._executor
        yield from executor.execute(plan_context, execution_plan)

    def _are_up_to_date(self, keys: set[dg.AssetKey]) -> bool:
        project = self._project.reload()
        groups = {self._translator.get_asset_key(group): group for group in project.groups.values()}
        if not groups.keys() >= keys:
            return False
        due = ProjectState(project).to_run()
        return not any(stage.name in due for key in keys for stage in groups[key].stages)
