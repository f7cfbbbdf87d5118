"""Digests of pictures: by content, and each object read once."""

from __future__ import annotations

import io

import pytest
from PIL import Image

from paco_core.io import pictures


def test_a_digest_is_of_the_pixels_however_they_are_stored() -> None:
    image = Image.effect_noise((9, 7), 50).convert("RGB")
    stored = io.BytesIO()
    image.save(stored, format="PNG")
    assert pictures.picture_digest(Image.open(stored)) == pictures.picture_digest(image)
    assert len({pictures.picture_digest(other) for other in (image, image.convert("L"), image.resize((7, 9)))}) == 3


def test_a_picture_that_is_asked_about_several_times_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    red, blue, also_red = (Image.new("RGB", (4, 4), colour) for colour in ("red", "blue", "red"))
    read = []
    digest = pictures.picture_digest
    monkeypatch.setattr(pictures, "picture_digest", lambda picture: read.append(picture) or digest(picture))
    found = pictures.picture_digests([red, blue, red, also_red])
    assert found == [digest(red), digest(blue), digest(red), digest(red)] and read == [red, blue, also_red]
