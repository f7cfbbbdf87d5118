"""A project and a world in which `paco reproduce` takes no time: models and trainings are stood in for."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core.benchmarks.cases import Cases
from paco_core.cli import reproduce as command
from paco_core.cli.reproduce import ReproduceOptions
from paco_core.config.params import Params
from paco_core.data.prompts.edit_prompts import drawn
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import write_prompts
from paco_core.experiments.reproduction import cells
from paco_core.io import paths
from paco_core.painting.painted import BEFORE, Painted
from paco_core.storybook.prompts import storybook_prompts
from tests.support.fixture_project import records_of

#: Gold consistency before training, and what each variant adds at 128 px; seeds add a hundredth each.
BARE, GAIN = 0.4, {"full": 0.2, "no_decoupling": 0.3, "no_log_tame": 0.25}
SECONDS = {"full": 10.0, "no_decoupling": 25.0, "no_log_tame": 11.0, "kontext": 8.0}
SMALL = [f"{stage}.{key}" for stage in ("t2is", "gedit") for key in ("prompts=6", "seeds=[0]", "bootstrap=100")]
KONTEXT = {
    "family": "flux_kontext", "model": "data/zoo/flux_kontext", "train_size": 64, "eval_sizes": [64, 128],
    "sampling_steps": 4, "noise_steps": [1], "dynamics": "flow_sde", "noise_level": 0.9, "guidance": 3.5,
    "max_sequence_length": 8,
    "rewards": {"terms": {"editing": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"},
}  # fmt: skip


@pytest.fixture
def made(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project whose graph made prompts and a reward, as far as names and digests go."""
    monkeypatch.setenv("PACO_TRACKING", "off")
    records = records_of(storybook_prompts(12, seed=0))
    for stage, part in (("prompts", records), ("diverse_prompts", records[:6])):
        write_prompts(project / "data" / stage / "prompts.jsonl", part)
    for model in ("reward_merged", "zoo/clip", "zoo/recogniser"):
        (project / "data" / model).mkdir(parents=True)
        (project / "data" / model / "config.json").write_text(json.dumps({"model": model}))
    edits = drawn(30, 32, seed=0)
    edits.hold_out(16, seed=0)
    edits.write(project / paths.EDIT_PROMPTS)
    tree = yaml.safe_load((project / "params.yaml").read_text())
    tree["policies"]["recipes"] = {"flux_t2is": tree["policies"]["recipes"]["flux_t2is"], "kontext_edit": KONTEXT}
    (project / "params.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return project


class World:
    """Stands in for what takes long: every training is counted, every examination shows the gain of its variant."""

    def __init__(self) -> None:
        self.trained: list[tuple[str, int]] = []
        self.examined: list[str] = []  # bare models
        self.kill_at: int | None = None
        self.meanwhile: Callable[[], object] = lambda: None  # while something is trained
        self.edit_gain = 0.3
        self.reached_gain = 0.1
        self._state = ("", 0)  # the variant and seed that trained the policy at hand

    def train(self, params: Params, name: str, place: Any, _code: str, reports: Any) -> tuple[Any, str]:
        rule, out = params.policies.recipes[name], place.out
        variant = "no_decoupling" if rule.train_size == 128 else "full"
        variant = "no_log_tame" if rule.rewards.aggregator == "weighted_sum" else variant
        variant = "kontext" if name == "kontext_edit" else variant
        if self.kill_at == len(self.trained):
            os.kill(os.getpid(), signal.SIGKILL)
        self.trained.append((variant, rule.seed))
        self.meanwhile()
        (out / "adapter").mkdir(parents=True, exist_ok=True)
        (out / "adapter" / "name").write_text(f"{variant} {rule.seed}")
        ratio = 3.0 if variant == "no_log_tame" else 1.5
        health = {"reward_ratio": ratio + rule.seed / 100, "panel_diversity": 0.2}
        epoch = {"update/clip_fraction": 0.1} if variant == "kontext" else health
        seconds = {"seconds/sample": SECONDS[variant], "seconds/processor": 2.0}
        reports.metrics({"eval/64/consistency": 0.5}, 2)
        return SimpleNamespace(rows=[{"epoch": 0.0}, epoch, epoch], stopped=None, seconds=seconds), ""

    def load_recipe(self, *_: Any, **__: Any) -> Any:
        self._state = ("", 0)
        return self

    def load_adapter(self, adapter: Path) -> None:
        variant, seed = (adapter / "name").read_text().split()
        self._state = (variant, int(seed))

    def paint(self, cases: Cases, _policy: Any, name: str, rule: Any, *, when: str, advance: Any) -> list[Painted]:
        assert (when == BEFORE) == (not self._state[0])
        if when == BEFORE:
            self.examined.append(name)
        advance(1)
        return [
            Painted(name, size, when, record, 0, Image.new("RGB", (size, size), (n, 0, 0)))
            for size in rule.eval_sizes
            for n, record in enumerate(cases.records)
        ]

    def measuring(self, _root: Path, _params: Params, _judge: Path, cases: Cases) -> Any:
        """As the benchmarks do: of edits with what was edited, of sets without."""
        place = {record.idx: n for n, record in enumerate(cases.records)}
        return lambda painted: pd.DataFrame([self._row(p, place[p.record.idx]) for p in painted])

    def _row(self, p: Painted, n: int) -> dict[str, Any]:
        variant, seed = self._state
        case = {"policy": p.policy, "size": p.size, "when": p.when, "prompt_id": p.record.idx, "seed": p.seed}
        if isinstance(p.record, EditRecord):
            gain = self.edit_gain + seed / 100 + n / 1000 if variant else 0.0
            figures = {"gold_editing": BARE + gain, "gold_reached": 0.5 + self.reached_gain * bool(variant)}
            about = {"picture": p.record.references[0], "task_type": "size", "language": "en"}
            return {**case, **about, **figures, "gold_kept": 0.9, "editing": BARE, "edit_following": 0.5}
        gold = BARE + n / 10 + (GAIN[variant] + seed / 100 + n / 1000 if variant else 0.0)
        figures = {"gold_consistency": gold, "gold_following": 0.9, "consistency": gold, "clip_t": 0.8}
        return {**case, **figures, "panel_diversity": 0.05 if variant == "no_log_tame" else 0.2}


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    found = World()
    monkeypatch.setattr(cells, "train_recipe", found.train)
    monkeypatch.setattr(cells, "load_recipe", found.load_recipe)
    monkeypatch.setattr(cells, "measuring", found.measuring)
    monkeypatch.setattr(Cases, "painted_by", lambda cases, *args, **named: found.paint(cases, *args, **named))
    monkeypatch.setattr(command, "_reward_server", lambda _root, _params: nullcontext())
    return found


def options(*variants: str, seeds: tuple[int, ...] = (0, 1), changes: tuple[str, ...] = ()) -> ReproduceOptions:
    return ReproduceOptions(variants or tuple(GAIN), seeds, [*SMALL, *changes], "try")


def reported(made: Path, recipe: str = "flux_t2is") -> dict[str, Any]:
    """What the report says of a recipe: its ``variants``, ``findings`` and ``published`` rows."""
    report = json.loads((made / "data" / "reproduce" / "try" / "report.json").read_text())
    return dict(report["recipes"][recipe])
