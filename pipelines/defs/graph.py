"""The graph that every definition here is derived from: ``dvc.yaml`` at the project root."""

from __future__ import annotations

from pathlib import Path

from dagster_dvc import DvcProject
from pipelines.defs.translator import PacoTranslator

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
METRICS = DATA / "metrics"
TRANSLATOR = PacoTranslator()
PROJECT = DvcProject(ROOT, TRANSLATOR.get_derived)
