"""Stories of `paco play` over HTTP, with the real queue and the storybook's small FLUX.2 [klein]."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from starlette.testclient import TestClient

from paco_core import Painter
from paco_core.config.params import load
from paco_core.data.records.characters import load_images
from paco_core.io import paths
from paco_core.operations.play.app import create_app
from paco_core.operations.play.gallery import Gallery
from paco_core.operations.play.jobs import Jobs
from paco_core.operations.play.studio import Studio, StudioOptions
from tests.support import tiny_vlm
from tests.support.small_project import adapter, lay_out, lay_out_klein

PANELS = ["Fox runs at night", "Mia meets Fox in the snow", "a beach"]
COLORS = {"fox": "red", "mia": "blue", "side": "cyan"}


@pytest.fixture
def project(repository: Path, tmp_path: Path) -> Path:
    return lay_out_klein(repository, tmp_path)


@contextmanager
def open_client(root: Path) -> Iterator[TestClient]:
    params = load(root / "params.yaml")
    params = params.model_copy(update={"t2is": params.t2is.model_copy(update={"steps": 2})})
    studio, jobs = Studio(root, params, Gallery()), Jobs()
    try:
        yield TestClient(create_app(studio, jobs), headers={"host": "127.0.0.1:7861"})
    finally:
        assert jobs.close(60)
        studio.close()


@pytest.fixture
def client(project: Path) -> Iterator[TestClient]:
    with open_client(project) as client:
        yield client


def image(color: str | tuple[int, ...], size: tuple[int, int] = (64, 80)) -> bytes:
    buffer = io.BytesIO()
    Image.new("RGBA" if isinstance(color, tuple) else "RGB", size, color).save(buffer, "PNG")
    return buffer.getvalue()


def upload(client: TestClient, data: bytes) -> str:
    return str(client.post("/pictures", content=data).json()["picture"])


def body(client: TestClient, **changes: Any) -> dict[str, Any]:
    fox, mia, side = (upload(client, image(color)) for color in COLORS.values())
    characters = [{"name": "Fox", "pictures": [fox]}, {"name": "Mia", "pictures": [mia, side]}]
    return {"characters": characters, "panels": PANELS, "policy": "base", "seeds": 1, "size": 128, **changes}


def tell(client: TestClient, request: dict[str, Any]) -> dict[str, Any]:
    answer = client.post("/story", json=request)
    assert answer.status_code == 202, answer.text
    while (view := client.get(f"/jobs/{answer.json()['job']}").json())["state"] in ("waiting", "running"):
        pass
    assert view["state"] == "done", view["error"]
    return dict(view)


@pytest.mark.slow
def test_base_and_trained_tell_the_story_with_a_score_per_panel_and_character(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    adapter(project)
    tiny_vlm.build(project / paths.REWARD_MERGED)
    with open_client(project) as client:
        assert [policy["name"] for policy in client.get("/about").json()["stories"]] == ["flux_t2is", "base"]
        view = tell(client, body(client, policy="flux_t2is", beside="base"))
        rows = view["result"]["pictures"]
        assert [(row["by"], row["trained"]) for row in rows] == [("base", False), ("flux_t2is", True)]
        assert (view["done"], view["total"]) == (6, 6)  # 2 steps of 3 panels
        for row in rows:
            names = [[value["character"] for value in panel] for panel in row["agreements"]]
            scores = [value["score"] for panel in row["agreements"] for value in panel]
            assert names == [["Fox"], ["Fox", "Mia"], []] and all(0 <= score <= 1 for score in scores)
            assert row["score"] == pytest.approx(sum(scores) / 3, abs=1e-4)
        strips = [client.get(f"/pictures/{row['picture']}.png").content for row in rows]
    assert {Image.open(io.BytesIO(strip)).size for strip in strips} == {(192, 64)} and strips[0] != strips[1]
    for name, color in COLORS.items():
        Image.new("RGB", (64, 80), color).save(project / f"{name}.png")
    with Painter("flux_t2is") as painter:
        images = painter.story(PANELS, {"Fox": "fox.png", "Mia": ["mia.png", "side.png"]}, size=128, steps=2)
    decoded = [Image.open(io.BytesIO(strip)).convert("RGB").tobytes() for strip in strips]
    assert [story.image.tobytes() for story in images] == decoded  # as `paco story` generates them


@pytest.mark.slow
def test_without_a_reward_model_a_story_has_no_scores(client: TestClient) -> None:
    fox = upload(client, image("green"))
    request = body(client, characters=[{"name": "Fox", "pictures": [fox]}], panels=PANELS[:2])
    (row,) = tell(client, request)["result"]["pictures"]
    assert (row["score"], row["cause"]) == (None, None) and "agreements" not in row and len(row["panels"]) == 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"panels": ["Fox runs"]}, ["one panel"]),
        ({"panels": ["a beach", "a wood"]}, ["'Fox'", "'Mia'", "panel"]),
        ({"panels": ["Foxes run", "Miami"]}, ["'Fox'", "'Mia'"]),
        ({"panels": []}, ["panels"]),
        ({"panels": ["Fox", " "]}, ["panels"]),
        ({"panels": ["Fox and Mia"] * 9}, ["panels"]),
        ({"characters": []}, ["characters"]),
        ({"characters": [{"name": "Fox", "pictures": []}]}, ["pictures"]),
        ({"characters": [{"name": "Fox", "pictures": ["params.yaml"]}]}, ["pictures"]),
        ({"characters": [{"name": f"Fox{n}", "pictures": ["0" * 20]} for n in range(5)]}, ["characters"]),
        ({"policy": "flux_t2is"}, ["not trained"]),
        ({"policy": "kontext_edit"}, ["kontext_edit"]),
        ({"policy": "data"}, ["data"]),
    ],
)
def test_a_story_that_cannot_be_generated_is_refused_before_it_waits(
    client: TestClient, change: dict[str, Any], words: list[str]
) -> None:
    answer = client.post("/story", json=body(client, **change))
    assert answer.status_code == 422
    assert all(word in answer.json()["detail"] for word in words), answer.text


@pytest.mark.parametrize(
    ("names", "size", "count", "words"),
    [
        (["Fox", "Fox"], (64, 80), 1, ["name"]),
        (["Fox", "FOX"], (64, 80), 1, ["name"]),
        (["Fox"], (64, 80), 4, ["pictures"]),
        (["Fox"], (1, 1), 1, ["of Fox", "1 x 1"]),
        (["Fox"], (48, 96), 1, ["of Fox", "48 x 96", "64"]),
        (["Fox", "Mia"], (64, 80), 3, ["Fox, Mia", "6 images", "4"]),
    ],
)
def test_characters_that_cannot_be_used_are_refused_by_name(
    client: TestClient, names: list[str], size: tuple[int, int], count: int, words: list[str]
) -> None:
    pictures = [upload(client, image((n, 0, 0, 255), size)) for n in range(count)]
    characters = [{"name": name, "pictures": pictures} for name in names]
    answer = client.post("/story", json=body(client, characters=characters))
    assert answer.status_code == 422
    assert all(word in answer.json()["detail"] for word in words), answer.text


def test_images_without_a_visible_pixel_or_over_the_limits_are_refused_at_upload(client: TestClient) -> None:
    large = io.BytesIO()
    Image.new("1", (9000, 9000)).save(large, "PNG")
    for data, word in ((image((0, 0, 0, 0)), "transparent"), (large.getvalue(), "9000")):
        answer = client.post("/pictures", content=data)
        assert answer.status_code == 422 and word in answer.json()["detail"]
    forgotten = body(client, characters=[{"name": "Fox", "pictures": ["0" * 20]}])
    assert client.post("/story", json=forgotten).status_code == 404


def test_a_story_keeps_at_most_the_pixels_that_a_policy_reads_of_an_image(project: Path) -> None:
    studio = Studio(project, load(project / "params.yaml"), Gallery())
    names = [studio.gallery.add(Image.new("RGB", size)) for size in ((2048, 1024), (64, 80))]
    _, record = studio.plan_story(PANELS[:1] * 2, {"Fox": names}, None, StudioOptions("base", 1, None, None))
    assert [picture.size for picture in load_images(record.characters[0])] == [(1448, 724), (64, 80)]


def test_a_project_without_a_family_that_uses_references_says_what_it_needs(repository: Path, tmp_path: Path) -> None:
    with open_client(lay_out(repository, tmp_path)) as client:
        about = client.get("/about").json()
        assert about["stories"] == [] and "flux2_klein" in about["stories_need"]
        answer = client.post("/story", json=body(client))
        assert answer.status_code == 422 and answer.json()["detail"] == about["stories_need"]
