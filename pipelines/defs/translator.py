"""What this project adds to the DVC library's translator: pages of assets that say something."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from pipelines.defs.benchmarks import shown as benchmarks
from pipelines.defs.data import shown as data
from pipelines.defs.policies import shown as policies
from pipelines.defs.reward import shown as reward
from pipelines.dvc import DagsterDvcTranslator, DvcProject
from pipelines.dvc.project import Stage

#: Stage -> tables and pictures from its outs. Each takes the data folder and the item of a matrix stage.
SHOWN: Mapping[str, Callable[[Path, str], Mapping[str, Any]]] = {
    **data.SHOWN,
    **reward.SHOWN,
    **policies.SHOWN,
    **benchmarks.SHOWN,
}


class PacoTranslator(DagsterDvcTranslator):
    """Figures, rows and columns as the library tells them; worst cases and contact sheets from here."""

    def get_materialization_metadata(self, project: DvcProject, stage: Stage) -> Mapping[str, Any]:
        metadata = dict(super().get_materialization_metadata(project, stage))
        if stage.group in SHOWN:
            metadata |= SHOWN[stage.group](project.root / "data", stage.item or "")
        return metadata

    def get_usual_seconds(self, project: DvcProject, stage: Stage) -> float | None:
        from paco_core.launch import usual_seconds

        return usual_seconds(project.root, stage.name)
