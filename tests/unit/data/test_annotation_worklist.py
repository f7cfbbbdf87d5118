"""The queue of a study: its view by definition, each grid read once, and answers about the pictures that were seen."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from PIL import Image
from starlette.testclient import TestClient

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.people import from_answers, instance_digester, votes
from paco_core.data.annotation.queue import AnnotationQueue, QueueView
from paco_core.data.annotation.rankings import build_instances
from paco_core.data.annotation.server import create_annotation_app
from paco_core.data.annotation.store import FINAL, Annotator, AnnotatorAnswer, AnswerStore
from paco_core.data.annotation.votes import RankingTask
from paco_core.data.records.panels import PanelStore

GRIDS = pd.DataFrame(
    [
        (f"g{prompt}-{seed}", f"p{prompt}", seed, "1x2", f"md5-{prompt}-{seed}")
        for prompt in range(4)
        for seed in range(3)
    ],
    columns=["id", "prompt_id", "seed", "layout", "md5"],
)
TABLE = build_instances(GRIDS)


class CountedGrids:
    """Grids of one colour each, which counts how many it decodes."""

    def __init__(self, index: pd.DataFrame = GRIDS) -> None:
        self.index, self.reads = index.set_index("id", drop=False), list[str]()

    def read(self, grid: str) -> Image.Image:
        self.reads.append(grid)
        return Image.new("RGB", (8, 4), self.index.loc[grid, "md5"].replace("md5-", "#0").replace("-", "0000")[:7])


def study(path: Path, grids: CountedGrids, people: int = 2) -> AnnotationQueue:
    store = AnswerStore(path / "answers.sqlite", create=True)
    store.recruit(people)
    panels = PanelStore(grids, cached_grids=3)  # type: ignore[arg-type]
    return AnnotationQueue(store, TABLE, panels, 1)


def rank(queue: AnnotationQueue, annotator: Annotator) -> None:
    view = queue.view(annotator)
    assert view.instance is not None
    queue.answer(annotator, view.instance, view.revision, "ranked", [0, 1], 1.0)


def test_a_grid_is_decoded_once_and_not_again_when_the_study_is_opened_again(tmp_path: Path) -> None:
    queue = study(tmp_path, CountedGrids())
    for annotator in queue.annotators:
        while queue.view(annotator).instance:
            rank(queue, annotator)
    counter = CountedGrids()
    assert study(tmp_path, counter).progress() == queue.progress() and counter.reads == []
    with queue.store._transaction():
        queue.store._db.execute("DELETE FROM panels")  # a store of an earlier version
    assert study(tmp_path, counter).progress() == queue.progress()
    assert sorted(counter.reads) == sorted(GRIDS["id"])
    changed = CountedGrids(GRIDS.replace({"md5": {"md5-0-1": "md5-9-9"}}))
    about = TABLE["reference"].str.startswith("g0-1#") | TABLE["candidates"].map(lambda refs: refs[0] == "g0-1#0")
    num_done = sum(num_done for num_done, _ in study(tmp_path, changed).progress().values())
    assert num_done == len(TABLE) - about.sum() and changed.reads == ["g0-1"]


def test_a_click_reads_the_new_answers_and_votes_decode_a_grid_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = study(tmp_path, CountedGrids(), people=1)
    (annotator,), read, after = queue.annotators, list[int](), queue.store.after

    def counted_after(number: int) -> Any:
        new, newest = after(number)
        read.append(len(new))
        return new, newest

    monkeypatch.setattr(queue.store, "after", counted_after)
    while queue.view(annotator).instance:
        rank(queue, annotator)
    assert sum(read) == len(TABLE) and max(read) == 1
    grids, answers = CountedGrids(), queue.store.latest()
    store = PanelStore(grids, cached_grids=3)  # type: ignore[arg-type]
    random.Random(0).shuffle(answers)
    result = from_answers(answers, dict.fromkeys(TABLE["instance_id"], 2), instance_digester(TABLE, store.panel))
    assert len(result.rankings) == len(TABLE) and sorted(grids.reads) == sorted(GRIDS["id"])


def _recount(queue: AnnotationQueue, annotator: Annotator, order: list[str]) -> tuple[Any, ...]:
    """The view by its definition, from all answers."""
    latest = {answer.instance_id: answer for answer in queue.store.latest(annotator.name)}
    withdrawn = [name for name in order if name in latest and latest[name].verdict == "withdrawn"]
    new = [name for name in order if name not in latest]
    skipped = [name for name, answer in latest.items() if answer.verdict == "skipped"]
    todo = [*withdrawn, *new, *skipped, None, None]
    standing = [answer for answer in latest.values() if answer.verdict != "withdrawn"]
    last = (standing[-1].instance_id, standing[-1].revision) if standing else None
    num_done = sum(answer.verdict in FINAL for answer in latest.values())
    revision = latest[todo[0]].revision + 1 if todo[0] in latest else 1
    return todo[0], todo[1], revision, num_done, len(skipped), num_done + len(todo) - 2, last


def test_the_view_is_what_all_answers_say_after_each_of_them(tmp_path: Path) -> None:
    queue = study(tmp_path, CountedGrids(), people=1)
    other = study(tmp_path, CountedGrids(), people=1)  # another process of the same study
    (annotator,) = queue.annotators
    order, draw = queue._work[annotator.name].upcoming(len(TABLE)), random.Random(1)
    for _ in range(80):
        view = queue.view(annotator)
        last = (view.last.instance, view.last.revision) if view.last else None
        fields = (view.instance, view.ahead, view.revision, view.done, view.skipped, view.total, last)
        assert fields == _recount(queue, annotator, order)
        choice, writer = draw.random(), draw.choice([queue, other])
        if view.last and (choice < 0.3 or view.instance is None):
            writer.undo(annotator, view.last)
        elif view.instance and choice < 0.5:
            writer.answer(annotator, view.instance, view.revision, "skipped", (), 1.0)
        elif view.instance:
            writer.answer(annotator, view.instance, view.revision, draw.choice(["ranked", "cannot_tell"]), [0, 1], 1.0)


TWO = pd.DataFrame(
    [("one", "g1#0", ["g2#0", "g2#1"]), ("two", "g3#0", ["g4#0", "g4#1"])],
    columns=["instance_id", "reference", "candidates"],
)


def panels(**other: str) -> Any:
    """Pictures of one colour each; ``other`` paints grids anew."""

    def panel(ref: str) -> Image.Image:
        grid, number = ref.split("#")
        return Image.new("RGB", (8 + int(number), 8), other.get(grid, "red"))

    return SimpleNamespace(panel=panel, versions=dict)


def small_study(root: Path, **other: str) -> AnnotationQueue:
    store = AnswerStore(root / "answers.sqlite", create=True)
    store.recruit(1)
    return AnnotationQueue(store, TWO, panels(**other), overlap=1)


def rank_all(queue: AnnotationQueue) -> QueueView:
    (annotator,) = queue.annotators
    while (view := queue.view(annotator)).instance is not None:
        queue.answer(annotator, view.instance, view.revision, "ranked", [0, 1], 1.0)
    return view


def counted(root: Path, queue: AnnotationQueue) -> tuple[int, float]:
    answer_file.save_answers(root, queue.store)
    result = votes(RankingTask(TWO, queue.panels, AnnotationsParams(source="people"), root))
    return len(result.rankings), result.counts["stale_answers"]


def test_an_instance_that_was_painted_anew_is_asked_again_and_its_old_answer_not_used(tmp_path: Path) -> None:
    queue = small_study(tmp_path)
    rank_all(queue)
    assert counted(tmp_path, queue) == (2, 0)
    reopened = small_study(tmp_path)
    assert reopened.view(reopened.annotators[0]).done == 2 and counted(tmp_path, reopened) == (2, 0)
    anew = small_study(tmp_path, g2="blue")
    view = anew.view(anew.annotators[0])
    assert (view.instance, view.revision, view.done, view.total) == ("one", 2, 1, 2)
    assert counted(tmp_path, anew) == (1, 1)
    rank_all(anew)
    assert counted(tmp_path, anew) == (2, 0) and len(anew.store.every()) == 3, "nothing that was said is lost"


def test_answers_of_earlier_versions_stand_as_they_were(tmp_path: Path) -> None:
    queue = small_study(tmp_path)
    (annotator,) = queue.annotators
    queue.store.record(
        AnnotatorAnswer(annotator.name, "one", 1, "ranked", (1, 0), (0, 1), 1.0, "2026-01-01T00:00:00+00:00")
    )
    queue.store.close()
    with closing(sqlite3.connect(tmp_path / "answers.sqlite")) as raw:
        raw.execute("DROP TABLE seen")
    anew = small_study(tmp_path, g2="blue")
    assert anew.view(annotator).done == 1 and counted(tmp_path, anew) == (1, 0)
    assert "pictures" not in (tmp_path / answer_file.FILE).read_text(), "its bytes, and what DVC knows of it, stay"


@pytest.mark.parametrize("other", [{}, {"g1": "blue"}])
def test_a_browser_is_shown_the_present_picture(tmp_path: Path, other: dict[str, str]) -> None:
    queue = small_study(tmp_path)
    (annotator,) = queue.annotators
    place = f"/a/{annotator.token}/pictures/one/reference.png"
    with TestClient(create_annotation_app(queue), base_url="http://127.0.0.1") as browser:
        first = browser.get(place)
    assert first.status_code == 200 and "no-cache" in first.headers["cache-control"]
    with TestClient(create_annotation_app(small_study(tmp_path, **other)), base_url="http://127.0.0.1") as browser:
        second = browser.get(place, headers={"If-None-Match": first.headers["etag"]})
    assert second.status_code == (200 if other else 304)
    assert (second.content != first.content) if other else not second.content
