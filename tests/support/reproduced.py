"""A project and a world in which `paco reproduce` takes no time: the experiments of DVC are stood in for."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from paco_core.config.changes import changed
from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.records.records import write_prompts
from paco_core.experiments.grid import Cell, Grid, Result
from paco_core.experiments.reproduction import ReproduceOptions
from paco_core.io import paths
from paco_core.storybook.prompts import storybook_prompts
from tests.support.fixture_project import records_of

#: Gold consistency before training, and what each variant adds at the largest size; seeds add a hundredth each.
BARE, GAIN = 0.4, {"full": 0.2, "no_decoupling": 0.3, "no_log_tame": 0.25}
SMALL = [f"{stage}.{key}" for stage in ("t2is", "gedit") for key in ("prompts=6", "seeds=[0]", "bootstrap=100")]
KONTEXT = {
    "family": "flux_kontext", "model": "data/zoo/flux_kontext", "train_size": 64, "eval_sizes": [64, 128],
    "sampling_steps": 4, "noise_steps": [1], "dynamics": "flow_sde", "noise_level": 0.9, "guidance": 3.5,
    "max_sequence_length": 8,
    "rewards": {"terms": {"editing": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"},
}  # fmt: skip


def commit(project: Path) -> None:
    """Commit all tracked files of a project as they are, with the record of a run."""
    if not (project / "dvc.lock").is_file():
        (project / "dvc.lock").write_text("schema: '2.0'\nstages: {}\n")
        (project / ".gitignore").write_text("/data/\n/experiments/\n/mlflow.db*\n/.paco/\n")
    user = ("-c", "user.name=t", "-c", "user.email=t@t")
    for command in (("init", "-q"), ("add", "-A"), (*user, "commit", "-qm", "t")):
        subprocess.run(["git", *command], cwd=project, check=True)
    for key, value in (("user.name", "t"), ("user.email", "t@t")):
        subprocess.run(["git", "config", key, value], cwd=project, check=True)


def finish(grid: Grid, name: str) -> None:
    """Make the reference by which DVC finds an experiment."""
    head = subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=grid.root, text=True).strip()
    subprocess.run(["git", "update-ref", f"refs/exps/ab/cd/{name}", head], cwd=grid.root, check=True)


def stand_in(monkeypatch: pytest.MonkeyPatch, run: Callable[[Grid, str, Cell], None]) -> None:
    """Let ``run`` stand in for `dvc exp run`; it writes what the stages make below ``experiments/NAME``."""

    def place(result: Result, path: Path | str) -> Path:
        return result.root / "experiments" / result.experiment / path

    monkeypatch.setattr(Grid, "_run", run)
    monkeypatch.setattr(Result, "folder", place)
    monkeypatch.setattr(Result, "read", lambda result, path: place(result, path).read_text())


@pytest.fixture
def completed_project(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose graph made prompts and a reward, as far as names go, and whose run is committed."""
    monkeypatch.setenv("PACO_TRACKING", "off")
    records = records_of(storybook_prompts(12, seed=0))
    for stage, part in (("prompts", records), ("diverse_prompts", records[:6])):
        write_prompts(project / "data" / stage / "prompts.jsonl", part)
    configs = {"reward_merged": "config", "zoo/clip": "open_clip_config", "zoo/recogniser": "config"}
    for model, config in configs.items():
        (project / "data" / model).mkdir(parents=True)
        (project / "data" / model / f"{config}.json").write_text(json.dumps({"model": model}))
    edits = storybook_edit_prompts(30, 32, seed=0)
    edits.hold_out(16, seed=0)
    edits.write(project / paths.EDIT_PROMPTS)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["policies"]["recipes"] = {"flux_t2is": tree["policies"]["recipes"]["flux_t2is"], "kontext_edit": KONTEXT}
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    commit(project)
    return project


class World:
    """Stands in for `dvc exp run`: every training is counted, every benchmark shows the gain of its variant."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, int]] = []
        self.kill_at: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None  # while something is trained
        self.edit_gain = 0.3
        self.edits_per_picture = 1

    def run(self, grid: Grid, name: str, cell: Cell) -> None:
        variant, recipe = cell.variant.name, str(cell.variant.recipe)
        params = changed(load(grid.root / PARAMS_FILE), cell.changes)
        assert list(params.policies.recipes) == [recipe], "no other recipe is trained or measured"
        rule = params.policies.recipes[recipe]
        assert rule.seed == cell.seed
        if self.kill_at == len(self.trained):
            os.kill(os.getpid(), signal.SIGKILL)
        self.trained.append((variant, cell.seed))
        self.meanwhile()
        out = grid.root / "experiments" / name
        ratio = (3.0 if variant == "no_log_tame" else 1.5) + cell.seed / 100
        health = {"panel_diversity": 0.2, "reward_ratio": ratio}
        log = [{"epoch": n, **({"update/clip_fraction": 0.1} if variant == "kontext" else health)} for n in range(3)]
        (out / paths.POLICIES / recipe).mkdir(parents=True)
        pd.DataFrame(log).to_csv(out / paths.POLICIES / recipe / "training_log.csv", index=False)
        metrics = out / paths.metrics_file("policies", recipe)
        metrics.parent.mkdir(parents=True)
        metrics.write_text('{"stopped_early": 0.0}')
        rows = [
            self._row(cell, recipe, size, phase, n)
            for phase in ("before", "after")
            for size in rule.eval_sizes
            for n in range(6)
        ]
        (out / "data" / cell.stage).mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(out / "data" / cell.stage / "per_prompt.parquet")
        finish(grid, name)

    def _row(self, cell: Cell, recipe: str, size: int, phase: str, n: int) -> dict[str, Any]:
        trained, variant = phase == "after", cell.variant.name
        case = {"policy": recipe, "size": size, "when": phase, "prompt_id": f"p{n}", "seed": 0}
        if recipe == "kontext_edit":
            gain = (self.edit_gain + cell.seed / 100 + n / 1000) * trained
            scores = {"gold_editing": BARE + gain, "gold_reached": 0.5 + 0.1 * trained}
            about = {"picture": f"picture {n // self.edits_per_picture}", "task_type": "size", "language": "en"}
            return {**case, **about, **scores, "gold_kept": 0.9, "editing": BARE, "edit_following": 0.5}
        gold = BARE + n / 10 + (GAIN.get(variant, 0.0) + cell.seed / 100 + n / 1000) * trained
        scores = {"gold_consistency": gold, "gold_following": 0.9, "consistency": gold, "clip_t": 0.8}
        return {**case, **scores, "panel_diversity": 0.05 if trained and variant == "no_log_tame" else 0.2}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World()
    stand_in(monkeypatch, lambda grid, name, cell: world.run(grid, name, cell))
    return world


def options(*variants: str, seeds: tuple[int, ...] = (0, 1), changes: tuple[str, ...] = ()) -> ReproduceOptions:
    return ReproduceOptions(variants or tuple(GAIN), seeds, [*SMALL, *changes], "try")


def reported(root: Path, recipe: str = "flux_t2is") -> dict[str, Any]:
    """What the report says of a recipe: its ``variants`` and ``published`` rows."""
    report = json.loads((root / "data" / "reproduce" / "try" / "report.json").read_text())
    return dict(report["recipes"][recipe])
