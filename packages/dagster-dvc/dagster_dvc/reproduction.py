"""The outcome of running a stage through DVC."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import dagster as dg

from dagster_dvc.metrics import notes_last
from dvc_project.hashing import hash_json

Outcome = Literal["executed", "restored", "unchanged"]
LOCK_DIGEST_TAG = "dvc/lock_digest"
# The folder of dvc.yaml: projects may share an instance, and each compares dvc.lock with its own events. A tag is too
# short for a path, so it holds a digest, and the metadata of that name hold the path.
PROJECT = "dvc/project"


def project_tag(root: Path | str) -> str:
    """The value of the tag :data:`PROJECT` on events of a project."""
    return hash_json(str(root))


@dataclass(frozen=True)
class Reproduction:
    """What ``dvc repro`` did: ran the stage, restored its outs from the run cache, or found nothing to do."""

    asset_key: dg.AssetKey
    stage: str
    outcome: Outcome
    md5s: Mapping[str, str]
    data_version: str
    lock_digest: str
    project: str
    seconds: float
    saved_seconds: float | None = None  # what a run would have taken longer, where that is known
    metadata: Mapping[str, Any] = field(default_factory=dict)
    check_results: Sequence[dg.AssetCheckResult] = ()

    def result(self, **metadata: Any) -> dg.MaterializeResult[Any]:
        """The materialization: data version = md5, the metadata of the stage, and ``metadata``."""
        saved = {} if self.saved_seconds is None else {"dvc/saved_seconds": round(self.saved_seconds, 2)}
        return dg.MaterializeResult(
            asset_key=self.asset_key,
            data_version=dg.DataVersion(self.data_version),
            metadata=notes_last(
                {
                    "dvc/stage": self.stage,
                    PROJECT: self.project,
                    "dvc/outcome": self.outcome,
                    "dvc/seconds": round(self.seconds, 2),
                    **saved,
                    "dvc/md5": dg.MetadataValue.json(dict(self.md5s)),
                    **self.metadata,
                    **metadata,
                }
            ),
            tags={LOCK_DIGEST_TAG: self.lock_digest, PROJECT: project_tag(self.project)},
            check_results=list(self.check_results),
        )
