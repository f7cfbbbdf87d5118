"""A small project whose dvc.lock, cache and files agree: prompts -> grids (two shards) -> pairs -> policies."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from paco_core.lock import Disk, cached, present_recipe

GRAPH = """
stages:
  prompts:
    cmd: python -m paco_core run prompts
    params: [prompts.count]
    deps: [paco_core/prompts.py]
    outs: [data/prompts]
  grids:
    matrix: {shard: [0, 1]}
    cmd: python -m paco_core run grids --item ${item.shard}
    params: [grids]
    deps: [data/prompts, data/zoo/flux, paco_core/grids.py]
    outs: ["data/grids/shard-${item.shard}"]
  pairs:
    cmd: python -m paco_core run pairs
    deps: [data/grids, paco_core/pairs.py]
    outs: [data/pairs]
    metrics: [data/metrics/pairs.json: {cache: false}]
  policies:
    matrix: {policy: [flux_t2is]}
    cmd: python -m paco_core run policies --item ${item.policy}
    params: [policies]
    deps: [data/pairs, data/zoo/flux, paco_core/policies]
    outs: ["data/policies/${item.policy}"]
"""
OUTS = {
    "prompts": ["data/prompts"],
    "grids@0": ["data/grids/shard-0"],
    "grids@1": ["data/grids/shard-1"],
    "pairs": ["data/pairs", "data/metrics/pairs.json"],
    "policies@flux_t2is": ["data/policies/flux_t2is"],
}
FILES = {
    "dvc.yaml": GRAPH,
    ".dvcignore": ".gitignore\n",
    "params.yaml": "prompts: {count: 3}\ngrids: {seeds: [0, 1], lr: 1.0e-05}\npolicies: {epochs: 2}\n",
    "paco_core/prompts.py": "# prompts\n",
    "paco_core/grids.py": "# grids\n",
    "paco_core/pairs.py": "# pairs\n",
    "paco_core/policies/flux.py": "# flux\n",
    "data/zoo/flux/model.safetensors": "weights",
    "data/prompts/prompts.jsonl": "{}\n",
    "data/grids/.gitignore": "/shard-0\n",
    "data/grids/shard-0/images.tar": "zero",
    "data/grids/shard-1/images.tar": "one",
    "data/pairs/train.parquet": "train",
    "data/pairs/benchmark.parquet": "benchmark",
    "data/metrics/pairs.json": "{}",
    "data/policies/flux_t2is/adapter/weights.safetensors": "adapter",
}


def make(root: Path) -> Path:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    record(root)
    return root


def record(root: Path, only: Mapping[str, list[str]] = OUTS) -> None:
    """Write what DVC would record of a run: the lock, and every out in the cache."""
    path = root / "dvc.lock"
    tree: dict[str, Any] = yaml.safe_load(path.read_text()) if path.is_file() else {"schema": "2.0", "stages": {}}
    disk = Disk(root)
    for stage, outs in only.items():
        recipe = present_recipe(root, stage)
        assert recipe is not None, stage
        tree["stages"][stage] = {
            "cmd": f"run {stage}",
            "deps": [{"path": p, "hash": "md5", "md5": md5} for p, md5 in recipe.deps.items()],
            "params": {file: dict(values) for file, values in recipe.params.items()},
            "outs": [{"path": out, "hash": "md5", "md5": disk.md5(out)} for out in outs],
        }
        path.write_text(yaml.safe_dump(tree))
        for out in outs:
            _cache(root, disk, out)


def _cache(root: Path, disk: Disk, out: str) -> None:
    if not (root / out).is_dir():
        return
    listing = disk.listing(out)
    store = cached(root, str(disk.md5(out)))
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps([{"md5": md5, "relpath": name} for name, md5 in listing.items()]))
    for name, md5 in listing.items():
        cached(root, md5).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / out / name, cached(root, md5))
