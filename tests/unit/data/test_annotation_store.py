"""The store of people's answers, who is given what, and what an annotator sees."""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from itertools import combinations
from pathlib import Path
from unittest.mock import Mock

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paco_core.config.params import AnnotationsParams, load
from paco_core.data import checks
from paco_core.data.annotation import answer_file, assignment
from paco_core.data.annotation.queue import Last
from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore, NotStored, StaleAnswer
from paco_core.io.files import DataError
from paco_core.runtime.context import StageContext
from paco_core.stages import annotations
from tests.support.annotation_world import make_world, open_study
from tests.support.dataset_world import quick


def ranked(revision: int = 1, ranking: tuple[int, ...] = (1, 0), **changes: object) -> AnnotatorAnswer:
    values = {"annotator": "annotator-1", "instance_id": "i", "revision": revision, "verdict": "ranked",
             "ranking": ranking, "shown": (0, 1), "seconds": 2.0}  # fmt: skip
    return AnnotatorAnswer(**{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def store(tmp_path: Path) -> AnswerStore:
    answer_store = AnswerStore(tmp_path / "answers.sqlite", create=True)
    answer_store.recruit(2)
    return answer_store


def test_an_answer_is_stored_once_and_a_change_is_a_further_revision(store: AnswerStore) -> None:
    assert store.record(ranked())
    assert not store.record(ranked())  # the page asks again when the confirmation got lost
    with pytest.raises(StaleAnswer, match="revision 1"):
        store.record(ranked(ranking=(0, 1)))
    with pytest.raises(StaleAnswer, match="revision 2"):
        store.record(ranked(revision=3))
    assert store.record(ranked(2, None, verdict="withdrawn")) and store.record(ranked(3, (0, 1)))
    assert [answer.ranking for answer in store.every()] == [(1, 0), None, (0, 1)]
    assert [answer.revision for answer in store.latest()] == [3]
    reopened = AnswerStore(store.path)
    assert reopened.latest() == store.latest() and reopened.annotators() == store.annotators()


def test_the_database_itself_refuses_to_forget(store: AnswerStore) -> None:
    store.record(ranked())
    raw = sqlite3.connect(store.path)
    for statement in ("UPDATE answers SET ranking = '[0, 1]'", "DELETE FROM answers"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            raw.execute(statement)
    with pytest.raises(sqlite3.IntegrityError, match="UNIQUE"):
        raw.execute("INSERT INTO answers SELECT 99, annotator, instance_id, revision, verdict, ranking, shown, "
                    "seconds, at FROM answers")  # fmt: skip
    assert raw.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_an_answer_lies_in_the_file_itself_once_it_is_confirmed(store: AnswerStore, tmp_path: Path) -> None:
    """Not only in the write-ahead log: who copies the file has them all."""
    store.record(ranked())
    copy = tmp_path / "copy" / "answers.sqlite"
    copy.parent.mkdir()
    copy.write_bytes(store.path.read_bytes())
    assert len(AnswerStore(copy).latest()) == 1


def test_a_write_that_fails_stores_nothing_and_says_so(store: AnswerStore) -> None:
    with pytest.raises(NotStored, match="FOREIGN KEY"):
        store.record(ranked(annotator="nobody"))
    page = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {page}")  # a full disk, as SQLite sees it
    with pytest.raises(NotStored, match="full"):
        for n in range(10_000):
            store.record(ranked(instance_id=f"{n:0500d}"))
    stored = len(store.latest())
    store._db.execute("PRAGMA max_page_count = 100000")
    assert store.record(ranked(instance_id=f"{stored:0500d}")) and len(store.latest()) == stored + 1


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.sqlite"):
        AnswerStore(tmp_path / "none.sqlite")
    (tmp_path / "text").write_text("instance,ranking\n" * 100)
    sqlite3.connect(tmp_path / "other").execute("CREATE TABLE answers (x)")
    AnswerStore(tmp_path / "newer", create=True)._db.execute("PRAGMA user_version = 2")
    for name in ("text", "other", "newer"):
        with pytest.raises(DataError, match=name):
            AnswerStore(tmp_path / name, create=True)


def test_annotators_come_and_go(store: AnswerStore) -> None:
    tokens = {annotator.token for annotator in store.annotators()}
    store.recruit(1)
    assert len(store.annotators()) == 2
    store.retire("annotator-1")
    store.recruit(2)
    assert [(annotator.name, annotator.active) for annotator in store.annotators()] == [
        ("annotator-1", False), ("annotator-2", True), ("annotator-3", True)
    ]  # fmt: skip
    assert tokens < {annotator.token for annotator in store.annotators()}
    with pytest.raises(DataError, match="bob"):
        store.retire("bob")


@quick
@given(st.integers(1, 60), st.integers(1, 7), st.data())
def test_everybody_works_the_same_and_each_instance_has_its_overlap(
    count: int, people: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(1, people))
    names, ids = [f"a{n}" for n in range(people)], [f"i{n}" for n in range(count)]
    plan = assignment.assign(ids, names, overlap)
    assert Counter(i for mine in plan.values() for i in mine) == dict.fromkeys(ids, overlap)
    loads = [len(mine) for mine in plan.values()]
    assert max(loads) - min(loads) <= 1
    if overlap == 2 and people > 2 and count >= 40:
        shared = [len(plan[a] & plan[b]) for a, b in combinations(names, 2)]
        assert min(shared) > 0 and max(shared) - min(shared) <= 2
    assert assignment.assign(ids[::-1], names, overlap) == plan


def test_a_new_annotator_changes_only_what_is_still_to_do() -> None:
    ids = [f"i{n}" for n in range(40)]
    before = assignment.assign(ids, ["a", "b"], 1)
    answered = {i: ["a"] for i in sorted(before["a"])[:10]} | {i: ["b"] for i in sorted(before["b"])[:5]}
    after = assignment.assign(ids, ["a", "b", "c"], 1, answered)
    assert set(answered) & after["c"] == set()
    assert all(i in after[names[0]] for i, names in answered.items())
    assert sum(map(len, after.values())) == 40 and after["c"]
    retired = assignment.assign(ids, ["b", "c"], 1, answered)
    assert sum(map(len, retired.values())) == 40 - 10  # what "a" answered stands
    with pytest.raises(DataError, match="overlap 3"):
        assignment.assign(ids, ["a", "b"], 3)


def test_orders_are_random_by_annotator_and_never_change() -> None:
    ids = [f"i{n}" for n in range(200)]
    assert assignment.queue("x", ids) == assignment.queue("x", ids[::-1]) != assignment.queue("y", ids)
    first = Counter(assignment.candidate_order("x", i, 4)[0] for i in ids)
    assert set(first) == {0, 1, 2, 3} and min(first.values()) > 25
    assert any(assignment.candidate_order("x", i, 4) != assignment.candidate_order("y", i, 4) for i in ids)
    assert set(assignment.sample(ids, 20)) < set(assignment.sample(ids, 50))
    assert len(assignment.sample(ids, None)) == 200


def test_the_page_s_order_of_things(tmp_path: Path) -> None:
    make_world(tmp_path)
    queue = open_study(tmp_path, count=3)
    (annotator,) = queue.annotators
    first = queue.view(annotator)
    assert first.instance is not None and first.candidates == 4
    queue.answer(annotator, first.instance, 1, "skipped", (), 1.0)
    second = queue.view(annotator)
    assert second.instance == first.ahead
    queue.answer(annotator, second.instance, 1, "ranked", (2, 0, 3, 1), 3.0)
    order = assignment.candidate_order(annotator.token, second.instance, 4)
    assert queue.store.latest()[-1].ranking == (order[2], order[0], order[3], order[1])
    last = queue.view(annotator).last
    assert last == Last(second.instance, 1)
    queue.undo(annotator, last)
    queue.undo(annotator, last)  # the confirmation got lost: one answer is taken back, not two
    back = queue.view(annotator)
    assert (back.instance, back.revision, back.ranking, back.done) == (second.instance, 3, (2, 0, 3, 1), 0)
    queue.answer(annotator, back.instance, 3, "cannot_tell", (), 1.0)
    with pytest.raises(StaleAnswer):
        queue.undo(annotator, Last(first.instance, 1))
    third = queue.view(annotator)
    assert third.instance is not None and not third.skipped_before
    queue.answer(annotator, third.instance, 1, "ranked", (0, 1, 2, 3), 1.0)
    skipped = queue.view(annotator)
    assert skipped.instance == first.instance and skipped.skipped_before and skipped.revision == 2
    queue.answer(annotator, skipped.instance, 2, "ranked", (0, 1, 2, 3), 1.0)
    end = queue.view(annotator)
    assert end.instance is None and end.done == end.total == 3 and end.last is not None
    for instance, wrong in ((first.instance, (0, 0, 1, 2)), (first.instance, (0, 1, 2)), ("x", (0, 1, 2, 3))):
        with pytest.raises(DataError):
            queue.answer(annotator, instance, 3, "ranked", wrong, 1.0)
    restarted = open_study(tmp_path, count=3)
    assert restarted.view(restarted.annotators[0]) == end


def run_stage(root: Path, exclude: tuple[str, ...] = ()) -> None:
    """The stage with the source ``people``; its figures go to no MLflow."""
    defaults = load(root / "params.yaml")
    params = defaults.model_copy(update={"annotations": AnnotationsParams(source="people", exclude=exclude)})
    context = StageContext("annotations", None, root, params, Mock(), None)
    annotations.run(context)
    assert context.tracker.metrics.call_args.args[0]["annotations/annotators"] > 0


def test_the_stage_adjudicates_reports_and_names_the_doubtful(tmp_path: Path) -> None:
    """From answers on the page to the files that the next stage reads."""
    project = tmp_path
    table = make_world(project)
    queue = open_study(project, annotators=3, overlap=3, count=30)
    undecided = queue.chosen[0]
    for annotator in queue.annotators:
        while (view := queue.view(annotator)).instance is not None:
            order = assignment.candidate_order(annotator.token, view.instance, 4)
            if view.instance == undecided and annotator.name != "annotator-1":
                queue.answer(annotator, view.instance, 1, "cannot_tell", (), 1.0)
            elif annotator.name == "annotator-3":
                queue.answer(annotator, view.instance, 1, "ranked", (0, 1, 2, 3), 0.5)
            else:
                queue.answer(annotator, view.instance, 1, "ranked", [order.index(c) for c in (2, 0, 1, 3)], 5.0)
    answer_file.save_answers(project, queue.store)
    run_stage(project)
    out = project / "data/annotations"
    rankings, votes = pd.read_parquet(out / "rankings.parquet"), pd.read_parquet(out / "votes.parquet")
    assert len(rankings) == 29 and undecided not in set(rankings["instance_id"]) and len(votes) == 30 * 3 - 2
    assert set(rankings["annotator"]) == {"adjudicated"}
    metrics = json.loads((project / "data/metrics/annotations.json").read_text())
    assert metrics["unranked_instances"] == len(table) - 29 and metrics["cannot_tell"] == 2
    assert metrics["doubtful_annotators"] == 1 and 0 < metrics["kendall_w"] < 1 and metrics["annotators"] == 3
    report = checks.annotators_agree(project / "data")
    assert not report.passed and report.severity == "WARN" and "annotator-3 (" in report.description
    assert "annotator-1 (" not in report.description
    partial = checks.annotations_order_all_candidates(project / "data")
    assert not partial.passed and partial.severity == "WARN" and "19 of 48" in partial.description

    run_stage(project, ("annotator-3",))
    metrics = json.loads((project / "data/metrics/annotations.json").read_text())
    assert metrics["doubtful_annotators"] == 0 and metrics["kendall_w"] == 1 and metrics["excluded_votes"] == 29
    assert {tuple(order) for order in pd.read_parquet(out / "rankings.parquet")["ranking"]} == {(2, 0, 1, 3)}
    assert checks.annotators_agree(project / "data").passed
    with pytest.raises(DataError, match="bob"):
        run_stage(project, ("bob",))
