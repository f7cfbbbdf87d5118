"""The annotation page's server: what it takes and refuses, six people at once, and kill -9."""

from __future__ import annotations

import io
import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from paco_core.data.annotation import assignment, server
from paco_core.data.annotation.queue import AnnotationQueue, Last, NotAssigned
from paco_core.data.annotation.store import AnswerStore, NotStored
from tests.support.annotation_world import STORE, Server, body_for, make_world, open_study
from tests.support.waiting import until

HOST = {"host": "127.0.0.1"}


@pytest.fixture
def study(tmp_path: Path) -> tuple[TestClient, AnnotationQueue, str]:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=2, overlap=1)
    return TestClient(server.create_annotation_app(queue), headers=HOST), queue, f"/a/{queue.annotators[0].token}"


def test_the_page_is_served_to_whom_it_belongs(study: tuple[TestClient, AnnotationQueue, str]) -> None:
    client, queue, base = study
    page = client.get(base)
    assert page.status_code == 200 and "default-src 'none'" in page.headers["content-security-policy"]
    assert client.get("/a/guess").status_code == 404 == client.get("/a/guess/view").status_code
    assert client.get("/page/page.js").status_code == 200
    assert client.get("/page/server.py").status_code == 404 == client.get("/page/..%2fserver.py").status_code
    view = client.get(f"{base}/view").json()
    assert view["annotator"] == "annotator-1" and view["done"] == 0 and view["total"] == 24
    assert set(queue.chosen) >= {view["instance"], view["ahead"]}
    foreign = client.get(f"{base}/view", headers={"host": "evil.example"})
    assert foreign.status_code == 400, "a foreign page reads nothing through a name of its own"


@pytest.mark.parametrize("value", ["NaN", "-Infinity", '"\\ud800"', "[" * 900 + "]" * 900])
def test_what_cannot_be_echoed_is_refused_all_the_same(
    study: tuple[TestClient, AnnotationQueue, str], value: str
) -> None:
    client, queue, base = study
    body = f'{{"instance": {value}, "revision": {value}, "other": 1}}'.encode()
    for path in ("answers", "undo"):
        reply = client.post(f"{base}/{path}", content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 422 and reply.json()["detail"]
    assert queue.store.every() == []


@pytest.mark.parametrize("kind", ["text/plain", None])
def test_what_a_foreign_page_can_send_without_asking_is_refused(
    study: tuple[TestClient, AnnotationQueue, str], kind: str | None
) -> None:
    client, queue, base = study
    body = json.dumps(body_for(client.get(f"{base}/view").json(), [0, 1, 2, 3])).encode()
    reply = client.post(f"{base}/answers", content=body, headers={} if kind is None else {"content-type": kind})
    assert reply.status_code == 415 and queue.store.every() == []
    good = client.post(f"{base}/answers", content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert good.status_code == 200 and len(queue.store.every()) == 1


def test_nothing_that_reaches_the_page_tells_where_a_candidate_comes_from(
    study: tuple[TestClient, AnnotationQueue, str],
) -> None:
    client, queue, base = study
    view = client.get(f"{base}/view").json()
    instance = queue.instances[view["instance"]]
    order = assignment.candidate_order(queue.annotators[0].token, view["instance"], 4)
    for place, candidate in enumerate(order):
        picture = client.get(f"{base}/pictures/{view['instance']}/{place}.png")
        assert picture.headers["content-type"] == "image/png"
        image = Image.open(io.BytesIO(picture.content))
        assert image.tobytes() == queue.panels.panel(instance.candidates[candidate]).tobytes() and not image.info
    reference = client.get(f"{base}/pictures/{view['instance']}/reference.png")
    assert Image.open(io.BytesIO(reference.content)).tobytes() == queue.panels.panel(instance.reference).tobytes()
    assert not any(grid.split("#")[0] in json.dumps(view) for grid in (instance.reference, *instance.candidates))
    for wrong in ("4.png", "-1.png", "x.png", "².png", "٣.png", "9" * 5000 + ".png", "1%00.png", "0x1.png"):
        assert client.get(f"{base}/pictures/{view['instance']}/{wrong}").status_code == 404, wrong
    assert client.get(f"{base}/pictures/x/0.png").status_code == 404


def test_what_is_given_to_others_is_neither_shown_nor_taken(study: tuple[TestClient, AnnotationQueue, str]) -> None:
    client, queue, base = study
    first_view, second_view = (client.get(f"/a/{annotator.token}/view").json() for annotator in queue.annotators)
    good = body_for(second_view, [3, 1, 0, 2])
    for response in (
        client.post(f"{base}/answers", json=good),
        client.post(f"{base}/answers", json={**good, "verdict": "skipped", "ranking": []}),
        client.post(f"{base}/undo", json={"instance": second_view["instance"], "revision": 1}),
        client.get(f"{base}/pictures/{second_view['instance']}/0.png"),
        client.get(f"{base}/pictures/{second_view['instance']}/reference.png"),
    ):
        assert response.status_code == 403
    assert not queue.store.every()
    assert client.post(f"{base}/answers", json=body_for(first_view, [3, 1, 0, 2])).status_code == 200


def test_what_somebody_answered_stays_theirs_when_the_study_is_shared_out_anew(tmp_path: Path) -> None:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=1)
    (first,) = queue.annotators
    view = queue.view(first)
    assert view.instance is not None
    queue.answer(first, view.instance, 1, "ranked", (0, 1, 2, 3), 1.0)
    queue.store.retire(first.name)
    reopened = open_study(tmp_path, annotators=1)
    retired = next(annotator for annotator in reopened.annotators if not annotator.active)
    reopened.undo(retired, Last(view.instance, 1))
    with pytest.raises(NotAssigned):
        reopened.answer(retired, next(n for n in reopened.chosen if n != view.instance), 1, "skipped", (), 1.0)


def test_answers_are_checked(study: tuple[TestClient, AnnotationQueue, str], monkeypatch: pytest.MonkeyPatch) -> None:
    client, queue, base = study
    view = client.get(f"{base}/view").json()
    good = body_for(view, [3, 1, 0, 2])
    for wrong in (
        {**good, "ranking": [0, 0, 1, 2]}, {**good, "ranking": [0, 1, 2]}, {**good, "ranking": [0, 1, 2, 9]},
        {**good, "instance": "x"}, {**good, "verdict": "withdrawn"}, {**good, "revision": 0}, {**good, "seconds": -1},
        {**good, "more": 1}, {},
    ):  # fmt: skip
        assert client.post(f"{base}/answers", json=wrong).status_code == 422, wrong
    assert client.post(f"{base}/answers", content=b"{" + b" " * 20_000).status_code == 413
    kind = {"content-type": "application/json"}
    assert client.post(f"{base}/answers", content=b"{", headers=kind).status_code == 422
    assert client.post("/a/guess/answers", json=good).status_code == 404
    assert not queue.store.every()
    assert client.post(f"{base}/answers", json=good).json()["done"] == 1
    assert client.post(f"{base}/answers", json=good).json()["done"] == 1 and len(queue.store.every()) == 1
    assert client.post(f"{base}/answers", json={**good, "ranking": [0, 1, 2, 3]}).status_code == 409
    monkeypatch.setattr(queue.store, "record", lambda _answer: (_ for _ in ()).throw(NotStored("disk is full")))
    response = client.post(f"{base}/answers", json={**good, "revision": 2})
    assert response.status_code == 503 and response.json() == {"detail": "disk is full"}


def work(link: str, seed: int, confirmed: list[dict[str, Any]]) -> None:
    """One annotator: answers until nothing is left, sometimes skipping, undoing or saying the same twice."""
    rng = random.Random(seed)
    with httpx.Client(timeout=60) as client:

        def request(place: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
            """As the page does: says again what was not confirmed, stored or not."""
            while True:
                try:
                    reply = client.post(f"{link}/{place}", json=body) if body else client.get(f"{link}/{place}")
                    return dict(reply.raise_for_status().json())
                except httpx.TransportError:
                    time.sleep(0.05)

        view = request("view")
        while view["instance"] is not None:
            body, draw = body_for(view, rng.sample(range(4), 4)), rng.random()
            if 0.1 <= draw < 0.2 and view["last"]:
                confirmed.append({**view["last"], "revision": view["last"]["revision"] + 1, "ranking": []})
                view = request("undo", view["last"])
                continue
            if draw < 0.1 and not view["skipped_before"]:
                body.update(verdict="skipped", ranking=[])
            if 0.2 <= draw < 0.4:
                request("answers", body)
            view = request("answers", body)
            confirmed.append(body)


@pytest.mark.slow
def test_six_people_at_once_lose_nothing_over_kill_9_and_nothing_is_stored_twice(tmp_path: Path) -> None:
    make_world(tmp_path, prompts=2, seeds=3)  # 48 instances
    confirmed: list[list[dict[str, Any]]] = [[] for _ in range(6)]
    with Server(tmp_path, ("--annotators", "6", "--overlap", "3")) as running:
        threads = [threading.Thread(target=work, args=(link, n, confirmed[n])) for n, link in enumerate(running.links)]
        for thread in threads:
            thread.start()
        for count in (20, 80):  # while answers go on coming in, so that it strikes in the middle of one
            until(lambda count=count: sum(map(len, confirmed)) >= count)
            running.kill()
            running.start()
        for thread in threads:
            thread.join(120)
        assert not any(thread.is_alive() for thread in threads)
    store = AnswerStore(tmp_path / STORE)
    stored: dict[str, list[Any]] = {annotator.name: [] for annotator in store.annotators()}
    for answer in store.every():
        stored[answer.annotator].append((answer.instance_id, answer.revision, answer.ranking))
    for annotator, bodies in zip(store.annotators(), confirmed, strict=True):
        places = {body["instance"]: assignment.candidate_order(annotator.token, body["instance"], 4) for body in bodies}
        assert stored[annotator.name] == [
            (body["instance"], body["revision"], tuple(places[body["instance"]][n] for n in body["ranking"]) or None)
            for body in bodies
        ]
    final = [answer for answer in store.latest() if answer.verdict == "ranked"]
    assert len(final) == 48 * 3 and set(Counter(answer.instance_id for answer in final).values()) == {3}
