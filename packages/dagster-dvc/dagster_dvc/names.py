"""Names that DVC takes and Dagster does not: refused with the stage and the way out."""

from __future__ import annotations

import re
from collections.abc import Collection

import dagster as dg
from dagster._core.definitions.utils import check_valid_name

from dagster_dvc.translator import DagsterDvcTranslator
from dvc_project.errors import DvcProjectError
from dvc_project.project import DvcProject, Group

_PART = re.compile(r"[A-Za-z0-9_.]+")


def check_names(project: DvcProject, groups: Collection[Group], translator: DagsterDvcTranslator) -> None:
    """Raise where Dagster would refuse the asset of an entry of ``dvc.yaml``, or take two for one.

    Raises:
        DvcProjectError: naming file and stage, and how to choose another name.
    """
    keys: dict[dg.AssetKey, str] = {}
    for name in project.assets:
        keys.setdefault(translator.get_asset_key(project.groups[name]), name)
    for group in groups:
        key = translator.get_asset_key(group)
        where = f"{project.path}: stage {group.name}"
        way_out = "name another under `meta: {dagster: {key: ...}}` of the stage"
        if keys.get(key, group.name) != group.name:
            raise DvcProjectError(f"{where}: its asset key {key.to_user_string()} is that of {keys[key]}; {way_out}")
        if not all(_PART.fullmatch(part) for part in key.path):
            raise DvcProjectError(
                f"{where}: {key.to_user_string()!r} cannot be an asset key: letters of a to z, digits and '_' can; "
                f"{way_out}"
            )
        try:
            check_valid_name(key.to_python_identifier())
        except dg.DagsterInvalidDefinitionError:
            raise DvcProjectError(
                f"{where}: {key.to_user_string()!r} is a word that Dagster or Python reserves; {way_out}"
            ) from None
        try:
            translator.get_partitions_def(group)
        except dg.DagsterInvalidDefinitionError as error:
            raise DvcProjectError(
                f"{where}: an item cannot be a partition ({error}); give the item another name under `foreach` or "
                "`matrix`, or leave the stage out (`exclude`)"
            ) from None
