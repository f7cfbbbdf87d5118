"""The annotation server under inputs that no page of ours sends: each is answered, and no answer is lost or made up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from fastapi import FastAPI
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.server import AnswerBody, UndoBody, create_app
from tests.faults import hostile
from tests.faults.test_hostile_requests import case_reply
from tests.faults.verdicts import Ledger
from tests.support.annotation_world import body_for, make_world, open_study
from tests.support.serving_fakes import listening

Breach = hostile.Breach


@pytest.fixture(scope="module")
def queue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AnnotationQueue]:
    root = tmp_path_factory.mktemp("study")
    make_world(root)
    made = open_study(root, annotators=2, overlap=1)
    yield made
    made.store.close()


@pytest.fixture(scope="module")
def url(queue: AnnotationQueue) -> Iterator[str]:
    with listening(create_app(queue)) as found:
        yield found


def page(queue: AnnotationQueue, number: int = 0) -> str:
    return f"/a/{queue.annotators[number].token}"


def view(url: str, queue: AnnotationQueue, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = hostile.send(url, "GET", f"{page(queue, number)}/view").json()
    return found


def unsound(queue: AnnotationQueue, before: list[Any]) -> Breach:
    """Whether what was stored before is still there, and what came is a possible answer to one's own instance."""
    stored = queue.store.every()
    if stored[: len(before)] != before:
        return "lost", "an answer that was stored before is gone or another"
    keys = [(answer.annotator, answer.instance_id, answer.revision) for answer in stored]
    if len(set(keys)) != len(keys):
        return "doubled", "an answer is stored twice"
    for answer in stored[len(before) :]:
        whole = answer.ranking is None or sorted(answer.ranking) == list(range(4))
        if not whole or answer.instance_id not in queue.instances or answer.seconds < 0:
            return "wrong", f"stored {answer}"
    return None


def test_answers(queue: AnnotationQueue, url: str, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    with ledger.row("fuzzed body", "annotation server", hostile=True) as row:
        for path, good in (
            ("answers", body_for(view(url, queue), [0, 1, 2, 3])),
            ("undo", {"instance": "x", "revision": 1}),
        ):

            def act(body: bytes, path: str = path) -> None:
                before = queue.store.every()
                reply = hostile.send(url, "POST", f"{page(queue)}/{path}", body)
                row.judge(f"{path} {body[:80]!r}", hostile.answered(reply), unsound(queue, before))

            hostile.each(hostile.bodies(good), tries(250, 12), act)


def test_paths(queue: AnnotationQueue, url: str, ledger: Ledger, tries: Callable[[int, int], int]) -> None:
    instance = next(iter(queue.instances))
    starts = st.sampled_from(
        ["/", "/a/", f"{page(queue)}/", f"{page(queue)}/pictures/", f"{page(queue)}/pictures/{instance}/", "/page/"]
    )
    ends = st.sampled_from(["", ".png", "/view", "/0.png"])
    with ledger.row("fuzzed path", "annotation server", hostile=True) as row:

        def act(asked: tuple[str, str, str]) -> None:
            start, piece, end = asked
            path = start + hostile.quoted(piece) + end
            if len(path) > 60_000:
                return
            row.judge(f"{start[-12:]} {piece[:40]!r} {end}", hostile.answered(hostile.send(url, "GET", path)))

        hostile.each(st.tuples(starts, hostile.pieces, ends), tries(250, 15), act)


def answers(token: str, asked: AnswerBody) -> None:
    """What FastAPI describes; the server checks answers by the same model."""


def undo(token: str, asked: UndoBody) -> None:
    """As :func:`answers`."""


@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode), ids=lambda mode: mode.value)
def test_the_schema(
    queue: AnnotationQueue,
    url: str,
    ledger: Ledger,
    tries: Callable[[int, int], int],
    mode: schemathesis.GenerationMode,
) -> None:
    described = FastAPI()
    described.post("/a/{token}/answers")(answers)
    described.post("/a/{token}/undo")(undo)
    schema = schemathesis.openapi.from_dict(described.openapi())
    with ledger.row("from its OpenAPI schema", "annotation server", hostile=True) as row:
        for result in schema.get_all_operations():
            operation = result.ok()

            def act(case: schemathesis.Case) -> None:
                if "token" in (case.path_parameters or {}):
                    case.path_parameters = {**case.path_parameters, "token": queue.annotators[0].token}
                before = queue.store.every()
                row.judge(case.operation.label, hostile.answered(case_reply(case, url)), unsound(queue, before))

            try:
                hostile.each(operation.as_strategy(mode), tries(20, 3), act)
            except (schemathesis.errors.InvalidSchema, Unsatisfiable):  # nothing about it can be made invalid
                continue


def test_the_other_annotators_instances(queue: AnnotationQueue, url: str, ledger: Ledger) -> None:
    """With an overlap of one, each instance belongs to one person: the other's link answers none of them."""
    theirs = view(url, queue, 1)
    body = json.dumps({**body_for(theirs, [0, 1, 2, 3]), "revision": 1}).encode()
    before = len(queue.store.every())
    with ledger.row("another's work", "annotation server", hostile=True) as row:
        reply = hostile.send(url, "POST", f"{page(queue, 0)}/answers", body)
        taken = len(queue.store.every()) - before
        wrong = ("wrong", f"HTTP {reply.status}, {taken} stored") if reply.status < 400 or taken else None  # type: ignore[operator]
        row.judge("an answer to it", hostile.answered(reply), wrong)
        picture = hostile.send(url, "GET", f"{page(queue, 0)}/pictures/{theirs['instance']}/reference.png")
        row.judge("a picture of it", ("wrong", "shown") if picture.status == 200 else hostile.answered(picture))


def test_the_same_answer_ten_times(queue: AnnotationQueue, url: str, ledger: Ledger) -> None:
    """A page whose confirmation got lost says it again: stored once."""
    with ledger.row("said again", "annotation server", hostile=True) as row:
        body = json.dumps(body_for(view(url, queue, 1), [3, 2, 1, 0])).encode()
        before = len(queue.store.every())
        for number in range(10):
            reply = hostile.send(url, "POST", f"{page(queue, 1)}/answers", body)
            doubled = len(queue.store.every()) != before + 1
            row.judge(f"time {number}", hostile.answered(reply), ("doubled", "stored again") if doubled else None)


def test_other_peoples_pages(queue: AnnotationQueue, url: str, ledger: Ledger) -> None:
    with ledger.row("request of a foreign page", "annotation server", hostile=True) as row:
        for what, headers in (("a name that was pointed here (DNS rebinding)", {"Host": "evil.example"}),):
            reply = hostile.send(url, "GET", f"{page(queue)}/view", **headers)
            row.judge(what, None if 400 <= (reply.status or 0) < 500 else ("wrong", f"answered {reply.status}"))
