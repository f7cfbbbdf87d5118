"""All that a report of reproduced trainings says of one recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paco_core.benchmarks.tables import Table
from paco_core.experiments.reproduction.cells import Kept
from paco_core.experiments.reproduction.findings import Finding
from paco_core.experiments.reproduction.summary import Summary
from paco_core.experiments.reproduction.tables import basis, published_rows


@dataclass(frozen=True)
class Part:
    """All that the report says of one recipe; ``before`` is the folder of its bare model's examination."""

    summary: Summary
    findings: Sequence[Finding]
    tables: Sequence[Table]
    cells: Sequence[Kept]
    before: Path

    @property
    def recipe(self) -> str:
        return self.summary.recipe

    @property
    def basis(self) -> str:
        return basis(self.summary)

    def as_dict(self) -> dict[str, Any]:
        published = [
            {"model": r.model, "source": r.source, "figures": dict(r.figures)} for r in published_rows(self.summary)
        ]
        return {**self.summary.as_dict(), "findings": [f.as_dict() for f in self.findings], "published": published}
