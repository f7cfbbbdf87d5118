"""The whole graph at the smallest scale that runs every stage for real, for faults that need a finished project."""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import re
import shutil
from pathlib import Path

from ruamel.yaml import YAML

from paco_core import stages
from paco_core.cli.commands import main
from paco_core.config import profiles
from paco_core.io.files import folder_digest
from paco_core.io.paths import DATA, METRICS
from paco_core.runtime import tracking
from tests.support import forked
from tests.support.stage_modules import imported_by

#: Below the profile ``smoke``: half a second to a few seconds a stage on one core.
CHANGES = {
    "prompts": {"count": 12},
    "diverse_prompts": {"target": 8},
    "grids": {"steps": 1},
    "edit_prompts": {"count": 4, "unseen": 1},
    "edits": {"steps": 1},
    "pairs": {"validation_share": 0.25, "benchmark_share": 0.25, "editing": {"count": 12}},
    "execution": {"reward": {"processes": 1, "checkpoint_every": 1}, "policies": {"checkpoint_every": 1}},
    "reward": {"epochs": 1, "batch_size": 8},
    "policies": {"defaults": {"epochs": 2, "eval_every": 2, "eval_steps": 1, "eval_prompts": 1}},
    "consistency_rank": {"max_instances": 6, "bootstrap": 20},
    "edit_reward": {"count": 36, "bootstrap": 20},
    "t2is": {"prompts": 1, "steps": 1, "bootstrap": 20},
    "t2is_bench": {"prompts": 1, "bootstrap": 20},
    "gedit": {"prompts": 1, "steps": 1, "bootstrap": 20},
}
#: In the order of the graph; an item behind the sign that DVC writes.
STAGES = (
    "prompts", "diverse_prompts", "grids@0", "grids@1", "rankings", "annotations", "edit_prompts", "edits", "pairs",
    "cot_labels", "reward_lora", "reward_merged", "policies@flux_t2is", "policies@kontext_edit", "policies@qwen_edit",
    "consistency_rank", "edit_reward", "t2is", "t2is_bench", "vistory", "gedit", "report",
)  # fmt: skip


def quiet_tracking() -> None:
    """Stages write down what they have to report and do not wait for it to be sent."""
    from paco_core.runtime.tracking import sender

    class Nobody:
        def poll(self) -> None:
            return None

    sender.start = lambda *_args: Nobody()  # type: ignore[assignment, return-value]
    tracking.PATIENCE_S = 0.0


def prepare(root: Path, repository: Path, store: Path) -> Path:
    """A project of its own without data: the real dvc.yaml, profiles, zoo and sources, and small parameters."""
    root.mkdir()
    for name in ("params.yaml", "dvc.yaml", ".dvcignore"):
        shutil.copy(repository / name, root / name)
    shutil.copytree(repository / "profiles", root / "profiles")
    (root / DATA).mkdir()
    for name in ("paco_core", "data/zoo"):
        (root / name).symlink_to(repository / name)
    (root / "data/people").mkdir()
    shutil.copy(store, root / "mlflow.db")
    profiles.use(root, "smoke")
    change(root, CHANGES)
    return root


def change(root: Path, changes: dict[str, object]) -> None:
    """Lay keys over params.yaml."""
    yaml = YAML()
    tree = yaml.load(root / "params.yaml")
    profiles._overlay(tree, changes, "")
    yaml.dump(tree, root / "params.yaml")


def act(stage: str) -> None:
    """Run a stage as DVC does: the verb's own body, in the working folder."""
    quiet_tracking()
    name, _, item = stage.partition("@")
    main(["run", name, *(["--item", item] if item else [])])


def run(
    root: Path, stage: str, kill: forked.Moment | None = None, *, count: bool = False, log: Path | None = None
) -> forked.ProcessResult:
    return forked.run(lambda: act(stage), root, kill, count=count, log=log)


def out(stage: str) -> Path:
    """The out of a stage, relative to the root."""
    name, _, item = stage.partition("@")
    return DATA / name / (f"shard-{item}" if name == "grids" else item)


def metrics(stage: str) -> Path:
    return METRICS / f"{stage.replace('@', '-')}.json"


def result(root: Path, stage: str) -> tuple[str | None, dict[str, float] | None]:
    """Digest of a stage's out and its metrics, None for what is not there; without dates and speeds, which change."""
    folder, file = root / out(stage), root / metrics(stage)
    page = folder / "index.html"
    if stage == "report" and page.is_file():
        text = re.sub(rb"\d+ \w+ \d{4}, \d\d:\d\d UTC", b"", page.read_bytes())
        digest = hashlib.md5(text, usedforsecurity=False).hexdigest()
    else:
        digest = folder_digest(folder) if folder.is_dir() and any(folder.rglob("*")) else None
    figures = json.loads(file.read_text()) if file.is_file() else None
    return digest, figures and {name: value for name, value in figures.items() if "second" not in name}


def start_afresh(root: Path, stage: str) -> None:
    """As a stage is started that never ran: DVC removes its outs, and nothing is left of earlier attempts."""
    for path in (root / out(stage), root / ".paco" / "checkpoints"):
        shutil.rmtree(path, ignore_errors=True)
    (root / metrics(stage)).unlink(missing_ok=True)


def preload() -> None:
    """Import what stages import, once for all forks."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    vlm = ("Qwen2_5_VLForConditionalGeneration", "Qwen2_5_VLProcessor")
    parts = {
        "diffusers": ("FluxPipeline", "FluxKontextPipeline", "QwenImageEditPipeline"),
        "transformers": (*vlm, "T5EncoderModel", "CLIPTextModel"),
    }
    for module in ("matplotlib.pyplot", "open_clip", "peft", *parts, *imported_by(*stages.names())):
        imported = importlib.import_module(module)
        for part in parts.get(module, ()):
            getattr(imported, part)
