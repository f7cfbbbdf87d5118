"""Translator of this project: descriptions and metadata for the pages of assets."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import dagster as dg

from dagster_dvc import DagsterDvcTranslator, DvcProject
from dvc_project.derived import Derived
from dvc_project.project import Group, ResolvedStage
from paco_core.io.paths import STAGES
from paco_core.runtime.code.stage_code import present_code
from paco_core.stages import declaration
from paco_pipelines.previews.columns import describe_column
from paco_pipelines.previews.metadata import preview_metadata


class PacoTranslator(DagsterDvcTranslator):
    """Figures, rows and columns as the library reports them; worst cases and contact sheets from here."""

    def get_asset_spec(self, project: DvcProject, group: Group) -> dg.AssetSpec:
        """With links to what the stage runs and to where it is declared."""
        declared = _line(project.path, group.name)
        code = STAGES / f"{group.name}.py"
        with warnings.catch_warnings(action="ignore", category=dg.BetaWarning):
            links = dg.CodeReferencesMetadataValue(
                code_references=[
                    dg.LocalFileCodeReference(file_path=str(code), line_number=1, label=f"stages/{code.name}"),
                    dg.LocalFileCodeReference(file_path=str(project.path), line_number=declared, label="dvc.yaml"),
                ]
            )
        return super().get_asset_spec(project, group).merge_attributes(metadata={"dagster/code_references": links})

    def get_materialization_metadata(self, project: DvcProject, stage: ResolvedStage) -> Mapping[str, Any]:
        return {**super().get_materialization_metadata(project, stage), **preview_metadata(project.root, stage)}

    def get_derived(self, root: Path) -> Derived:
        return present_code(root)

    def get_headline(self, stage: ResolvedStage) -> Sequence[Sequence[str]]:
        return declaration(stage.group).headline

    def get_column_description(self, stage: ResolvedStage, column: str) -> str | None:
        return describe_column(stage.group, column)


def _line(path: Path, stage: str) -> int:
    """Where an entry begins in a ``dvc.yaml`` that is laid out as this project's; else its first line."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next((number for number, line in enumerate(lines, start=1) if line.rstrip() == f"  {stage}:"), 1)
