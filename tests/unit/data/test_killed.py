"""Stages that ask a chat model, killed by signal 9 in the middle: nothing is asked twice, the outs are the same."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from paco_core.io.files import folder_digest
from paco_core.stages import run_stage
from tests.support.annotation_world import make_world
from tests.support.chat_server import Answer, ChatServer, Raw, completion
from tests.support.dataset_world import draw_grids, rank_grids, records
from tests.unit.data.test_annotation_judge import alike, colours
from tests.unit.data.test_prompt_writer import writer
from tests.unit.data.test_reason_writer import honest

DEADLINE_S = 240
IN_FLIGHT = 4


def judge(body: dict[str, Any], _number: int) -> Raw:
    first, second = colours(body)
    return completion({"score": alike(first, second)})


def drawn_pairs(root: Path) -> None:
    """Grids, and pairs of their panels."""
    draw_grids(root / "data", records(6))
    rank_grids(root / "data")
    run_stage("pairs", None, root)


@dataclass(frozen=True)
class Stage:
    """A stage, how it is told to ask, what it needs, and how many questions it has."""

    name: str
    settings: dict[str, Any]
    prepare: Callable[[Path], object]
    answer: Answer
    kill_at: int


STAGES = [
    Stage("prompts", {"engine": "openai", "count": 70, "layout": "2x2"}, lambda _root: None, writer, 15),
    Stage("annotations", {"source": "judge", "judge": "pairwise"}, lambda root: make_world(root, 1, 2), judge, 12),
    Stage("cot_labels", {"engine": "openai"}, drawn_pairs, honest, 12),
]


def configure(root: Path, stage: Stage, server: ChatServer) -> None:
    tree = yaml.safe_load((root / "params.yaml").read_text())
    tree[stage.name] |= stage.settings | {"endpoint": server.params().model_dump()}
    if stage.name == "prompts":
        tree["diverse_prompts"]["target"] = 60
    (root / "params.yaml").write_text(yaml.safe_dump(tree))


@pytest.mark.slow
@pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)
def test_a_killed_stage_asks_for_the_rest_only_and_its_outs_are_the_same(
    project: Path, tmp_path_factory: pytest.TempPathFactory, stage: Stage
) -> None:
    stage.prepare(project)
    reached, go_on = threading.Event(), threading.Event()

    def held(body: dict[str, Any], number: int) -> Raw | None:
        if number >= stage.kill_at and not go_on.is_set():
            if number == stage.kill_at + IN_FLIGHT - 1:  # all that the stage asks before the first of them is answered
                reached.set()
            go_on.wait(DEADLINE_S)
            return None  # to nobody: the stage is gone
        return stage.answer(body, number)

    out, journal = project / "data" / stage.name, project / ".paco" / stage.name / "journal.jsonl"
    with ChatServer(held) as server:
        configure(project, stage, server)
        whole = tmp_path_factory.mktemp("whole") / "project"
        shutil.copytree(project, whole)
        with subprocess.Popen([sys.executable, "-m", "paco_core", "run", stage.name], cwd=project) as process:
            assert reached.wait(DEADLINE_S), "the stage asked too little"
            process.kill()
        assert process.returncode == -signal.SIGKILL and not out.exists()
        go_on.set()
        asked, kept = len(server.bodies), len(journal.read_bytes().splitlines())
        assert stage.kill_at - IN_FLIGHT <= kept <= stage.kill_at, "as many as were given, but those on their way"
        run_stage(stage.name, None, project)
        figures = json.loads((project / f"data/metrics/{stage.name}.json").read_text())
        assert figures["remembered_answers"] == kept and figures["requests"] == len(server.bodies) - asked
        run_stage(stage.name, None, whole)
        never_killed = json.loads((whole / f"data/metrics/{stage.name}.json").read_text())
    assert never_killed["requests"] == kept + figures["requests"] > stage.kill_at
    assert folder_digest(out) == folder_digest(whole / "data" / stage.name)
