"""A DVC project as a component: ``dg scaffold defs dagster_dvc.component.DvcProjectComponent NAME``."""

from pathlib import Path
from typing import Any

import dagster as dg
from dagster.components.scaffold.scaffold import ScaffoldRequest, scaffold_with
from pydantic import Field

from dagster_dvc.assets import build_dvc_assets, build_dvc_sources
from dagster_dvc.checks import build_in_sync_checks
from dagster_dvc.resource import DvcResource
from dagster_dvc.sensor import build_dvc_lock_sensor
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.project import GRAPH_FILE, DvcProject


class DvcProjectScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml`` with the nearest DVC project upwards, or ``.`` where there is none yet."""

    def scaffold(self, request: ScaffoldRequest[Any]) -> None:
        place = Path(request.target_path).resolve()
        levels = [i for i, folder in enumerate([place, *place.parents]) if (folder / GRAPH_FILE).is_file()]
        dg.scaffold_component(request, {"project_dir": "/".join([".."] * levels[0]) or "." if levels else "."})


@scaffold_with(DvcProjectScaffolder)
class DvcProjectComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks and a sensor from ``dvc.yaml``, ``dvc.lock`` and ``.dvc`` files.

    Subclass it and override :meth:`get_translator` to choose keys, groups and metadata otherwise.
    """

    project_dir: str = Field(description="the folder of dvc.yaml, relative to this component")
    exclude: list[str] = Field(default=[], description="stages without an asset")
    executable: list[str] = Field(default=[], description="the command of DVC, where it lives in another environment")
    in_sync_checks: bool = Field(default=True, description="a check an asset: whether it is as dvc.lock records")
    sensor: bool = Field(default=True, description="mirror runs of a terminal, and versions pulled with git")

    def get_translator(self) -> DagsterDvcTranslator:
        return DagsterDvcTranslator()

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Raises:
        DvcProjectError: when the folder holds no DVC project, or ``dvc.yaml`` is malformed.
        """
        translator = self.get_translator()
        project = DvcProject((Path(context.path) / self.project_dir).resolve(), translator.get_derived)
        return dg.Definitions(
            assets=[
                *build_dvc_assets(project, translator=translator, exclude=self.exclude),
                *build_dvc_sources(project, translator=translator),
            ],
            asset_checks=build_in_sync_checks(project, translator=translator, exclude=self.exclude)
            if self.in_sync_checks
            else [],
            sensors=[build_dvc_lock_sensor(project, translator=translator)] if self.sensor else [],
            resources={"dvc": DvcResource(project_dir=str(project.root), executable=self.executable)},
        )
