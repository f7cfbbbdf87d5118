"""A study of many answers: its queue reads each grid and each answer once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.data.annotation.people import from_answers, present
from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.rankings import instances
from paco_core.data.annotation.store import FINAL, Annotator, AnswerStore
from paco_core.data.records.panels import PanelStore

GRIDS = pd.DataFrame(
    [
        (f"g{prompt}-{seed}", f"p{prompt}", seed, "1x2", f"md5-{prompt}-{seed}")
        for prompt in range(4)
        for seed in range(3)
    ],
    columns=["id", "prompt_id", "seed", "layout", "md5"],
)
TABLE = instances(GRIDS)


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


def rank(queue: AnnotationQueue, who: Annotator) -> None:
    view = queue.view(who)
    assert view.instance is not None
    queue.answer(who, view.instance, view.revision, "ranked", [0, 1], 1.0)


def test_a_grid_is_decoded_once_and_not_again_when_the_study_is_opened_again(tmp_path: Path) -> None:
    queue = study(tmp_path, CountedGrids())
    for who in queue.annotators:
        while queue.view(who).instance:
            rank(queue, who)
    again = CountedGrids()
    assert study(tmp_path, again).progress() == queue.progress() and again.reads == []
    with queue.store._transaction():
        queue.store._db.execute("DELETE FROM panels")  # a store of an earlier version
    assert study(tmp_path, again).progress() == queue.progress()
    assert sorted(again.reads) == sorted(GRIDS["id"])
    changed = CountedGrids(GRIDS.replace({"md5": {"md5-0-1": "md5-9-9"}}))
    about = TABLE["reference"].str.startswith("g0-1#") | TABLE["candidates"].map(lambda refs: refs[0] == "g0-1#0")
    done = sum(done for done, _ in study(tmp_path, changed).progress().values())
    assert done == len(TABLE) - about.sum() and changed.reads == ["g0-1"]


def test_votes_decode_a_grid_once_whatever_the_order_of_answers(tmp_path: Path) -> None:
    queue = study(tmp_path, CountedGrids(), people=1)
    (who,) = queue.annotators
    while queue.view(who).instance:
        rank(queue, who)
    grids = CountedGrids()
    panels = PanelStore(grids, cached_grids=3)  # type: ignore[arg-type]
    answers = queue.store.latest()
    random.Random(0).shuffle(answers)
    votes = from_answers(answers, dict.fromkeys(TABLE["instance_id"], 2), present(TABLE, panels.panel))
    assert len(votes.rankings) == len(TABLE) and sorted(grids.reads) == sorted(GRIDS["id"])


def test_a_click_reads_the_new_answers_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = study(tmp_path, CountedGrids(), people=1)
    (who,) = queue.annotators
    read: list[int] = []
    after = queue.store.after

    def counted(number: int) -> Any:
        answers, newest = after(number)
        read.append(len(answers))
        return answers, newest

    monkeypatch.setattr(queue.store, "after", counted)
    for _ in range(5):
        rank(queue, who)
    queue.view(who)
    assert read == [0, 1, 1, 1, 1, 1]


def _recount(queue: AnnotationQueue, who: Annotator, order: list[str]) -> tuple[Any, ...]:
    """The view by its definition, from all answers."""
    latest = {answer.instance_id: answer for answer in queue.store.latest(who.name)}
    withdrawn = [name for name in order if name in latest and latest[name].verdict == "withdrawn"]
    new = [name for name in order if name not in latest]
    skipped = [name for name, answer in latest.items() if answer.verdict == "skipped"]
    todo = [*withdrawn, *new, *skipped, None, None]
    standing = [answer for answer in latest.values() if answer.verdict != "withdrawn"]
    last = (standing[-1].instance_id, standing[-1].revision) if standing else None
    done = sum(answer.verdict in FINAL for answer in latest.values())
    revision = latest[todo[0]].revision + 1 if todo[0] in latest else 1
    return todo[0], todo[1], revision, done, len(skipped), done + len(todo) - 2, last


def test_the_view_is_what_all_answers_say_after_each_of_them(tmp_path: Path) -> None:
    queue = study(tmp_path, CountedGrids(), people=1)
    other = study(tmp_path, CountedGrids(), people=1)  # another process of the same study
    (who,) = queue.annotators
    order, draw = queue._work[who.name].upcoming(len(TABLE)), random.Random(1)
    for _ in range(80):
        view = queue.view(who)
        last = (view.last.instance, view.last.revision) if view.last else None
        shown = (view.instance, view.ahead, view.revision, view.done, view.skipped, view.total, last)
        assert shown == _recount(queue, who, order)
        choice, writer = draw.random(), draw.choice([queue, other])
        if view.last and (choice < 0.3 or view.instance is None):
            writer.undo(who, view.last)
        elif view.instance and choice < 0.5:
            writer.answer(who, view.instance, view.revision, "skipped", (), 1.0)
        elif view.instance:
            writer.answer(who, view.instance, view.revision, draw.choice(["ranked", "cannot_tell"]), [0, 1], 1.0)
