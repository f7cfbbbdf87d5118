"""Reasons written by a vision language model: agreement with the label, rejections, and a stage that is killed."""

from __future__ import annotations

import base64
import io
import json
import shutil
import signal
import subprocess
import sys
import threading
from itertools import cycle
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from PIL import Image

from paco_core.config.params import ReasonsParams
from paco_core.data.pairs.answers import validation_error
from paco_core.data.pairs.reasons import ExplainedPairs, explain_pairs
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import folder_digest
from paco_core.stages import run_stage
from tests.support.chat_server import ChatServer, Raw, completion, text_of
from tests.support.dataset_world import draw_grids, rank_grids, records


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn grids and 24 pairs of their panels."""
    root = tmp_path_factory.mktemp("reasons")
    draw_grids(root / "data", records(6))
    grids = list(PanelStore.below(root / "data/grids").grids.index["id"])
    rows = [
        (f"pair{n}", "p", f"theme {n}", f"{grids[n % len(grids)]}#0", f"{grids[n % len(grids)]}#{1 + n % 3}", label)
        for n, label in zip(range(24), cycle(["Yes", "No", "No"]), strict=False)
    ]
    table = pd.DataFrame(rows, columns=["pair_id", "prompt_id", "theme", "first", "second", "label"])
    table.to_parquet(root / "pairs.parquet")
    return root


def verdict(body: dict[str, Any]) -> str:
    return "No" if "inconsistent" in text_of(body) else "Yes"


def honest(body: dict[str, Any], _number: int) -> Raw:
    return completion({"answer": verdict(body), "reasons": ["The cat is red in both", "Both are  flat.\n"]})


def run(server: ChatServer, world: Path, root: Path, **changes: Any) -> ExplainedPairs:
    params = ReasonsParams(engine="openai", endpoint=server.params(**changes))
    return explain_pairs(pd.read_parquet(world / "pairs.parquet"), PanelStore.below(world / "data/grids"), params, root)


def test_every_pair_gets_its_reasons_and_both_panels_are_seen(world: Path, tmp_path: Path) -> None:
    with ChatServer(honest) as server:
        explained = run(server, world, tmp_path)
        assert len(explained.table) == 24 and explained.failed.empty and explained.figures["requests"] == 24
        for text, label in zip(explained.table["answer"], explained.table["label"], strict=True):
            assert text == f"{label}. The cat is red in both. Both are flat." and validation_error(text, label) is None
        store = PanelStore.below(world / "data/grids")
        contents = {text_of(body).split('"')[1]: body["messages"][1]["content"][1:] for body in server.bodies}
        for row in explained.table.to_dict("records"):
            images = [
                Image.open(io.BytesIO(base64.b64decode(p["image_url"]["url"].split(",")[1])))
                for p in contents[row["theme"]]
            ]
            assert [s.tobytes() for s in images] == [store.panel(row[key]).tobytes() for key in ("first", "second")]
        assert run(server, world, tmp_path).figures["remembered_answers"] == 24 == len(server.bodies)


def test_answers_at_odds_with_the_label_are_asked_again_then_counted(world: Path, tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Raw:
        theme, is_retry = text_of(body).split('"')[1], len(body["messages"]) > 2
        other = {"Yes": "No", "No": "Yes"}[verdict(body)]
        if theme == "theme 0" or (theme == "theme 1" and not is_retry):
            return completion({"answer": other, "reasons": ["It is so."]})
        if theme == "theme 2":
            return completion({"answer": verdict(body), "reasons": ["a", "b", "c", "d"]})
        if theme == "theme 3":
            return completion({"answer": verdict(body), "reasons": []})
        if theme == "theme 4":
            return completion("Well, I think so.")
        return honest(body, number)

    with ChatServer(answer) as server:
        explained = run(server, world, tmp_path)
    assert explained.causes == {"answer_contradicts_label": 1, "not_one_to_three_reasons": 2, "no_json": 1}
    assert set(explained.failed["pair_id"]) == {"pair0", "pair2", "pair3", "pair4"} and len(explained.table) == 20
    assert explained.figures["rejected.answer_contradicts_label"] == 3, "twice for pair 0, once for pair 1"
    assert len(server.bodies) == 24 + 5


DEADLINE_S = 240
IN_FLIGHT = 4
KILL_AT = 12


@pytest.mark.slow
def test_a_killed_stage_asks_for_the_rest_only_and_its_outs_are_the_same(
    project: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    draw_grids(project / "data", records(6))
    rank_grids(project / "data")
    run_stage("pairs", None, project)
    reached, go_on = threading.Event(), threading.Event()

    def delayed_answer(body: dict[str, Any], number: int) -> Raw | None:
        if number >= KILL_AT and not go_on.is_set():
            if number == KILL_AT + IN_FLIGHT - 1:  # all that the stage asks before the first of them is answered
                reached.set()
            go_on.wait(DEADLINE_S)
            return None  # to nobody: the stage is gone
        return honest(body, number)

    def metrics(root: Path) -> dict[str, Any]:
        return dict(json.loads((root / "data/metrics/cot_labels.json").read_text()))

    out, journal = project / "data/cot_labels", project / ".paco/cot_labels/journal.jsonl"
    with ChatServer(delayed_answer) as server:
        tree = yaml.safe_load((project / "params.yaml").read_text())
        tree["cot_labels"] |= {"engine": "openai", "endpoint": server.params().model_dump()}
        (project / "params.yaml").write_text(yaml.safe_dump(tree))
        uninterrupted = tmp_path_factory.mktemp("whole") / "project"
        shutil.copytree(project, uninterrupted)
        with subprocess.Popen([sys.executable, "-m", "paco_core", "run", "cot_labels"], cwd=project) as process:
            assert reached.wait(DEADLINE_S), "the stage asked too little"
            process.kill()
        assert process.returncode == -signal.SIGKILL and not out.exists()
        go_on.set()
        requests, stored = len(server.bodies), len(journal.read_bytes().splitlines())
        assert KILL_AT - IN_FLIGHT <= stored <= KILL_AT, "as many as were answered, but those on their way"
        run_stage("cot_labels", None, project)
        figures = metrics(project)
        assert figures["remembered_answers"] == stored and figures["requests"] == len(server.bodies) - requests
        run_stage("cot_labels", None, uninterrupted)
    assert metrics(uninterrupted)["requests"] == stored + figures["requests"] > KILL_AT
    assert folder_digest(out) == folder_digest(uninterrupted / "data/cot_labels")
