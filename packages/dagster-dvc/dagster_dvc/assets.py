"""Assets of a DVC project: one per stage, in one op or in an op per stage; external assets of its ``.dvc`` files."""

import inspect
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import dagster as dg

from dagster_dvc.resource import DvcResource
from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject, Group

# No `from __future__ import annotations` here: Dagster reads the annotations of `build_dvc_assets`'s
# functions, and would find strings.

_KEY_PART = re.compile(r"[A-Za-z0-9_.]+")
ALL = ("*",)


def dvc_assets(
    *,
    project: DvcProject,
    select: Sequence[str] = ALL,
    exclude: Sequence[str] = (),
    translator: DagsterDvcTranslator | None = None,
    **options: Any,
) -> Callable[[Callable[..., Any]], dg.AssetsDefinition]:
    """Make one op from a function; it materializes the assets of the selected stages, or those that a run chooses.

        @dvc_assets(project=project, select=["prepare", "train_*"])
        def models(context: dg.AssetExecutionContext, dvc: DvcResource):
            yield from dvc.stream(context)

    Stages of one op run one after another, in one process. To run them side by side, each in its own pool, use
    :func:`build_dvc_assets`. Edges, partitions, code version, group, kinds, owners, tags and pool come from
    ``dvc.yaml``.

    Args:
        project: read from ``dvc.yaml``.
        select: names of stages, or patterns of them such as ``train_*``.
        exclude: names or patterns of stages to leave out.
        translator: how a stage becomes an asset; give the same one to the calls of the resource.
        options: of ``dagster.multi_asset``: ``name``, ``retry_policy``, ``check_specs``, ``op_tags``, and so on.
            ``automation_condition`` becomes that of each asset. If only one stage is selected, the docstring of the
            function follows the ``desc`` of the stage.

    Raises:
        DvcProjectError: when a name fits no stage, when Dagster accepts no asset of such a name, or when stages of
            different pools would share an op.
    """
    translator = translator or DagsterDvcTranslator()
    groups = [project.groups[name] for name in select_stages(project, select, exclude)]
    validate_keys(project, groups, translator)
    condition = options.pop("automation_condition", None)
    specs = [
        translator.get_asset_spec(project, group).replace_attributes(automation_condition=condition) for group in groups
    ]
    options = {"pool": _pool(project, groups, translator), **options} if "pool" not in options else options
    policy = options.get("backfill_policy")
    if policy is not None and policy.max_partitions_per_run != 1:
        raise DvcProjectError(
            f"{project.path}: a run makes one partition, or all of them; expected a backfill policy of one partition "
            "per run, for example BackfillPolicy.multi_run(1)"
        )

    def decorate(function: Callable[..., Any]) -> dg.AssetsDefinition:
        if len(specs) != 1:
            return dg.multi_asset(specs=specs, can_subset=True, **options)(function)
        (spec,) = specs
        text = "\n\n".join(part for part in (spec.description, inspect.getdoc(function)) if part)
        spec = spec.replace_attributes(description=text or None)
        return dg.multi_asset(specs=[spec], **{"name": spec.key.to_python_identifier(), **options})(function)

    return decorate


def build_dvc_assets(
    project: DvcProject,
    *,
    select: Sequence[str] = ALL,
    exclude: Sequence[str] = (),
    translator: DagsterDvcTranslator | None = None,
    **options: Any,
) -> list[dg.AssetsDefinition]:
    """An asset with an op for each selected stage, materialized by ``dvc repro``; see :func:`dvc_assets`."""

    def build(name: str) -> dg.AssetsDefinition:
        @dvc_assets(project=project, select=[name], translator=translator, **options)
        def reproduce(context: dg.AssetExecutionContext, dvc: DvcResource) -> Iterator[dg.MaterializeResult[Any]]:
            yield from dvc.stream(context, translator)

        return reproduce

    return [build(name) for name in select_stages(project, select, exclude)]


def build_dvc_sources(project: DvcProject, *, translator: DagsterDvcTranslator | None = None) -> list[dg.AssetSpec]:
    """An external asset for each out of the project's ``.dvc`` files; the sensor reports their versions."""
    translator = translator or DagsterDvcTranslator()
    return [translator.get_tracked_spec(project, tracked) for tracked in project.tracked]


def select_stages(project: DvcProject, select: Sequence[str] = ALL, exclude: Sequence[str] = ()) -> list[str]:
    """Entries under ``stages`` that are assets and fit ``select`` and not ``exclude``, in the order of ``dvc.yaml``.

    Raises:
        DvcProjectError: for a pattern that fits no stage.
    """
    for pattern in (*select, *exclude):
        if pattern != "*" and not _fits_any(project.assets, [pattern]):
            raise DvcProjectError(f"{project.path}: no stage {pattern!r}; stages: {', '.join(project.assets)}")
    return [name for name in _fits_any(project.assets, select) if not _fits_any([name], exclude)]


def validate_keys(project: DvcProject, groups: Collection[Group], translator: DagsterDvcTranslator) -> None:
    """Raise where Dagster would refuse the asset of an entry of ``dvc.yaml``, or give two entries one asset.

    Raises:
        DvcProjectError: with the file, the stage, and how to choose another name.
    """
    names: dict[dg.AssetKey, str] = {}
    for name in project.assets:
        names.setdefault(translator.get_asset_key(project.groups[name]), name)
    for group in groups:
        key = translator.get_asset_key(group)
        location = f"{project.path}: stage {group.name}"
        remedy = "name another under `meta: {dagster: {key: ...}}` of the stage"
        if names.get(key, group.name) != group.name:
            raise DvcProjectError(f"{location}: its asset key {key.to_user_string()} is that of {names[key]}; {remedy}")
        if not all(_KEY_PART.fullmatch(part) for part in key.path):
            raise DvcProjectError(
                f"{location}: {key.to_user_string()!r} cannot be an asset key: letters of a to z, digits and '_' can; "
                f"{remedy}"
            )
        try:
            dg.GraphDefinition(key.to_python_identifier())  # validates a name as that of an op
        except dg.DagsterInvalidDefinitionError:
            raise DvcProjectError(
                f"{location}: {key.to_user_string()!r} is a word that Dagster or Python reserves; {remedy}"
            ) from None
        try:
            translator.get_partitions_def(group)
        except dg.DagsterInvalidDefinitionError as error:
            raise DvcProjectError(
                f"{location}: an item cannot be a partition ({error}); give the item another name under `foreach` or "
                "`matrix`, or leave the stage out (`exclude`)"
            ) from None


def _fits_any(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def _pool(project: DvcProject, groups: Sequence[Group], translator: DagsterDvcTranslator) -> str | None:
    pools = {group.name: translator.get_pool(group) for group in groups}
    if len(set(pools.values())) > 1:
        pairs = ", ".join(f"{name}: {pool}" for name, pool in pools.items())
        raise DvcProjectError(
            f"{project.path}: stages of different pools cannot share an op ({pairs}); use `build_dvc_assets`, or name "
            "a `pool` for all"
        )
    return next(iter(pools.values()), None)
