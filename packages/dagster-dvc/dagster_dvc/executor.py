"""Steps of a run in processes of their own only where a stage has to run.

A process a step keeps stages side by side and apart. Where every stage is up to date the steps only say so, and
starting the processes takes longer than all that they do.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

import dagster as dg
from dagster._core.events import DagsterEvent
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.execution.step_dependency_config import StepDependencyConfig
from dagster._core.executor.in_process import InProcessExecutor
from dagster._core.executor.init import InitExecutorContext

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
    chosen = translator or DagsterDvcTranslator()

    def create(context: InitExecutorContext) -> dg.Executor:
        assert executor.executor_creation_fn is not None
        return _InProcessIfUpToDate(executor.executor_creation_fn(context), project, chosen)

    return dg.ExecutorDefinition(
        name=executor.name,
        config_schema=executor.config_schema,  # type: ignore[arg-type] # converted already; Dagster takes that, too
        requirements=executor.get_requirements,
        executor_creation_fn=create,
        description=executor.description,
    )


class _InProcessIfUpToDate(dg.Executor):
    def __init__(self, executor: dg.Executor, project: DvcProject, translator: DagsterDvcTranslator) -> None:
        self._executor, self._project, self._translator = executor, project, translator

    @property
    def retries(self) -> RetryMode:
        return self._executor.retries

    @property
    def step_dependency_config(self) -> StepDependencyConfig:
        return self._executor.step_dependency_config

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[DagsterEvent]:
        plan_context.instance.add_run_tags(plan_context.run_id, {HOST_TAG: socket.gethostname()})
        chosen = self._executor
        keys = set(plan_context.job.get_definition().asset_layer.executable_asset_keys)
        forced = plan_context.dagster_run.tags.get(FORCE_TAG) == "true"
        if keys and not forced and self._are_up_to_date(keys):
            chosen = InProcessExecutor(self.retries, self.step_dependency_config)
        yield from chosen.execute(plan_context, execution_plan)

    def _are_up_to_date(self, keys: set[dg.AssetKey]) -> bool:
        project = self._project.reload()
        groups = {self._translator.get_asset_key(group): group for group in project.groups.values()}
        if not groups.keys() >= keys:
            return False
        due = ProjectState(project).to_run()
        return not any(stage.name in due for key in keys for stage in groups[key].stages)
