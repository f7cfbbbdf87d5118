"""The graph of ``dvc.yaml`` as Mermaid, for the documentation."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from dvc_project.paths import overlap
from dvc_project.project import ResolvedStage, stages_of


def edges(stages: Iterable[ResolvedStage]) -> list[tuple[str, str]]:
    """(producer, consumer) pairs of entries: one depends on another when a dep equals, holds or lies in its out."""
    entries = list(stages)
    return sorted(
        {
            (producer.group, consumer.group)
            for consumer in entries
            for producer in entries
            if producer.group != consumer.group
            and any(overlap(dep, out) for dep in consumer.deps for out in producer.data)
        }
    )


def mermaid(root: Path) -> str:
    """A Mermaid flow chart, stages grouped as in Dagster; bookkeeping is left out."""
    stages = [stage for stage in stages_of(root).values() if stage.dagster.get("group")]
    groups: dict[str, list[str]] = {}
    for stage in stages:
        members = groups.setdefault(str(stage.dagster["group"]), [])
        members += [stage.group] if stage.group not in members else []
    lines = ["flowchart LR"]
    for group, names in groups.items():
        lines += [f"  subgraph {group}", *(f"    {name}" for name in names), "  end"]
    lines += [f"  {a} --> {b}" for a, b in edges(stages)]
    return "\n".join(lines)
