"""Two rounds through the real DVC, the second of which waits for people."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest

from dvc_project.lockfile import Lock
from paco_core.benchmarks.tables import read_tables
from paco_core.cli.annotate import AnnotateOptions, _store, open_queue
from paco_core.config import profiles
from paco_core.data.annotation import answer_file
from tests.e2e.conftest import run_dvc

pytestmark = pytest.mark.thorough
PROFILE = """
extends: smoke
profile: small_rounds
rounds:
  ask: {count: 12, choose: uncertain}
  items:
    "1": {after: data, epochs: 1}
    "2": {after: data/rounds/1, epochs: 1, annotations: people}
"""


def test_two_rounds_chain_wait_for_people_and_go_on(smoke: Path, tmp_path: Path) -> None:
    root = tmp_path / "paco"
    shutil.copytree(smoke, root, symlinks=True)
    entries = Lock.read(root).entries.items()
    # Rounds add their stages' digests to the code's; the report, which theirs goes on from, names the profile.
    before = {name: entry.outs for name, entry in entries if name not in ("code", "report")}
    (root / "profiles/small_rounds.yaml").write_text(PROFILE)
    profiles.use(root, "small_rounds")

    stopped = run_dvc(root, "repro", "round_t2is@2")
    assert stopped.returncode != 0
    assert "round 2 waits for people: 0 of 12 rankings are answered" in stopped.stderr
    assert not (root / "data/rounds/2/annotations").exists()

    with _store(root, create=True) as store:
        queue = open_queue(root, store, AnnotateOptions(round="2"))
        while (view := queue.view(queue.annotators[0])).instance:
            queue.answer(queue.annotators[0], view.instance, view.revision, "ranked", range(view.candidates), 1.0)
        answer_file.save_answers(root, store)
    result = run_dvc(root, "repro", "round_report@2")
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]

    first, second = (pd.read_parquet(root / f"data/rounds/{n}/rankings/instances.parquet") for n in (1, 2))
    assert list(second["asked"].iloc[-12:].value_counts().sort_index()) == [2, 10]  # random, uncertain
    assert len(second) == len(first) + 12
    votes = pd.read_parquet(root / "data/rounds/2/annotations/votes.parquet")
    assert votes["annotator"].value_counts()["annotator-1"] == 12
    lock = Lock.read(root).entries
    assert {name: lock[name].outs for name in before} == before, "the graph itself is what it was"
    chain = lock["round_policies@2"].inputs.deps
    assert (
        chain["data/rounds/1/policies/flux_t2is"] == lock["round_policies@1"].outs["data/rounds/1/policies/flux_t2is"]
    )
    card = json.loads((root / "data/metrics/round_t2is-2.json").read_text())
    assert any(name.endswith("gold_consistency.change") for name in card)
    tables = read_tables(root / "data/rounds/2/report")
    assert [[row[0] for row in table.rows][:1] for table in tables] == [["1"]] * 3, "the round before stands on top"
    assert {row[0] for table in tables for row in table.rows} == {"1", "2"}
    assert "Rounds up to 2" in (root / "data/rounds/2/report/index.html").read_text()
