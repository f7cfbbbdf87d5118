"""One sound file of every kind that the project reads, in one folder."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from PIL import Image
from ruamel.yaml import YAML

from dvc_project.hashing import Workspace
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore
from paco_core.data.llm.journal import Journal
from paco_core.io.files import write_json, write_jsonl
from paco_core.io.shards import encode_png
from paco_core.runtime.provenance import records
from paco_core.runtime.provenance.chain import Run
from paco_core.runtime.tracking.journal import RunJournal
from paco_core.serving.cache import ScoreCache
from paco_core.training.checkpoint import Checkpoint
from paco_core.training.checkpoint import save as save_policy
from tests.faults.readers import KEYS, SIZES


def make(finished: Path, root: Path) -> Path:
    """A copy of a finished project with what else is read: imports, stores, journals, checkpoints, dvc.lock."""
    shutil.copytree(finished, root, symlinks=True)
    _imports(root)
    _checkpoints(root)
    ScoreCache(root / "scores.db").put({key: 1 / (n + 2) for n, key in enumerate(KEYS)})
    with AnswerStore(root / "answers.sqlite", create=True) as store:
        store.recruit(1)
        for name in SIZES:
            store.record(AnnotatorAnswer("annotator-1", name, 1, "ranked", (2, 0, 1, 3), (0, 1, 2, 3), 1.0))
    with Journal(root / "journal.jsonl") as journal:
        for n in range(12):
            journal.append({"key": f"k{n}", "answer": "Yes. It is."})
    (root / "tracking").mkdir()
    told = RunJournal(root / "tracking")
    for n in range(12):
        told.append({"kind": "metrics", "step": n, "values": {"loss": n / 7}})
    records.keep(root, "prompts", "recipe", _run())
    _lock(root)
    return root


def _imports(root: Path) -> None:
    shutil.copy(root / "data/prompts/prompts.jsonl", root / "t2is.jsonl")
    picture = Image.effect_noise((24, 24), 80).convert("RGB")
    picture.save(root / "picture.png")
    rows = [{"key": f"k{n}", "instruction": f"make it red {n}", "input_image": "picture.png"} for n in range(4)]
    write_jsonl(root / "triples.jsonl", ({**row, "task_type": "color", "instruction_language": "en"} for row in rows))
    write_jsonl(root / "rankings.jsonl", ({"instance_id": i, "annotator": "a", "ranking": [1, 0, 3, 2]} for i in SIZES))
    write_json(root / "export.json", [_task(number, name) for number, name in enumerate(SIZES)])
    (root / "edit_bench").mkdir()
    stored = {"bytes": encode_png(picture), "path": None}
    case = {"key": ["a", "b"], "instruction": "make it red", "input_image": stored, "output_images": [stored, stored]}
    case |= {"task_type": "color", "dimension": "overall"}
    table = pd.DataFrame([{**case, "key": ["a", f"b{n}"]} for n in range(3)])
    table.to_parquet(root / "edit_bench/data.parquet", index=False)
    from paco_core.cli import exchange as command

    for name in ("paco_dataset", "rank_bench"):
        command.export(root, name, root / name, "other")


def _task(number: int, instance: str) -> dict[str, Any]:
    from paco_core.data.annotation.label_studio import _result

    answer = {"id": number, "completed_by": {"id": 1, "email": "a@b.c"}, "updated_at": "2026-01-01T00:00:00Z"}
    result = [_result([1, 0, 3, 2])]
    return {"id": number, "data": {"instance_id": instance}, "annotations": [{**answer, "result": result}]}


def _checkpoints(root: Path) -> None:
    import torch

    from paco_core.reward_model import checkpoint
    from paco_core.training.updates import moments_of

    tensors = {f"adapter/{name}": torch.arange(12.0).reshape(3, 4) for name in "ab"}
    save_policy(root / "checkpoint", Checkpoint("recipe", 3, tensors, {"rows": [{"epoch": 1}]}))
    weight = torch.nn.Parameter(torch.arange(12.0).reshape(3, 4))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    (root / "reward").mkdir()
    done = checkpoint.Progressed(1, 2, 7, [{"step": 7.0, "loss": 0.5}])
    checkpoint.save(root / "reward", "key", done, {"a": weight}, moments_of(optimizer, {"a": weight}))


def _run() -> Run:
    return Run(seconds=1.0, mlflow_url="http://127.0.0.1:5000/#/x")


def _lock(root: Path) -> None:
    """dvc.lock of a few stages, in DVC's own form."""
    disk = Workspace(root)

    def entry(path: str) -> Mapping[str, object]:
        return {"path": path, "hash": "md5", "md5": disk.md5(path), "size": disk.size(path)}

    stages = {
        name: {
            "cmd": f"python -m paco_core run {name}",
            "deps": [entry(dep) for dep in deps],
            "params": {"params.yaml": {"prompts.count": 12}},
            "outs": [entry(f"data/{name}")],
        }
        for name, deps in (("prompts", []), ("diverse_prompts", ["data/prompts"]), ("rankings", ["data/grids"]))
    }
    with (root / "dvc.lock").open("w") as out:
        YAML().dump({"schema": "2.0", "stages": stages}, out)


def lines(text: bytes) -> list[Any]:
    return [json.loads(line) for line in text.splitlines() if line.strip()]
