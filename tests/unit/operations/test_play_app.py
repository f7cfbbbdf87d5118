"""The page's server: what it takes, refuses and shows. The models are stood in for; the queue and pictures are real."""

from __future__ import annotations

import io
import threading
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from starlette.testclient import TestClient

from paco_core.config.params import Params, load
from paco_core.io.shards import encode_png
from paco_core.operations.play import app as page
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Jobs
from paco_core.operations.play.studio import StudioOptions

HOST = {"host": "127.0.0.1:7861"}
PAINT = {"theme": "a red cat", "panels": ["at night", "in the snow"], "policy": "base", "seeds": 1}


class Models:
    """Stands in for the studio at its border: notes requests, without the job of each."""

    def __init__(self, root: Path, params: Params) -> None:
        self.root, self.params, self.gallery = root, params, Gallery()
        self.calls: list[tuple[Any, ...]] = []
        self.may = threading.Event()

    def paint(self, *request: Any) -> dict[str, Any]:
        self.calls.append(("paint", *request[:-1]))
        assert self.may.wait(60)
        return {"pictures": []}

    def edit(self, pictures: Sequence[str], *request: Any) -> dict[str, Any]:
        self.calls.append(("edit", [self.gallery.image(name).size for name in pictures], *request[:-1]))
        return {"pictures": []}

    def score(self, *request: Any) -> dict[str, Any]:
        self.calls.append(("score", *request[:-1]))
        return {"pairs": [], "mean": None}


@pytest.fixture
def models(project: Path) -> Models:
    return Models(project, load(project / "params.yaml"))


@pytest.fixture
def client(models: Models) -> Iterator[TestClient]:
    jobs = Jobs()
    yield TestClient(page.create_app(models, jobs), headers=HOST)  # type: ignore[arg-type]
    models.may.set()
    assert jobs.close(60)


def picture(size: tuple[int, int] = (40, 30), form: str = "PNG", colour: str = "red") -> bytes:
    buffer = io.BytesIO()
    Image.new("RGB", size, colour).save(buffer, form)
    return buffer.getvalue()


def upload(client: TestClient, data: bytes) -> Any:
    return client.post("/pictures", content=data)


def wait_for_job(client: TestClient, job: str) -> dict[str, Any]:
    while (view := client.get(f"/jobs/{job}").json())["state"] in ("waiting", "running"):
        threading.Event().wait(0.005)
    return view


def test_the_page_is_served_with_its_files_and_nothing_else(client: TestClient) -> None:
    index = client.get("/")
    assert index.status_code == 200 and "default-src 'none'" in index.headers["content-security-policy"]
    assert index.headers["cross-origin-resource-policy"] == "same-origin"
    names = {part.split('"')[0] for part in index.text.split("/page/")[1:]}
    scripts = {file.name for file in page.PAGE.glob("*.js")}
    assert {"base.css", "play.css", "play.js", "icon.svg"} == names
    assert all(client.get(f"/page/{name}").status_code == 200 for name in names | scripts)
    for wrong in ("app.py", "..%2fapp.py", "%2e%2e/app.py", "/etc/passwd", "page.css"):
        assert client.get(f"/page/{wrong}").status_code == 404, wrong
    assert "<script>" not in index.text and " style=" not in index.text and " onclick" not in index.text


def test_pictures_are_decoded_and_encoded_anew(client: TestClient) -> None:
    for form in ("PNG", "JPEG", "WEBP", "BMP"):
        uploaded = upload(client, picture(form=form)).json()
        assert (uploaded["width"], uploaded["height"]) == (40, 30)
        served = client.get(f"/pictures/{uploaded['picture']}.png")
        assert Image.open(io.BytesIO(served.content)).format == "PNG"
    comment, noted = PngInfo(), io.BytesIO()
    comment.add_text("Comment", "where I live")
    Image.new("RGB", (4, 4)).save(noted, "PNG", pnginfo=comment)
    name = upload(client, noted.getvalue()).json()["picture"]
    assert b"where I live" in noted.getvalue() and b"where I live" not in client.get(f"/pictures/{name}.png").content


def test_what_is_no_bearable_picture_is_refused_before_it_is_decoded(
    client: TestClient, models: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = b"BM" + bytes(16) + (60_000).to_bytes(4, "little") * 2 + bytes(30)
    head = b"IHDR" + (9_000).to_bytes(4, "big") * 2 + bytes([8, 2, 0, 0, 0])
    wide = b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big")
    wide += (0).to_bytes(4, "big") + b"IDAT" + zlib.crc32(b"IDAT").to_bytes(4, "big")
    strip = encode_png(Image.new("RGB", (1, 20_000)))
    for data in (b"", b"GIF89a" + bytes(40), b"<svg/>", strip, picture()[:60], bomb, wide):
        assert upload(client, data).status_code == 422, data[:8]
    monkeypatch.setattr(page, "MAX_PICTURE", 100)
    small = TestClient(page.create_app(models, None), headers=HOST)  # type: ignore[arg-type]
    assert upload(small, bytes(101)).status_code == 413
    assert client.post("/paint", content=b"{" + b" " * page.MAX_BODY).status_code == 413
    unsaid = client.post("/pictures", content=iter([picture()]))  # chunked: no length to go by
    assert unsaid.status_code == 413


def test_requests_are_checked_before_they_wait(client: TestClient, models: Models) -> None:
    name = upload(client, picture()).json()["picture"]
    for path, body in (
        ("/paint", {**PAINT, "theme": " "}), ("/paint", {**PAINT, "panels": ["one"]}),
        ("/paint", {**PAINT, "panels": ["x"] * 9}), ("/paint", {**PAINT, "panels": ["x", ""]}),
        ("/paint", {**PAINT, "seeds": 9}), ("/paint", {**PAINT, "seeds": 0}), ("/paint", {**PAINT, "size": 1e9}),
        ("/paint", {**PAINT, "policy": "../data"}), ("/paint", {**PAINT, "policy": "/tmp"}),
        ("/paint", {**PAINT, "more": 1}), ("/paint", {**PAINT, "theme": "x" * 1001}), ("/paint", []),
        ("/score", {"pictures": [name]}), ("/score", {"pictures": [name] * 9}),
        ("/score", {"pictures": [name, "../../params.yaml"]}),
        ("/edit", {"pictures": ["params.yaml"], "instruction": "x", "policy": "base", "seeds": 1}),
        ("/edit", {"pictures": [], "instruction": "x", "policy": "base", "seeds": 1}),
    ):  # fmt: skip
        assert client.post(path, json=body).status_code == 422, (path, body)
    for value in (b"NaN", b'"\\ud800"', b"[" * 900 + b"]" * 900):
        body = b'{"theme": %b, "panels": ["a", "b"], "policy": "base", "seeds": 1}' % value
        assert client.post("/paint", content=body, headers={"content-type": "application/json"}).status_code == 422
    assert client.post("/score", json={"pictures": [name, "0" * 20]}).status_code == 404
    assert models.calls == []


def test_work_is_queued_watched_and_cancelled(client: TestClient, models: Models) -> None:
    name = upload(client, picture()).json()["picture"]
    first = client.post("/paint", json=PAINT)
    assert first.status_code == 202 and first.json()["state"] in ("waiting", "running")
    edit = {"pictures": [name, name], "instruction": "Make it blue.", "policy": "base", "seeds": 2, "beside": None}
    edited = client.post("/edit", json=edit).json()["job"]
    scored = client.post("/score", json={"pictures": [name, name], "reasons": False}).json()["job"]
    assert client.post(f"/jobs/{scored}/cancel").json()["state"] == "cancelled"
    waiting = [client.post("/paint", json=PAINT) for _ in range(8)]
    assert [answer.status_code for answer in waiting] == [202] * 7 + [429]
    for answer in waiting[:-1]:
        client.post(f"/jobs/{answer.json()['job']}/cancel")
    models.may.set()
    assert wait_for_job(client, edited)["state"] == "done"
    assert wait_for_job(client, first.json()["job"])["state"] == "done"
    assert models.calls == [
        ("paint", "a red cat", ["at night", "in the snow"], StudioOptions("base", 1, None, None)),
        ("edit", [(40, 30), (40, 30)], "Make it blue.", StudioOptions("base", 2, None, None)),
    ]
    assert client.get("/jobs/guess").status_code == 404


def test_other_pages_can_neither_ask_nor_look(client: TestClient) -> None:
    name = upload(client, picture()).json()["picture"]
    assert client.get("/about", headers={"host": "evil.example"}).status_code == 400
    for origin in ("http://evil.example", "null", "http://127.0.0.1:9999", "https://127.0.0.1:7861", "http://["):
        response = client.post("/paint", json=PAINT, headers={"origin": origin})
        assert response.status_code == 403 and response.headers["x-content-type-options"] == "nosniff", origin
        assert client.get(f"/pictures/{name}.png", headers={"origin": origin}).status_code == 403
    assert client.get("/about", headers={"origin": "http://127.0.0.1:7861"}).status_code == 200
