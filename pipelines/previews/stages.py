"""Stage -> tables and pictures from its outs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dvc_project.project import Stage
from paco_core.io.skipped import skipped
from pipelines.previews import benchmarks, data, policies, reward

#: Each takes the data folder and the item of a matrix stage.
SHOWN: Mapping[str, Callable[[Path, str], Mapping[str, Any]]] = {
    **data.SHOWN,
    **reward.SHOWN,
    **policies.SHOWN,
    **benchmarks.SHOWN,
}


def shown(root: Path, stage: Stage) -> Mapping[str, Any]:
    """What the page of a stage shows beside its figures; of one that had nothing to do, the reason."""
    reasons = [reason for out in stage.data if (reason := skipped(root / out))]
    if reasons:
        return {"skipped": reasons[0]}
    return SHOWN[stage.group](root / "data", stage.item or "") if stage.group in SHOWN else {}
