"""The graph that every definition here is derived from: ``dvc.yaml`` at the project root."""

from __future__ import annotations

from pathlib import Path

from dagster_dvc import DvcProject, DvcProjectError
from paco_core.config.graph_keys import cause
from paco_core.io import paths
from paco_core.io.project import validate_code_origin
from pipelines.defs.home import validate_home
from pipelines.defs.translator import PacoTranslator

ROOT = Path(__file__).resolve().parents[2]
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
