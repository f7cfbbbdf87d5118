"""An answer is about the pictures that were seen: not about others that were painted under the same ids."""

from __future__ import annotations

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
from paco_core.data.annotation.people import votes
from paco_core.data.annotation.queue import AnnotationQueue, QueueView
from paco_core.data.annotation.server import create_app
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore
from paco_core.data.annotation.votes import RankingTask

TABLE = pd.DataFrame(
    [("one", "g1#0", ["g2#0", "g2#1"]), ("two", "g3#0", ["g4#0", "g4#1"])],
    columns=["instance_id", "reference", "candidates"],
)


def panels(**other: str) -> Any:
    """Pictures of one colour each; ``other`` paints grids anew."""

    def panel(ref: str) -> Image.Image:
        grid, number = ref.split("#")
        return Image.new("RGB", (8 + int(number), 8), other.get(grid, "red"))

    return SimpleNamespace(panel=panel, versions=dict)


def study(root: Path, **other: str) -> AnnotationQueue:
    store = AnswerStore(root / "answers.sqlite", create=True)
    store.recruit(1)
    return AnnotationQueue(store, TABLE, panels(**other), overlap=1)


def rank_all(queue: AnnotationQueue) -> QueueView:
    (who,) = queue.annotators
    while (view := queue.view(who)).instance is not None:
        queue.answer(who, view.instance, view.revision, "ranked", [0, 1], 1.0)
    return view


def counted(root: Path, queue: AnnotationQueue) -> tuple[int, float]:
    answer_file.save(root, queue.store)
    found = votes(RankingTask(TABLE, queue.panels, AnnotationsParams(source="people"), root))
    return len(found.rankings), found.counts["stale_answers"]


def test_an_instance_that_was_painted_anew_is_asked_again_and_its_old_answer_not_used(tmp_path: Path) -> None:
    queue = study(tmp_path)
    rank_all(queue)
    assert counted(tmp_path, queue) == (2, 0)
    same = study(tmp_path)
    assert same.view(same.annotators[0]).done == 2 and counted(tmp_path, same) == (2, 0)
    anew = study(tmp_path, g2="blue")
    view = anew.view(anew.annotators[0])
    assert (view.instance, view.revision, view.done, view.total) == ("one", 2, 1, 2)
    assert counted(tmp_path, anew) == (1, 1)
    rank_all(anew)
    assert counted(tmp_path, anew) == (2, 0) and len(anew.store.every()) == 3, "nothing that was said is lost"


def test_answers_of_earlier_versions_stand_as_they_were(tmp_path: Path) -> None:
    queue = study(tmp_path)
    (who,) = queue.annotators
    queue.store.record(AnnotatorAnswer(who.name, "one", 1, "ranked", (1, 0), (0, 1), 1.0, "2026-01-01T00:00:00+00:00"))
    queue.store.close()
    with closing(sqlite3.connect(tmp_path / "answers.sqlite")) as raw:
        raw.execute("DROP TABLE seen")
    anew = study(tmp_path, g2="blue")
    assert anew.view(who).done == 1 and counted(tmp_path, anew) == (1, 0)
    assert "pictures" not in (tmp_path / answer_file.FILE).read_text(), "its bytes, and what DVC knows of it, stay"


def test_a_picture_that_cannot_be_read_can_be_skipped(tmp_path: Path) -> None:
    from paco_core.io.files import DataError

    def broken(_ref: str) -> Image.Image:
        raise DataError("damaged")

    store = AnswerStore(tmp_path / "answers.sqlite", create=True)
    store.recruit(1)
    broken_panels: Any = SimpleNamespace(panel=broken, versions=dict)
    queue = AnnotationQueue(store, TABLE, broken_panels, overlap=1)
    (who,) = queue.annotators
    queue.answer(who, "one", 1, "skipped", (), 1.0)
    assert queue.store.latest()[0].pictures == ""


@pytest.mark.parametrize("other", [{}, {"g1": "blue"}])
def test_a_browser_is_shown_the_present_picture(tmp_path: Path, other: dict[str, str]) -> None:
    queue = study(tmp_path)
    (who,) = queue.annotators
    place = f"/a/{who.token}/pictures/one/reference.png"
    with TestClient(create_app(queue), base_url="http://127.0.0.1") as browser:
        first = browser.get(place)
    assert first.status_code == 200 and "no-cache" in first.headers["cache-control"]
    with TestClient(create_app(study(tmp_path, **other)), base_url="http://127.0.0.1") as browser:
        again = browser.get(place, headers={"If-None-Match": first.headers["etag"]})
    assert again.status_code == (200 if other else 304)
    assert (again.content != first.content) if other else not again.content
