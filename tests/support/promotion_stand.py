"""A project whose policy can be retrained and promoted; how well each version paints is given, not painted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from paco_core.io.check_report import CheckReport
from paco_core.operations import promote as command
from paco_core.operations.promotion.measuring import Measured
from tests.support import provenance_world as world

NAME = "flux_t2is"
POLICY = f"data/policies/{NAME}"
PASSED = CheckReport("no_collapse", True, "ERROR", "fine")


def table(gain: float, fall: float = 0.0, *, prompts: int = 24, noise: float = 0.1, seed: int = 1) -> pd.DataFrame:
    """Figures of one version on the same cases as every other table of this size."""
    rng, seed_rng = np.random.default_rng(0), np.random.default_rng(seed)
    rows = [(f"p{p}", s) for p in range(prompts) for s in (0, 1)]
    base = rng.normal(0.5, 0.1, len(rows))
    return pd.DataFrame(
        {
            "prompt_id": [p for p, _ in rows],
            "unit": [s for _, s in rows],
            "gold_consistency": base + gain + seed_rng.normal(0, noise, len(rows)),
            "gold_following": 0.9 - fall + seed_rng.normal(0, 0.02, len(rows)),
        }
    )


class Stand:
    """A project whose policy can be retrained; how well each version paints is told, not painted."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.gates = root, [PASSED]
        self.gains: dict[str, float] = {}
        monkeypatch.setattr(command, "gates", lambda *_args: self.gates)
        monkeypatch.setattr(command, "_measure", self._measure)

    def retrain(self, weights: str, gain: float) -> None:
        (self.root / POLICY / "adapter/weights.safetensors").write_text(weights)
        self.gains[weights] = gain
        world.record(self.root, {f"policies@{NAME}": [POLICY]})

    def _measure(self, _root: Path, _params: Any, _name: str, folders: list[Path]) -> list[Measured]:
        weights = [(f / "adapter/weights.safetensors").read_text() for f in folders]
        return [Measured(table(self.gains[text], seed=n)) for n, text in enumerate(weights)]


def made_stand(project: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    """One in a copy of the project, with a first version recorded."""
    monkeypatch.setenv("MLFLOW_ENABLE_SYSTEM_METRICS_LOGGING", "false")
    params = (project / "params.yaml").read_text()
    world.make(project)
    (project / "params.yaml").write_text(params)
    graph = (project / "dvc.yaml").read_text().replace("params: [prompts.count]", "params: [prompts]")
    (project / "dvc.yaml").write_text(graph)
    (project / "dvc.lock").unlink()
    world.record(project)
    stand = Stand(project, monkeypatch)
    stand.gains["adapter"] = 0.0
    return stand
