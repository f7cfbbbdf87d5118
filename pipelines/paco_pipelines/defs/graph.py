"""The graph that every definition here is derived from: ``dvc.yaml`` of the project that the working folder is in."""

from __future__ import annotations

from pathlib import Path

from dagster_dvc import DvcProject, DvcProjectError
from paco_core.config.graph_keys import cause
from paco_core.io import paths
from paco_core.io.project import project_root, validate_code_origin
from paco_pipelines.defs.home import validate_home
from paco_pipelines.defs.translator import PacoTranslator

ROOT = project_root()
validate_code_origin(ROOT)
validate_home(ROOT)
TRANSLATOR = PacoTranslator()
try:
    PROJECT = DvcProject(ROOT, TRANSLATOR.get_derived)
except DvcProjectError as error:
    raise DvcProjectError(cause(error, ROOT)) from None


def maker(out: Path) -> str:
    """The asset of the stage that writes an out."""
    return str(paths.producer(out))
