"""Decoding of external images: every reader decodes a file the same way, or raises an error that names the cause."""

from __future__ import annotations

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core.io import decoding, pictures
from paco_core.io.decoding import TooLarge, read_head
from paco_core.io.files import DataError, md5_of
from paco_core.io.pictures import (
    content_and_size,
    decode_image,
    image_size,
    normalize_image,
    picture_digest,
    read_image,
)
from paco_core.io.shards import encode_png
from paco_core.reward_model.yes_probability import PairQuery, PictureQuery
from paco_core.serving.engines import pictures as served
from tests.support.carriers import carriers, drawing, encoded, exif, left_clear, left_white, png
from tests.support.pictures import bomb

CARRIERS = carriers()
#: Pillow gives their transparent colour in the depth of the file, which it has forgotten once the pixels are loaded.
FORGOTTEN = {"4-bit L with tRNS, PNG", "16-bit RGB with tRNS, PNG"}


@pytest.mark.parametrize("name", CARRIERS)
def test_every_door_gives_what_a_person_sees(name: str, tmp_path: Path) -> None:
    """A file, a data URL's bytes, and a picture that the caller opened with Pillow: the same pixels, one digest."""
    data, expected = CARRIERS[name]
    file = tmp_path / "picture"
    file.write_bytes(data)
    digests = {
        "bytes": decode_image(data, "x"),
        "file": read_image(file),
        "data URL": served.decode(served.head(data)),
        "opened": PairQuery(Image.open(file), expected, "?").first,
        "opened and loaded": expected if name in FORGOTTEN else normalize_image(_loaded(file)),
        "one picture": PictureQuery(Image.open(file), "?").picture,
    }
    for door, picture in digests.items():
        assert picture.mode == "RGB" and not picture.info, door
        np.testing.assert_array_equal(np.asarray(picture), np.asarray(expected), err_msg=door)
    assert {picture_digest(picture) for picture in digests.values()} == {picture_digest(expected)}
    assert {encode_png(picture) for picture in digests.values()} == {encode_png(expected)}
    assert image_size(file) == read_head(data).size == expected.size


def _loaded(file: Path) -> Image.Image:
    image = Image.open(file)
    image.load()
    return image.copy()


def test_photographs_in_all_orientations_in_cmyk_and_one_of_several_pictures(tmp_path: Path) -> None:
    """JPEG is lossy: as close to the upright drawing as the upright JPEG is."""
    turns = ("FLIP_LEFT_RIGHT", "ROTATE_180", "FLIP_TOP_BOTTOM", "TRANSPOSE", "ROTATE_90", "TRANSVERSE", "ROTATE_270")
    stored = [drawing(), *(drawing().transpose(Image.Transpose[turn]) for turn in turns)]
    photographs = [
        encoded(image, "JPEG", quality=95, subsampling=0, exif=exif(orientation))
        for orientation, image in enumerate(stored, start=1)
    ]
    photographs.append(encoded(drawing().convert("CMYK"), "JPEG", quality=95))
    frames = [drawing().rotate(180)]
    photographs.append(encoded(drawing(), "MPO", quality=95, subsampling=0, save_all=True, append_images=frames))
    for number, data in enumerate(photographs):
        (tmp_path / "x.jpg").write_bytes(data)
        image = decode_image(data, "x")
        assert image.size == image_size(tmp_path / "x.jpg") == (64, 48)
        assert np.abs(np.asarray(image).astype(int) - np.asarray(drawing())).mean() < 4, number


def test_what_is_half_transparent_is_half_white() -> None:
    half = drawing()
    half.putalpha(128)
    assert normalize_image(half).getpixel((2, 40)) == (227, 147, 147)
    palette = left_clear(drawing()).quantize(8)  # PA, or P with an alpha for each colour
    assert palette.has_transparency_data
    np.testing.assert_allclose(
        np.asarray(normalize_image(palette)).astype(int), np.asarray(left_white(drawing())), atol=2
    )
    np.testing.assert_allclose(
        np.asarray(normalize_image(palette.convert("PA"))), np.asarray(normalize_image(palette)), atol=2
    )


INVALID = [
    ("zero bytes", b"", "zero bytes, expected a picture"),
    ("text", b"no picture", "not one of PNG, JPEG, WEBP, GIF, TIFF, BMP, or damaged"),
    ("another format", encoded(drawing(), "ICO"), "not one of PNG, JPEG, WEBP, GIF, TIFF, BMP, or damaged"),
    ("a strip", encoded(Image.new("RGB", (1, 20_000))), "1 x 20000 pixels: a side has at most 16384"),
    ("a shorter strip", encoded(Image.new("L", (401, 2))), "401 x 2 pixels: its longer side is more than 200 times"),
    ("a bomb", bomb(), "too many pixels"),
    ("a smaller bomb", bomb(8_001), "8001 x 8001 pixels exceed the limit of 64000000"),
    ("32 bits", encoded(Image.fromarray(np.full((4, 4), 1 << 20, np.int32)), "TIFF"), "expected 0 to 65535"),
    ("8 bits in 32", encoded(Image.new("L", (4, 4), 200).convert("I"), "TIFF"), "from 200 to 200 in mode I"),
    ("above 1", encoded(Image.fromarray(np.full((4, 4), 2.5, np.float32)), "TIFF"), "from 2.5 to 2.5, expected 0 to 1"),
    ("no number", encoded(Image.fromarray(np.full((4, 4), np.nan, np.float32)), "TIFF"), "from nan to nan"),
]


@pytest.mark.parametrize(("data", "cause"), [case[1:] for case in INVALID], ids=[case[0] for case in INVALID])
def test_what_cannot_be_read_is_refused_with_its_cause(data: bytes, cause: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    for read in (lambda: decode_image(data, "x.png"), lambda: read_image(tmp_path / "x")):
        with pytest.raises(DataError, match=f"x.*: .*{cause}"):
            read()
    with pytest.raises(served.RequestError, match=cause.replace("64000000", "16777216")) as error_info:
        served.decode(served.head(data))
    assert error_info.value.status == 400


KINDS: list[tuple[str, dict[str, Any]]] = [
    ("PNG", {}), ("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {}), ("BMP", {}),
    ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"compression": "jpeg"}),
]  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # Pillow's, of what is missing
@pytest.mark.parametrize(("kind", "save_options"), KINDS)
def test_a_truncated_file_is_refused(kind: str, save_options: dict[str, Any], tmp_path: Path) -> None:
    data = encoded(Image.effect_noise((64, 64), 50).convert("P" if kind == "GIF" else "RGB"), kind, **save_options)
    decode_image(data, "whole")
    (file := tmp_path / "picture").write_bytes(data)
    assert content_and_size(file) == (md5_of(data), (64, 64))
    for share in (0.5, 0.9, 0.98):
        with pytest.raises(DataError, match="cut: not a readable picture"):
            decode_image(data[: int(len(data) * share)], "cut")
        file.write_bytes(data[: int(len(data) * share)])
        with pytest.raises(DataError, match="picture: not a readable picture"):
            content_and_size(file)


def test_a_picture_is_looked_at_once_until_it_is_touched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (file := tmp_path / "picture.png").write_bytes(encode_png(Image.new("RGB", (8, 4))))
    first = content_and_size(file)
    with monkeypatch.context() as patch:
        patch.setattr(pictures, "read_encoded", lambda _path: pytest.fail("read again"))
        assert content_and_size(file) == first
    file.write_bytes(encode_png(Image.new("RGB", (9, 5))))
    assert content_and_size(file)[1] == (9, 5)
    file.write_bytes(file.read_bytes()[:-12])  # without its last chunk it has all pixels
    assert content_and_size(file)[1] == read_image(file).size == (9, 5)


def test_limits_hold_before_anything_is_decoded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(decoding, "_load", lambda _image: pytest.fail("pixels were decoded"))
    with pytest.raises(TooLarge, match="64 x 48 .* 100"):
        read_head(encoded(drawing()), 100)
    huge = tmp_path / "huge.png"
    with huge.open("wb") as stream:
        stream.truncate(decoding.MAX_BYTES + 1)  # takes no room on the disk
    monkeypatch.setattr(Path, "read_bytes", lambda _path: pytest.fail("the file was read"))
    with pytest.raises(DataError, match=r"huge\.png: 256000001"):
        read_image(huge)


def test_a_picture_of_the_callers_that_is_damaged_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut.png").write_bytes(encoded(Image.effect_noise((64, 64), 50))[:900])
    with pytest.raises(DataError, match=r"cut\.png: "):
        PairQuery(Image.open(tmp_path / "cut.png"), drawing(), "?")
    with pytest.raises(DataError, match="not str"):
        PairQuery(str(tmp_path / "cut.png"), drawing(), "?")  # type: ignore[arg-type]


@pytest.mark.parametrize("mode", ["I", "I;16B"])
def test_numbers_of_8_bits_in_a_wider_mode_are_refused(mode: str) -> None:
    grey = Image.new("L", (4, 4), 200)
    with pytest.raises(DataError, match=f"200 in mode {mode}"):
        normalize_image(grey.convert(mode))
    assert normalize_image(Image.new("L", (4, 4), 0).convert(mode)).getpixel((0, 0)) == (0, 0, 0)
    dark = decode_image(encoded(Image.fromarray(np.full((4, 4), 200, np.uint16))), "a file of 16 bits")
    assert dark.getpixel((0, 0)) == (0, 0, 0)


def test_grey_and_colour_of_16_bits_are_cut_alike() -> None:
    """The same ramp as 16-bit grey and as 16-bit RGB, at values between those of 8 bits, too."""
    values = np.arange(0, 65_536, 37, dtype=np.uint16)
    grey = decode_image(encoded(Image.fromarray(values[None, :200].copy())), "grey")
    rows = [b"".join(struct.pack(">HHH", v, v, v) for v in values[:200].tolist())]
    assert decode_image(png(16, 2, rows, 200), "colour").tobytes() == grey.tobytes()


def test_a_digest_is_of_the_pixels_however_they_are_stored() -> None:
    image = Image.effect_noise((9, 7), 50).convert("RGB")
    stored = io.BytesIO(encoded(image))
    assert picture_digest(Image.open(stored)) == picture_digest(image)
    assert len({picture_digest(other) for other in (image, image.convert("L"), image.resize((7, 9)))}) == 3
