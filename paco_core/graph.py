"""The graph of ``dvc.yaml`` as Mermaid, for the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paco_core.files import read_yaml


def edges(stages: dict[str, Any]) -> list[tuple[str, str]]:
    """(producer, consumer) pairs: a stage depends on another when a dep equals, holds or lies in its out."""
    outs = {name: [_path(o) for o in stage.get("outs", [])] for name, stage in stages.items()}
    found = set()
    for consumer, stage in stages.items():
        for dep in map(_path, stage.get("deps", [])):
            for producer, paths in outs.items():
                if any(dep == out or _inside(dep, out) or _inside(out, dep) for out in paths):
                    found.add((producer, consumer))
    return sorted(found - {(name, name) for name in stages})


def _path(entry: Any) -> str:
    return str(next(iter(entry)) if isinstance(entry, dict) else entry)


def _inside(path: str, folder: str) -> bool:
    return path.startswith(folder + "/")


def mermaid(dvc_yaml: Path) -> str:
    """A Mermaid flow chart, stages grouped as in Dagster."""
    stages = read_yaml(dvc_yaml)["stages"]
    groups: dict[str, list[str]] = {}
    for name, stage in stages.items():
        group = stage.get("meta", {}).get("dagster", {}).get("group", "other")
        groups.setdefault(group, []).append(name)
    lines = ["flowchart LR"]
    for group, names in groups.items():
        lines += [f"  subgraph {group}", *(f"    {name}" for name in names), "  end"]
    lines += [f"  {a} --> {b}" for a, b in edges(stages)]
    return "\n".join(lines)
