"""A DVC project as a component: ``dg scaffold defs dagster_dvc.DvcProjectComponent NAME``."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import dagster as dg
from dagster.components.resolved.core_models import OpSpec
from dagster.components.utils import TranslatorResolvingInfo
from pydantic import Field

from dagster_dvc.assets import build_dvc_sources, dvc_assets, select_stages
from dagster_dvc.checks import build_in_sync_checks
from dagster_dvc.resource import DvcResource
from dagster_dvc.sensor import build_dvc_lock_sensor
from dagster_dvc.translator import DagsterDvcTranslator, TranslatedDvcTranslator, Translation
from dvc_project.project import GRAPH_FILE, DvcProject


def _resolve_translation(context: dg.ResolutionContext, model: Any) -> Translation:
    info = TranslatorResolvingInfo(asset_attributes=model, resolution_context=context, model_key="translation")
    return lambda spec, stage: info.get_asset_spec(spec, {"stage": stage, "spec": spec})


_TRANSLATION = dg.Resolver(
    _resolve_translation, model_field_type=str | dg.AssetAttributesModel, inject_before_resolve=False
)


class DvcProjectScaffolder(dg.Scaffolder[Any]):
    """Writes ``defs.yaml`` with the nearest DVC project upwards, or ``.`` where there is none yet."""

    def scaffold(self, request: dg.ScaffoldRequest[Any]) -> None:
        place = Path(request.target_path).resolve()
        levels = [i for i, folder in enumerate([place, *place.parents]) if (folder / GRAPH_FILE).is_file()]
        dg.scaffold_component(request, {"project_dir": "/".join([".."] * levels[0]) or "." if levels else "."})


@dg.scaffold_with(DvcProjectScaffolder)
class DvcProjectComponent(dg.Component, dg.Model, dg.Resolvable):
    """Assets, checks and a sensor from ``dvc.yaml``, ``dvc.lock`` and ``.dvc`` files.

    Its resource is called ``dvc_NAME`` and its sensor ``dvc_lock_NAME``: a code location may have several components.
    Subclass it and override :meth:`execute` to do more than ``dvc repro``, :meth:`build_resource` to run stages
    elsewhere, or :meth:`get_translator` to choose keys, groups and metadata in Python.
    """

    project_dir: str = Field(description="the folder of dvc.yaml, relative to this component")
    name: str | None = Field(
        default=None, description="ends the names of resource and sensor; the component's place below defs by default"
    )
    select: Sequence[str] = Field(
        default=["*"], description="stages, or patterns of their names", examples=[["train_*"]]
    )
    exclude: Sequence[str] = Field(default=[], description="stages without an asset, or patterns of their names")
    op: OpSpec | None = Field(
        default=None,
        description="of the ops; with a name, all stages share one op, else each stage has its own",
        examples=[{"tags": {"team": "data"}, "pool": "gpu"}],
    )
    translation: Annotated[Translation, _TRANSLATION] | None = Field(
        default=None,
        description="attributes of each asset; `stage` has name, meta and desc",
        examples=[{"key_prefix": "shop", "group_name": "{{ stage.name }}"}],
    )
    executable: Sequence[str] = Field(default=[], description="DVC's command, if it is in another environment")
    in_sync_checks: bool = Field(default=True, description="a check for each asset: whether it is as dvc.lock records")
    sensor: bool = Field(default=True, description="mirror runs of a terminal, and versions pulled with git")

    def get_translator(self) -> DagsterDvcTranslator:
        return DagsterDvcTranslator() if self.translation is None else TranslatedDvcTranslator(self.translation)

    @cached_property
    def translator(self) -> DagsterDvcTranslator:
        return self.get_translator()

    def build_resource(self, project: DvcProject) -> DvcResource:
        return DvcResource(project_dir=str(project.root), executable=list(self.executable))

    def execute(self, context: dg.AssetExecutionContext, dvc: DvcResource) -> Iterator[Any]:
        """Materialize the selected assets of an op."""
        yield from dvc.stream(context, self.translator)

    def build_defs(self, context: dg.ComponentLoadContext) -> dg.Definitions:
        """Raises:
        DvcProjectError: when the folder holds no DVC project, or ``dvc.yaml`` is malformed.
        """
        project = DvcProject((Path(context.path) / self.project_dir).resolve(), self.translator.get_derived)
        name = self.name or _name_of(context)
        stages = select_stages(project, self.select, self.exclude)
        ops = [stages] if self.op is not None and self.op.name else [[stage] for stage in stages]
        checks = build_in_sync_checks(project, translator=self.translator, select=stages) if self.in_sync_checks else []
        sensor = build_dvc_lock_sensor(project, translator=self.translator, name=f"dvc_lock_{name}")
        return dg.Definitions(
            assets=[
                *(self._build_op(project, selected, f"dvc_{name}") for selected in ops),
                *build_dvc_sources(project, translator=self.translator),
            ],
            asset_checks=checks,
            sensors=[sensor] if self.sensor else [],
            resources={f"dvc_{name}": self.build_resource(project)},
        )

    def _build_op(self, project: DvcProject, stages: Sequence[str], resource: str) -> dg.AssetsDefinition:
        op = self.op or OpSpec()
        settings: Mapping[str, Any] = {
            "name": op.name, "op_tags": op.tags, "description": op.description, "pool": op.pool,
            "backfill_policy": op.backfill_policy,
        }  # fmt: skip
        options = {key: value for key, value in settings.items() if value is not None}

        @dvc_assets(
            project=project, select=stages, translator=self.translator, required_resource_keys={resource}, **options
        )
        def reproduce(context: dg.AssetExecutionContext) -> Iterator[Any]:
            yield from self.execute(context, getattr(context.resources, resource))

        return reproduce


def _name_of(context: dg.ComponentLoadContext) -> str:
    place = os.path.relpath(context.path, context.defs_module_path)
    return re.sub(r"[^A-Za-z0-9_]+", "_", place).strip("_") or "project"
