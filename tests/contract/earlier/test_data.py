"""Data and answers of an earlier version: DVC's cache and lock, records of runs, answers, results."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from dvc_project.lockfile import Lock
from paco_core.benchmarks.tables import read_tables
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.records.records import read_prompts
from paco_core.grpo.checks import collapse, read_training_log
from paco_core.runtime.provenance.chain import of_path
from paco_core.runtime.provenance.records import load_runs
from paco_core.runtime.versions import folder_of_version

WRITTEN = Path(__file__).parent / "written"


@pytest.fixture
def recorded(project: Path) -> Path:
    """The present graph over the lock, the cache and the record of a run that an earlier version left."""
    for name, place in (("dvc.lock.txt", "dvc.lock"), ("run.json", "data/runs/prompts.json")):
        (project / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(WRITTEN / "project" / name, project / place)
    shutil.copytree(WRITTEN / "project/cache", project / ".dvc/cache/files/md5")
    return project


def test_an_earlier_version_of_data_is_laid_out_from_the_cache(recorded: Path) -> None:
    md5 = Lock.read(recorded).md5_of("data/prompts")
    assert md5 == "3ddd0a59ce387f8e2b7217230489107c.dir"
    records = read_prompts(file := folder_of_version(recorded, "data/prompts", md5) / "prompts.jsonl")
    stored = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(stored) == 6
    for record, row in zip(records, stored, strict=True):
        assert record.model_dump(mode="json").items() >= row.items()


def test_what_made_it_and_by_which_run_are_read_from_the_earlier_lock(recorded: Path) -> None:
    lock = Lock.read(recorded)
    (link,) = of_path("data/prompts", lock).links
    assert link.params["params.yaml"]["prompts"]["count"] == 6
    run = load_runs(recorded, lock)["prompts"]
    assert (run.profile, run.mlflow_run) == ("smoke", "dc268fd11c974377a64fefb4cae59f62")


def test_answers_of_an_earlier_store_and_file_count(tmp_path: Path) -> None:
    place = tmp_path / "answers/people.sqlite"
    place.parent.mkdir()
    with closing(sqlite3.connect(place)) as database:
        database.executescript((WRITTEN / "people.sql").read_text())
    (tmp_path / answer_file.FILE).parent.mkdir(parents=True)
    shutil.copyfile(WRITTEN / "answers.jsonl", tmp_path / answer_file.FILE)
    with AnswerStore(place) as store:
        stored = {(a.annotator, a.instance_id): a.ranking for a in store.every()}
        assert stored == {
            ("annotator-1", "1da267508f54f1b5"): (1, 3, 0, 2),
            ("annotator-2", "b861db72bdaac67a"): (0, 2, 3, 1),
            ("annotator-2", "a10024f07cf6b5df"): (3, 1, 0, 2),
        }
        assert [annotator.name for annotator in store.annotators()] == ["annotator-1", "annotator-2"]
        assert set(answer_file.read_answers(tmp_path)) == set(store.every())
        assert answer_file.save_answers(tmp_path, store) == 3
    assert (tmp_path / answer_file.FILE).read_bytes() == (WRITTEN / "answers.jsonl").read_bytes()


def test_an_earlier_table_and_log_are_read(tmp_path: Path) -> None:
    stored = json.loads((WRITTEN / "results/tables.json").read_text())
    shutil.copyfile(WRITTEN / "results/tables.json", tmp_path / "tables.json")
    assert [[list(row) for row in table.rows] for table in read_tables(tmp_path)] == [t["rows"] for t in stored]
    log = read_training_log(WRITTEN / "results/training_log.csv")
    metrics = json.loads((WRITTEN / "results/policies-flux_t2is.json").read_text())
    assert [log[0]["eval/64/consistency"], log[-1]["eval/64/consistency"]] == [
        metrics["64.consistency.before"],
        metrics["64.consistency.after"],
    ]
    assert collapse(log, [64, 128]).passed
