"""Every kind of file that the project reads, damaged: a clear error that names it, or nothing lost by it."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from ruamel.yaml import YAML

from dvc_project.errors import DvcProjectError
from paco_core.cli import exchange as command
from paco_core.config.params import ParamsError
from paco_core.data.annotation.label_studio import _result
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore
from paco_core.data.llm.journal import Journal
from paco_core.io.files import DataError, write_json, write_jsonl
from paco_core.runtime.tracking.journal import RunJournal
from paco_core.serving.cache import ScoreCache
from paco_core.training.checkpoint import Checkpoint, save_checkpoint
from tests.faults import damage
from tests.faults.readers import KEYS, KINDS, SIZES, Kind
from tests.faults.verdicts import Breach, Ledger
from tests.support import forked

LIMIT_S = 10.0  # for reading one small file
CLEAR = (DataError, ParamsError, DvcProjectError)  # what verbs print as one line
SIDE_FILES = ("-wal", "-shm", "-journal")
pytestmark = pytest.mark.faults


@pytest.fixture(scope="module")
def sound(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of a finished project with what else is read: imports, stores, journals, checkpoints, dvc.lock."""
    root = tmp_path_factory.mktemp("sound") / "project"
    shutil.copytree(finished, root, symlinks=True)
    write_jsonl(root / "rankings.jsonl", ({"instance_id": i, "annotator": "a", "ranking": [1, 0, 3, 2]} for i in SIZES))
    write_json(root / "export.json", [_task(number, name) for number, name in enumerate(SIZES)])
    command.export(root, "paco_dataset", root / "paco_dataset", "other")
    tensors = {f"adapter/{name}": torch.arange(12.0).reshape(3, 4) for name in "ab"}
    save_checkpoint(root / "checkpoint", Checkpoint("recipe", 3, tensors, {"rows": [{"epoch": 1}]}))
    ScoreCache(root / "scores.db").put({key: 1 / (n + 2) for n, key in enumerate(KEYS)})
    with AnswerStore(root / "answers.sqlite", create=True) as store:
        store.recruit(1)
        for name in SIZES:
            store.record(AnnotatorAnswer("annotator-1", name, 1, "ranked", (2, 0, 1, 3), (0, 1, 2, 3), 1.0))
    with Journal(root / "journal.jsonl") as journal:
        for n in range(12):
            journal.append({"key": f"k{n}", "answer": "Yes. It is."})
    (root / "tracking").mkdir()
    journal = RunJournal(root / "tracking")
    for n in range(12):
        journal.append({"kind": "metrics", "step": n, "values": {"loss": n / 7}})
    deps = {"diverse_prompts": "data/prompts", "rankings": "data/grids"}
    stages = {name: _stage(name, dep) for name, dep in deps.items()}
    with (root / "dvc.lock").open("w") as lock:
        YAML().dump({"schema": "2.0", "stages": stages}, lock)
    return root


def _task(number: int, instance: str) -> dict[str, Any]:
    answer = {"id": number, "completed_by": {"id": 1, "email": "a@b.c"}, "updated_at": "2026-01-01T00:00:00Z"}
    annotations = [{**answer, "result": [_result([1, 0, 3, 2])]}]
    return {"id": number, "data": {"instance_id": instance}, "annotations": annotations}


def _stage(name: str, dep: str) -> dict[str, Any]:
    """As DVC writes it to dvc.lock."""
    dep_entry, out_entry = ({"path": path, "hash": "md5", "md5": "0" * 32, "size": 9} for path in (dep, f"data/{name}"))
    params = {"params.yaml": {"prompts.count": 12}}
    return {"cmd": f"python -m paco_core run {name}", "deps": [dep_entry], "params": params, "outs": [out_entry]}


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_file(sound: Path, tmp_path: Path, ledger: Ledger, kind: Kind) -> None:
    path = sound / kind.file
    data, mode, expected = path.read_bytes(), path.stat().st_mode, kind.read(sound)
    side_files = {p: p.read_bytes() for p in path.parent.glob(f"{path.name}*") if p.name.endswith(SIDE_FILES)}
    try:
        with ledger.row("damaged file", kind.name) as row:
            for name, damaged in damage.damages(data, kind.form, random.Random(kind.name)):
                for left in path.parent.glob(f"{path.name}-*"):
                    left.unlink()
                path.unlink(missing_ok=True)  # it may be a link
                path.write_bytes(damaged)
                row.judge(name, misread(kind, sound, expected, tmp_path))
            path.unlink()
            path.mkdir()
            row.judge("a folder", misread(kind, sound, expected, tmp_path))
    finally:
        if path.is_dir():
            shutil.rmtree(path)
        path.write_bytes(data)
        path.chmod(mode)
        for place, content in side_files.items():
            place.write_bytes(content)
    assert str(kind.read(sound)) == str(expected), "the sound file is back"


def misread(kind: Kind, root: Path, expected: Any, folder: Path) -> Breach:
    """Unless a damaged file is read with a clear error, or with nothing lost.

    In a process of its own: a file may end the interpreter, or keep it busy for ever. A flipped bit in a name makes
    another name: that is for the checksums that DVC keeps of every out.
    """

    def read() -> Breach:
        try:
            value = kind.read(root)
        except CLEAR as error:
            names = kind.names or (Path(kind.file).name,)
            return None if any(name in str(error) for name in names) else ("unclear", f"names no file: {error}")
        except Exception as error:
            return "unclear", f"raw {type(error).__name__}: {str(error)[:160]}"
        fault = None if value == expected else kind.fault(value)
        return ("wrong", fault) if fault else None

    result = forked.run(lambda: print("\n" + json.dumps(read())), folder, limit_s=LIMIT_S)
    if result.code != 0:
        return "unclear", f"ended the interpreter with {result.code} (None: it hangs): {result.text.strip()[:100]}"
    breach = json.loads(result.text.splitlines()[-1])
    return breach and (breach[0], breach[1])
