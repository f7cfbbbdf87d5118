"""Assets from a DVC project: one function a stage, or all at once; external assets from its ``.dvc`` files."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import dagster as dg

from dagster_dvc.names import check_names
from dagster_dvc.resource import DvcResource
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject

# No `from __future__ import annotations` here: Dagster reads the annotations of `build_dvc_assets`'s
# functions, and would find strings.


def dvc_asset(
    stage: str,
    *,
    project: DvcProject,
    translator: DagsterDvcTranslator | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Make the asset of a stage from a function that materialises it.

    Edges, partitions, code version, group, kinds, owners, tags and pool come from ``dvc.yaml``; the
    function's docstring, if any, follows the stage's ``desc``. ``options`` go to ``dagster.multi_asset``
    (``retry_policy``, ``check_specs``, ``op_tags`` ...), except ``automation_condition``, which is the asset's.

        @dvc_asset("reward_lora", project=project)
        def reward_lora(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
            return dvc.reproduce(context).result()

    Raises:
        DvcProjectError: when ``dvc.yaml`` has no such stage, or Dagster takes no asset of its name.
    """
    if stage not in project.groups:
        raise DvcProjectError(f"{project.path}: no stage {stage!r}; stages: {', '.join(project.groups)}")
    group, chosen = project.groups[stage], translator or DagsterDvcTranslator()
    check_names(project, [group], chosen)
    condition = options.pop("automation_condition", None)

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        spec = chosen.get_asset_spec(project, group)
        text = "\n\n".join(part for part in (spec.description, inspect.getdoc(function)) if part)
        spec = spec.replace_attributes(description=text or None, automation_condition=condition)
        options.setdefault("pool", chosen.get_pool(group))
        return dg.multi_asset(specs=[spec], name=spec.key.to_python_identifier(), **options)(function)

    return decorate


def build_dvc_assets(
    project: DvcProject,
    *,
    translator: DagsterDvcTranslator | None = None,
    exclude: Sequence[str] = (),
    **options: Any,
) -> list[dg.AssetsDefinition]:
    """One asset for each stage of the project that is not excluded, each materialised by ``dvc repro``."""

    def build(name: str) -> dg.AssetsDefinition:
        @dvc_asset(name, project=project, translator=translator, **options)
        def reproduce(context: dg.AssetExecutionContext, dvc: DvcResource) -> dg.MaterializeResult[Any]:
            return dvc.reproduce(context, translator).result()

        return reproduce

    return [build(name) for name in project.assets if name not in exclude]


def build_dvc_sources(project: DvcProject, *, translator: DagsterDvcTranslator | None = None) -> list[dg.AssetSpec]:
    """An external asset for each out of the project's ``.dvc`` files; the sensor reports their versions."""
    chosen = translator or DagsterDvcTranslator()
    return [chosen.get_tracked_spec(project, tracked) for tracked in project.tracked]
