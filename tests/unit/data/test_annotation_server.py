"""The annotation page's server: what it takes and refuses, six people at once, and kill -9."""

from __future__ import annotations

import io
import json
import random
import threading
from collections import Counter
from pathlib import Path

import httpx
import pytest
from PIL import Image
from starlette.testclient import TestClient

from paco_core.cli import commands as cli
from paco_core.data.annotation import assignment, server
from paco_core.data.annotation.queue import AnnotationQueue, Last, NotAssigned
from paco_core.data.annotation.store import AnswerStore, NotStored
from paco_core.io.files import DataError
from tests.support.annotation_world import STORE, Server, body_for, make_world, open_study

HOST = {"host": "127.0.0.1"}


@pytest.fixture
def study(tmp_path: Path) -> tuple[TestClient, AnnotationQueue, str]:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=2, overlap=1)
    return TestClient(server.create_app(queue), headers=HOST), queue, f"/a/{queue.annotators[0].token}"


def test_the_page_is_served_to_whom_it_belongs(study: tuple[TestClient, AnnotationQueue, str]) -> None:
    client, queue, base = study
    page = client.get(base)
    assert (
        page.status_code == 200
        and "Confirm" in page.text
        and "default-src 'none'" in page.headers["content-security-policy"]
    )
    assert client.get("/").status_code == 200 and "Whose page is this?" in client.get("/").text
    assert client.get("/a/guess").status_code == 404 and "Whose page" in client.get("/a/guess").text
    assert client.get("/a/guess/view").status_code == 404
    files = ("page.js", "page.css", "base.css", "icon.svg")
    assert all(client.get(f"/page/{name}").status_code == 200 for name in files)
    assert client.get("/page/server.py").status_code == 404 == client.get("/page/..%2fserver.py").status_code
    view = client.get(f"{base}/view").json()
    assert view["annotator"] == "annotator-1" and view["done"] == 0 and view["total"] == 24
    assert set(queue.chosen) >= {view["instance"], view["ahead"]}


@pytest.mark.parametrize(
    ("value", "named"),
    [
        ("NaN", "revision: "),
        ("-Infinity", "revision: "),
        ('"\\ud800"', "Invalid JSON: unexpected end of hex escape"),
        ("[" * 900 + "]" * 900, "Invalid JSON: recursion limit exceeded"),
    ],
)
def test_what_cannot_be_echoed_is_refused_all_the_same(
    study: tuple[TestClient, AnnotationQueue, str], value: str, named: str
) -> None:
    client, queue, base = study
    body = f'{{"instance": {value}, "revision": {value}, "other": 1}}'.encode()
    for path in ("answers", "undo"):
        reply = client.post(f"{base}/{path}", content=body, headers={"content-type": "application/json"})
        assert reply.status_code == 422 and named in reply.json()["detail"]
    assert queue.store.every() == []


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", None])
def test_what_a_foreign_page_can_send_without_asking_is_refused(
    study: tuple[TestClient, AnnotationQueue, str], kind: str | None
) -> None:
    client, queue, base = study
    body = json.dumps(body_for(client.get(f"{base}/view").json(), [0, 1, 2, 3])).encode()
    reply = client.post(f"{base}/answers", content=body, headers={} if kind is None else {"content-type": kind})
    assert reply.status_code == 415 and "expected application/json" in reply.json()["detail"]
    assert queue.store.every() == []
    good = client.post(f"{base}/answers", content=body, headers={"content-type": "application/json; charset=utf-8"})
    assert good.status_code == 200 and len(queue.store.every()) == 1


def test_nothing_that_reaches_the_page_tells_where_a_candidate_comes_from(
    study: tuple[TestClient, AnnotationQueue, str],
) -> None:
    client, queue, base = study
    view = client.get(f"{base}/view").json()
    instance = queue.instances[view["instance"]]
    shown = assignment.places(queue.annotators[0].token, view["instance"], 4)
    for place, candidate in enumerate(shown):
        picture = client.get(f"{base}/pictures/{view['instance']}/{place}.png")
        assert picture.headers["content-type"] == "image/png"
        got = Image.open(io.BytesIO(picture.content))
        assert got.tobytes() == queue.panels.panel(instance.candidates[candidate]).tobytes() and not got.info
    reference = client.get(f"{base}/pictures/{view['instance']}/reference.png")
    assert Image.open(io.BytesIO(reference.content)).tobytes() == queue.panels.panel(instance.reference).tobytes()
    assert not any(grid.split("#")[0] in json.dumps(view) for grid in (instance.reference, *instance.candidates))
    for wrong in ("4.png", "-1.png", "x.png", "².png", "٣.png", "9" * 5000 + ".png", "1%00.png", "0x1.png"):
        assert client.get(f"{base}/pictures/{view['instance']}/{wrong}").status_code == 404, wrong
    assert client.get(f"{base}/pictures/x/0.png").status_code == 404


def test_what_is_given_to_others_is_neither_shown_nor_taken(study: tuple[TestClient, AnnotationQueue, str]) -> None:
    client, queue, base = study
    own, other = (client.get(f"/a/{one.token}/view").json() for one in queue.annotators)
    good = body_for(other, [3, 1, 0, 2])
    for refused in (
        client.post(f"{base}/answers", json=good),
        client.post(f"{base}/answers", json={**good, "verdict": "skipped", "ranking": []}),
        client.post(f"{base}/undo", json={"instance": other["instance"], "revision": 1}),
        client.get(f"{base}/pictures/{other['instance']}/0.png"),
        client.get(f"{base}/pictures/{other['instance']}/reference.png"),
    ):
        assert refused.status_code == 403 and "is not assigned to annotator-1" in refused.json()["detail"]
    assert not queue.store.every()
    assert client.post(f"{base}/answers", json=body_for(own, [3, 1, 0, 2])).status_code == 200


def test_what_somebody_answered_stays_theirs_when_the_study_is_shared_out_anew(tmp_path: Path) -> None:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=1)
    (who,) = queue.annotators
    view = queue.view(who)
    assert view.instance is not None
    queue.answer(who, view.instance, 1, "ranked", (0, 1, 2, 3), 1.0)
    queue.store.retire(who.name)
    again = open_study(tmp_path, annotators=1)
    retired = next(one for one in again.annotators if not one.active)
    again.undo(retired, Last(view.instance, 1))
    with pytest.raises(NotAssigned):
        again.answer(retired, next(n for n in again.chosen if n != view.instance), 1, "skipped", (), 1.0)


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
    refused = client.post(f"{base}/answers", json={**good, "revision": 2})
    assert refused.status_code == 503 and refused.json() == {"detail": "disk is full"}


def test_a_foreign_page_cannot_read_through_a_name_of_its_own(study: tuple[TestClient, AnnotationQueue, str]) -> None:
    client, _, base = study
    assert client.get(f"{base}/view", headers={"host": "evil.example"}).status_code == 400


def test_a_damaged_picture_is_said(study: tuple[TestClient, AnnotationQueue, str], tmp_path: Path) -> None:
    client, _, base = study
    view = client.get(f"{base}/view").json()
    tar = tmp_path / "data/grids/shard-0/images.tar"
    tar.write_bytes(tar.read_bytes()[:600])
    refused = client.get(f"{base}/pictures/{view['instance']}/reference.png")
    assert refused.status_code == 422 and "images.tar: cut off" in refused.json()["detail"]


def test_a_taken_port_is_said() -> None:
    taken = server.listen(0)
    taken.listen()
    with pytest.raises(DataError, match="cannot be used .* choose another with --port"):
        server.listen(taken.getsockname()[1])
    with pytest.raises(DataError, match="port 99999"):
        server.listen(99999)
    taken.close()


def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path)
    (tmp_path / "data/rankings/instances.parquet").unlink()
    monkeypatch.chdir(tmp_path)
    for arguments, message in (
        (["status"], "no such answer store; `paco annotate` creates one"),
        (["--port", "0"], "instances.parquet: no such file; run `dvc repro rankings`"),
        (["--port", "0", "--annotators", "2", "--overlap", "3"], "--overlap 3: each instance needs that many"),
        (["--port", "0", "--annotators", "0"], "--annotators: 0: expected a number from 1 to 1000000"),
        (["--port", "0", "--retire", "bob"], "there is no annotator 'bob'"),
    ):
        with pytest.raises(SystemExit):
            cli.main(["annotate", *arguments])
        assert message in capsys.readouterr().err


def work(link: str, seed: int, confirmed: list[tuple[str, int]], failures: list[str]) -> None:
    """One annotator: answers until nothing is left, sometimes skipping, undoing or saying the same twice."""
    rng = random.Random(seed)
    try:
        with httpx.Client(timeout=60) as client:
            view = client.get(f"{link}/view").json()
            while view["instance"] is not None:
                body = body_for(view, rng.sample(range(4), 4))
                draw = rng.random()
                if draw < 0.1 and not view["skipped_before"]:
                    body.update(verdict="skipped", ranking=[])
                elif draw < 0.2 and view["last"]:
                    response = client.post(f"{link}/undo", json=view["last"])
                    confirmed.append((view["last"]["instance"], view["last"]["revision"] + 1))
                    view = response.raise_for_status().json()
                    continue
                elif draw < 0.4:
                    client.post(f"{link}/answers", json=body).raise_for_status()
                view = client.post(f"{link}/answers", json=body).raise_for_status().json()
                confirmed.append((body["instance"], body["revision"]))
    except Exception as error:
        failures.append(repr(error))
        raise


@pytest.mark.slow
def test_six_people_at_once_lose_nothing(tmp_path: Path) -> None:
    make_world(tmp_path, prompts=2, seeds=3)  # 48 instances
    with Server(tmp_path, ("--annotators", "6", "--overlap", "3")) as running:
        confirmed: list[list[tuple[str, int]]] = [[] for _ in range(6)]
        failures: list[str] = []
        threads = [
            threading.Thread(target=work, args=(link, n, confirmed[n], failures))
            for n, link in enumerate(running.links)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert not failures and not any(thread.is_alive() for thread in threads)
    store = AnswerStore(tmp_path / STORE)
    stored = {one.name: [] for one in store.annotators()}
    for answer in store.every():
        stored[answer.annotator].append((answer.instance_id, answer.revision))
    assert [Counter(mine) for mine in stored.values()] == [Counter(mine) for mine in confirmed]
    final = [answer for answer in store.latest() if answer.verdict == "ranked"]
    assert len(final) == 48 * 3 and set(Counter(answer.instance_id for answer in final).values()) == {3}


@pytest.mark.slow
def test_kill_9_loses_no_confirmed_answer_and_stores_none_twice(tmp_path: Path) -> None:
    make_world(tmp_path, prompts=2, seeds=3)
    rng = random.Random(0)
    running = Server(tmp_path, ("--annotators", "1"))
    confirmed: dict[str, list[int]] = {}
    for stop in (7, 25, None):
        running.start()
        link = running.links[0]
        killer = None
        with httpx.Client(timeout=30) as client:
            view = client.get(f"{link}/view").json()
            assert view["done"] >= len(confirmed), "a confirmed answer was lost"
            while view["instance"] is not None:
                if stop is not None and len(confirmed) >= stop and killer is None:
                    # While answers go on coming in, so that it strikes in the middle of one.
                    killer = threading.Timer(rng.random() * 0.05, running.kill)
                    killer.start()
                body = body_for(view, rng.sample(range(4), 4))
                try:
                    view = client.post(f"{link}/answers", json=body).raise_for_status().json()
                except httpx.TransportError:
                    assert killer is not None
                    killer.join()
                    running.start()
                    # As the page does: it says again what was not confirmed, stored or not.
                    view = client.post(f"{link}/answers", json=body).raise_for_status().json()
                    confirmed[body["instance"]] = body["ranking"]
                    break
                confirmed[body["instance"]] = body["ranking"]
        if stop is not None:
            running.kill()
    running.__exit__()
    store = AnswerStore(tmp_path / STORE)
    (who,) = store.annotators()
    stored = store.every()
    assert len(stored) == 48 == len({(answer.instance_id, answer.revision) for answer in stored})
    for answer in stored:
        chosen = confirmed[answer.instance_id]
        shown = assignment.places(who.token, answer.instance_id, 4)
        assert answer.ranking == tuple(shown[place] for place in chosen)


def test_status_tells_how_far_and_how_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_world(tmp_path)
    queue = open_study(tmp_path, annotators=2, overlap=2, count=24)
    queue.store.setting("overlap", 2)
    queue.store.setting("instances", 24)
    for who in queue.annotators:
        while (view := queue.view(who)).instance is not None and view.done < 22:
            shown = assignment.places(who.token, view.instance, 4)
            chosen = [shown.index(c) for c in range(4)]
            # The second annotator ranks as the first one does, and every other time the reverse.
            turned = who.name == "annotator-2" and view.done % 2
            queue.answer(who, view.instance, 1, "ranked", chosen[::-1] if turned else chosen, 2.0)
    monkeypatch.chdir(tmp_path)
    cli.main(["annotate", "status"])
    told = capsys.readouterr().out
    assert "44 rankings" in told and "annotator-1 22 of 24" in told
    shared = 44 - int(told.split(" of 24 instances ranked")[0].split()[-1])  # by two; which ones, chance decides
    assert 20 <= shared <= 22
    assert "annotator-2" in told and f"DOUBTFUL: no better than chance over {shared} shared instances" in told
