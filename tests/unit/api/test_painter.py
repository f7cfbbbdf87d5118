"""`paco_core.Painter`: the pictures of `paco paint` and `paco edit`, from a program."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paco_core import Painter
from paco_core.cli import main
from paco_core.io.files import DataError
from tests.support.small_project import adapter, lay_out

PANELS = [
    f"a {size} red cat {place}, flat style." for size in ("small", "big") for place in ("at night", "in the snow")
]


@pytest.fixture
def project(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return lay_out(repository, tmp_path)


def levels_apart(first: Image.Image, second: Image.Image) -> int:
    """Largest difference of two images in levels of 255. Another batch size may round a pixel to the next level."""
    return int(np.abs(np.asarray(first, dtype=int) - np.asarray(second, dtype=int)).max())


@pytest.mark.slow
def test_sets_are_those_of_the_command(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    adapter(project)
    with Painter("flux_t2is") as painter:
        images = painter.paint("a red cat", PANELS, seeds=2, size=64, steps=1, compare=True)
    expected = [("before", 0), ("before", 1), ("after", 0), ("after", 1)]
    assert [(generated.when, generated.seed) for generated in images] == expected
    assert [part.size for part in images[0].panels] == [(32, 32)] * 4 and images[0].lost is None
    quick = ["--seeds", "2", "--size", "64", "--steps", "1", "--compare", "--out", "out"]
    main(["paint", "a red cat", "--panels", *PANELS, *quick])
    for generated in images:
        file = project / "out" / f"{'base' if generated.when == 'before' else 'flux_t2is'}-{generated.seed}.png"
        assert levels_apart(Image.open(file), generated.image) <= 1
    with Painter("flux_t2is") as painter:
        (single,) = painter.paint("a red cat", PANELS, seeds=[1], size=64, steps=1)
    assert levels_apart(single.image, images[3].image) <= 1


def test_a_picture_in_any_form_is_edited(project: Path) -> None:
    image = Image.new("RGB", (64, 64), "red")
    image.save(project / "cat.png")
    painter = Painter("base")
    (by_file,) = painter.edit("cat.png", "Make the cat blue.", seeds=1, steps=1)
    (by_array,) = painter.edit(np.asarray(image), "Make the cat blue.", seeds=1, steps=1)
    assert by_file.image.size == (64, 64) and by_file.image.tobytes() == by_array.image.tobytes()


def test_what_cannot_be_painted_is_an_error_before_a_model_is_loaded(project: Path, tmp_path: Path) -> None:
    for name, message in (
        ("flux_t2is", "policies@flux_t2is"),
        ("kontext_edit", "policies@kontext_edit"),
        ("nobody", "nobody"),
    ):
        with pytest.raises(DataError, match=message):
            Painter(name)
    painter = Painter("base")
    for prompt, settings in (("a red cat", {}), ("a red cat", {"panels": PANELS, "seeds": 0})):
        with pytest.raises(DataError):
            painter.paint(prompt, **settings)  # type: ignore[arg-type]
    for pictures in ("none.png", [], [Image.new("RGB", (64, 64))] * 2):
        with pytest.raises(DataError):
            painter.edit(pictures, "Make it blue.")
    painter._pid -= 1  # as in a fork
    with pytest.raises(RuntimeError):
        painter.paint("a red cat", PANELS)
    assert not painter._loaded
