"""A small project whose dvc.lock, cache and files agree: prompts -> grids (two shards) -> pairs -> policies."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dvc_project.cache import Cache
from dvc_project.hashing import Workspace
from dvc_project.lockfile import Inputs
from paco_core.runtime.code.inputs import present_inputs
from paco_core.runtime.code.source import parse_source
from paco_core.runtime.code.stage_code import StageCode

GRAPH = """
stages:
  prompts:
    cmd: python -m paco_core run prompts
    params: [prompts.count]
    deps: [data/code/prompts.json]
    outs: [data/prompts]
  grids:
    matrix: {shard: [0, 1]}
    cmd: python -m paco_core run grids --item ${item.shard}
    params: [grids]
    deps: [data/code/grids.json, data/prompts]
    outs: ["data/grids/shard-${item.shard}"]
  pairs:
    cmd: python -m paco_core run pairs
    deps: [data/code/pairs.json, data/grids]
    outs: [data/pairs]
    metrics: [data/metrics/pairs.json: {cache: false}]
  policies:
    matrix: {policy: [flux_t2is]}
    cmd: python -m paco_core run policies --item ${item.policy}
    params: [policies]
    deps: [data/code/policies.json, data/pairs]
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
    "paco_core/__init__.py": "",
    "paco_core/prompts.py": "prompts = 1\n",
    "paco_core/grids.py": "grids = 1\n",
    "paco_core/pairs.py": "pairs = 1\n",
    "paco_core/policies/flux.py": "flux = 1\n",
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


#: The module that each stage runs, and the model that its parameters name.
CODE = {
    "prompts": ("paco_core/prompts.py", None),
    "grids": ("paco_core/grids.py", "data/zoo/flux"),
    "pairs": ("paco_core/pairs.py", None),
    "policies": ("paco_core/policies/flux.py", "data/zoo/flux"),
}


def code(root: Path, stage: str) -> StageCode:
    """What the stage ``code`` would say of a stage."""
    module, model = CODE.get(stage.partition("@")[0], (None, None))
    if module is None:
        return StageCode()
    digest = parse_source((root / module).read_bytes(), module).digest
    files = {model: str(Workspace(root).md5(model))} if model else {}
    return StageCode({module: digest}, {"numpy": np.__version__}, files)


def recipe(root: Path, stage: str) -> Inputs:
    """What a stage reads now."""
    inputs = present_inputs(root, stage, code(root, stage))
    assert inputs is not None, stage
    return inputs


def make(root: Path) -> Path:
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    record(root)
    return root


def make_whole(root: Path) -> Path:
    """The same with the parameters that the project holds, of which it trains one recipe."""
    params = yaml.safe_load((root / "params.yaml").read_text())
    params["policies"]["recipes"] |= {"kontext_edit": None, "qwen_edit": None}
    make(root)
    (root / "params.yaml").write_text(yaml.safe_dump(params))
    graph = (root / "dvc.yaml").read_text().replace("params: [prompts.count]", "params: [prompts]")
    (root / "dvc.yaml").write_text(graph)
    (root / "dvc.lock").unlink()
    record(root)
    return root


def record(root: Path, only: Mapping[str, list[str]] = OUTS) -> None:
    """Write what DVC would record of a run: the lock, and every out in the cache."""
    path = root / "dvc.lock"
    tree: dict[str, Any] = yaml.safe_load(path.read_text()) if path.is_file() else {"schema": "2.0", "stages": {}}
    disk = Workspace(root)
    for stage, outs in only.items():
        made_of = code(root, stage).text
        name = stage.partition("@")[0]
        places = (root / f"data/code/{name}.json", Cache(root).path(_md5(made_of)))
        for place in places if name in CODE else ():
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(made_of)
        reads = recipe(root, stage)
        tree["stages"][stage] = {
            "cmd": " --item ".join(f"python -m paco_core run {stage}".split("@")),
            "deps": [{"path": p, "hash": "md5", "md5": md5} for p, md5 in reads.deps.items()],
            "params": {file: dict(values) for file, values in reads.params.items()},
            "outs": [{"path": out, "hash": "md5", "md5": disk.md5(out)} for out in outs],
        }
        path.write_text(yaml.safe_dump(tree))
        for out in outs:
            _cache(root, disk, out)


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()


def _cache(root: Path, disk: Workspace, out: str) -> None:
    if not (root / out).is_dir():
        return
    listing = disk.listing(out)
    cache = Cache(root)
    store = cache.path(str(disk.md5(out)))
    store.parent.mkdir(parents=True, exist_ok=True)
    store.write_text(json.dumps([{"md5": md5, "relpath": name} for name, md5 in listing.items()]))
    for name, md5 in listing.items():
        cache.path(md5).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / out / name, cache.path(md5))
