"""The graph that every definition here is derived from: ``dvc.yaml`` at the project root."""

from __future__ import annotations

from pathlib import Path

from pipelines.defs.translator import PacoTranslator
from pipelines.dvc import DvcProject

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "data"
METRICS = DATA / "metrics"
TRANSLATOR = PacoTranslator()
PROJECT = DvcProject(ROOT, TRANSLATOR.get_derived)
