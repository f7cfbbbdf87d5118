"""A round waits for people, asks for its own rankings alone, and goes on when all are answered."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.config.params_rounds import RoundsParams
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.people import refuse_unanswered
from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.rankings import instances
from paco_core.data.annotation.rounds import ready, task_of_round
from paco_core.data.annotation.store import AnswerStore
from paco_core.io.files import DataError
from paco_core.io.shards import GRID_COLUMNS, ShardReader, encode_png, write_shard


@pytest.fixture
def params() -> Any:
    rounds = RoundsParams.model_validate({"items": {"1": {"after": "data", "annotations": "people"}}})
    return SimpleNamespace(rounds=rounds, annotations=SimpleNamespace(source="recogniser"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two grids of one prompt, and two more that round 1 painted."""
    for shard, place, shade in (("shard-0", "data", 0), ("round-1", "data/rounds/1", 99)):
        rows = [{"id": f"{shard}{n}", "prompt_id": "p", "seed": n, "layout": "1x2"} for n in (0, 1)]
        images = {row["id"]: encode_png(Image.new("RGB", (16, 8), (shade, row["seed"], 7))) for row in rows}
        write_shard(tmp_path / place / "grids" / shard, rows, images, columns=GRID_COLUMNS)
        index = ShardReader.below(tmp_path / place / "grids", require=GRID_COLUMNS).index
        (tmp_path / place / "rankings").mkdir()
        earlier = [] if place == "data" else [pd.read_parquet(tmp_path / "data/rankings/instances.parquet")]
        table = pd.concat([*earlier, instances(index)], ignore_index=True)
        table.to_parquet(tmp_path / place / "rankings/instances.parquet", index=False)
    return tmp_path


def answer(root: Path, task: Any, count: int) -> None:
    with AnswerStore(root / "answers/people.sqlite", create=True) as store:
        store.recruit(1)
        queue = AnnotationQueue(store, task.instances, task.panels, 1)
        for _ in range(count):
            view = queue.view(queue.annotators[0])
            assert view.instance is not None
            queue.answer(queue.annotators[0], view.instance, view.revision, "ranked", [0, 1], 1.0)
        answer_file.save(root, store)


def test_only_what_the_round_adds_is_asked_for(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    assert len(task.instances) == 4
    assert task.instances["reference"].str.startswith("round-1").all()


def test_it_waits_and_says_for_what_until_all_is_answered(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    with pytest.raises(DataError, match="waits for people: 0 of 4 .* --round 1` .* `dvc repro x@1`"):
        refuse_unanswered(task, "1", "x@1")
    answer(root, task, 3)
    with pytest.raises(DataError, match="3 of 4 rankings are answered"):
        refuse_unanswered(task, "1", "x@1")
    assert ready(root, params) == []
    answer(root, task, 1)
    refuse_unanswered(task, "1", "x@1")
    assert ready(root, params) == ["1"]
    (root / "data/rounds/1/annotations").mkdir()
    assert ready(root, params) == [], "it has gone on"


def test_answers_of_another_study_do_not_count_on_the_page(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    first = task.instances.iloc[:1]
    answer(root, SimpleNamespace(instances=first, panels=task.panels), 1)
    with AnswerStore(root / "answers/people.sqlite") as store:
        queue = AnnotationQueue(store, task.instances.iloc[1:], task.panels, 1)
        assert queue.progress() == {"annotator-1": (0, 3)}
        assert queue.view(queue.annotators[0]).last is None


def test_a_round_that_is_not_there_is_refused(root: Path, params: Any) -> None:
    with pytest.raises(DataError, match=r"round 3: not in rounds.items; there are: 1"):
        task_of_round(root, params, "3")
    (root / "data/rounds/1/rankings/instances.parquet").unlink()
    with pytest.raises(DataError, match="run `dvc repro round_rankings@1`"):
        task_of_round(root, params, "1")
