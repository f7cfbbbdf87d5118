"""Small projects: the graph with two rounds, and profiles of large scale with small weights."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paco_core.config import profiles
from tests.support import REPOSITORY


def lay_out_rounds(root: Path) -> Path:
    """The graph, the profiles and the parameters of *rounds*, and no data."""
    for name in ("dvc.yaml", "params.yaml"):
        shutil.copy(REPOSITORY / name, root)
    shutil.copytree(REPOSITORY / "profiles", root / "profiles")
    profiles.use(root, "rounds")
    return root


def use(root: Path, profile: str, *changes: Mapping[str, Any]) -> None:
    """Write params.yaml from a profile, with changes laid over it one after another."""
    profiles.use(root, profile)
    tree = yaml.safe_load((root / "params.yaml").read_text())
    for change in changes:
        tree = _laid_over(tree, change)
    (root / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))


def _laid_over(tree: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(tree)
    for key, value in changes.items():
        merged[key] = _laid_over(merged[key], value) if isinstance(value, Mapping) else value
    return merged
