"""Stages as pods: the same ``dvc repro --single-item`` in a container that mounts the project's folder.

The pod is made, followed and deleted by dagster-k8s (``PipesK8sClient``); messages of Pipes come through its log.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import dagster as dg
from pydantic import Field

from dagster_dvc.process import Completed
from dagster_dvc.resource import DvcResource
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import DvcProject, Stage

if TYPE_CHECKING:
    from dagster_k8s import PipesK8sClient


class KubernetesDvcResource(DvcResource):
    """Runs stages as pods. Untested on a real cluster: its tests put a stand-in for the API in the client's place.

    Attributes:
        image: with this project's environment; its first container runs the stage.
        folder: where the pod sees the project, by a volume that Dagster's machine sees too.
        pod_spec: of every pod, as Kubernetes has it: volumes, mounts, secrets.
        pools: what the first container gets besides, for stages of a pool
            (``gpu: {resources: {limits: {nvidia.com/gpu: 1}}}``).
    """

    image: str
    folder: str
    namespace: str | None = None
    pod_spec: dict[str, Any] = Field(default_factory=dict)
    pools: dict[str, dict[str, Any]] = Field(default_factory=dict)
    python: str = "python"
    poll_seconds: float = 5.0
    wait_seconds: float = 7 * 86_400.0

    @property
    def dvc(self) -> list[str]:
        return self.executable or [self.python, "-m", "dvc"]

    def execute(
        self,
        context: dg.AssetExecutionContext,
        project: DvcProject,
        stage: Stage,
        command: Sequence[str],
        extras: Mapping[str, Any],
    ) -> tuple[Completed, list[Any]]:
        """Run the pod to its end; a terminated run deletes it, and the stage tidies up before it goes.

        Raises:
            dagster.Failure: when dagster-k8s is not installed.
        """
        inside = ["-m", "dagster_dvc.remote", "--stage", stage.name, "--grace", str(self.grace_seconds), "--"]
        began = time.monotonic()
        try:
            ended = self.client().run(
                context=context,
                extras=dict(extras),
                image=self.image,
                command=[self.python, *inside, *command],
                namespace=self.namespace,
                base_pod_spec=self._pod_spec(project, stage),
                pod_wait_timeout=self.wait_seconds,
            )
        except dg.DagsterExecutionInterruptedError:
            raise
        except Exception as error:  # of the API, or of the pod: its reason and the end of its log
            return Completed(1, "", f"the pod of {stage.name} failed: {error}", time.monotonic() - began), []
        results = list(ended.get_results(implicit_materializations=False))
        return Completed(0, "", "", time.monotonic() - began), results

    def client(self) -> PipesK8sClient:
        try:
            from dagster_k8s import PipesK8sClient
        except ImportError as error:
            raise dg.Failure(
                f"stages as pods need dagster-k8s ({error}): pip install 'dagster-dvc[kubernetes]'"
            ) from None
        return PipesK8sClient(poll_interval=self.poll_seconds)

    def _pod_spec(self, project: DvcProject, stage: Stage) -> dict[str, Any]:
        spec = deepcopy(dict(self.pod_spec))
        containers = spec.setdefault("containers", [{}])
        pool = DagsterDvcTranslator().get_pool(project.groups[stage.group])
        first = {**containers[0], **(self.pools.get(pool, {}) if pool else {})}
        containers[0] = {"name": "stage", **first, "working_dir": self.folder}
        # Longer than the stage's own grace, so that it ends in order before the kubelet kills it.
        spec.setdefault("termination_grace_period_seconds", math.ceil(self.grace_seconds) + 20)
        return spec
