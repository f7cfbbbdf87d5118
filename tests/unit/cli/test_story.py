"""`paco story` and `Painter.story` in a project whose recipe is the storybook's small FLUX.2 [klein]."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core import Painter
from paco_core.cli import main
from paco_core.config.params import load
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest, read_image
from paco_core.operations.stories import parse_characters, story_policy, story_record
from paco_core.sampling.origin import read_origins
from tests.support import tiny_vlm
from tests.support.small_project import adapter, lay_out, lay_out_klein

PANELS = ["Fox runs at night", "Mia meets Fox in the snow", "a beach"]
QUICK = ["--steps", "2", "--size", "128"]


@pytest.fixture
def project(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    root = lay_out_klein(repository, tmp_path)
    for name, color in {"fox": "red", "mia": "blue", "side": "cyan"}.items():
        Image.new("RGB", (64, 80), color).save(root / f"{name}.png")
    return root


CHARACTERS = ["--character", "Fox=fox.png", "--character", "Mia=mia.png,side.png"]


@pytest.mark.slow
def test_a_story_is_generated_before_and_after_training_with_a_strip(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter(project)
    main(["story", *CHARACTERS, *PANELS, *QUICK, "--out", "out", "--json"])
    output = json.loads(capsys.readouterr().out)
    assert list(output["stories"]) == ["base", "flux_t2is"]
    pictures = [Image.open(file) for file in output["stories"].values()]
    assert {picture.size for picture in pictures} == {(192, 64)} and pictures[0].tobytes() != pictures[1].tobytes()
    places = [(row["panel"], row["character"]) for row in output["scores"]]
    assert places == [(1, "Fox"), (2, "Fox"), (2, "Mia")]
    assert all(row["base"] is None for row in output["scores"])  # there is no reward model yet
    (origin,) = read_origins(project / "out/flux_t2is-0.png")
    assert origin.references == tuple(picture_digest(read_image(project / f"{n}.png")) for n in ("fox", "mia", "side"))
    assert Image.open(output["strip"]).width == 192


@pytest.mark.slow
def test_a_reward_model_scores_each_panel_and_character(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_vlm.build(project / paths.REWARD_MERGED)
    main(["story", *CHARACTERS, *PANELS, *QUICK, "--out", "out", "--json"])
    output = json.loads(capsys.readouterr().out)
    assert list(output["stories"]) == ["base"]  # the policy is not trained yet
    assert all(0 <= row["base"] <= 1 for row in output["scores"])
    main(["story", *CHARACTERS, *PANELS, *QUICK, "--out", "out"])
    assert "panel 2  Mia" in capsys.readouterr().out


@pytest.mark.slow
def test_images_in_memory_give_the_story_of_their_files_and_change_the_panels(project: Path) -> None:
    files = {"Fox": "fox.png", "Mia": ["mia.png", "side.png"]}
    memory: dict[str, Any] = {
        "Fox": read_image(project / "fox.png"),
        "Mia": [np.asarray(read_image(project / "mia.png")), project / "side.png"],
    }
    with Painter("base") as painter:
        (first,) = painter.story(PANELS, files, steps=2)
        (second,) = painter.story(PANELS, memory, steps=2)
        (other,) = painter.story(PANELS, {**files, "Fox": "side.png"}, steps=2)
    assert len(first.panels) == 3 and first.panels[0].size == (64, 64)
    assert [c.name for c in second.record.characters] == ["Fox", "Mia"]
    assert first.image.tobytes() == second.image.tobytes() and first.record.idx == other.record.idx
    assert first.image.tobytes() != other.image.tobytes()  # of equal noise


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--character", "fox.png", *PANELS], "NAME=IMAGE"),
        (["--character", "Fox=fox.png,", *PANELS], "NAME=IMAGE"),
        (["--character", "Fox=fox.png", "--character", "Fox=mia.png", *PANELS], "commas"),
        (["--character", "Fox=fox.png", "--character", "fox=mia.png", *PANELS], "two characters"),
        (["--character", "Wolf=fox.png", *PANELS], "Wolf"),
        (["--character", "Fox=absent.png", *PANELS], "absent.png"),
        (["--character", "Fox=fox.png", "Fox runs"], "panel"),
        (["--character", "Fox=fox.png,mia.png,side.png", "--character", "Mia=mia.png,side.png", *PANELS], "5 images"),
    ],
)
def test_what_cannot_be_a_story_is_refused_before_a_model_is_loaded(
    project: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], word: str
) -> None:
    with pytest.raises(SystemExit):
        main(["story", *arguments])
    assert word in capsys.readouterr().err and not (project / "painted").exists()


def test_a_recipe_that_takes_no_references_is_refused_with_the_families_that_do(
    repository: Path, tmp_path: Path
) -> None:
    root = lay_out(repository, tmp_path)
    params = load(root / "params.yaml")
    for name in (None, "base"):
        with pytest.raises(DataError, match="flux2_klein"):
            story_policy(root, params, name)


def test_the_policy_of_a_story_generates_one_panel_after_another(project: Path) -> None:
    by = story_policy(project, load(project / "params.yaml"), None)
    assert (by.name, by.adapter, by.recipe.panels) == ("flux_t2is", None, "one_by_one")
    record = story_record(PANELS, parse_characters(["Fox=fox.png", "Mia=mia.png,side.png"]), by.recipe)
    assert record.layout == "1x3" and [len(c.images) for c in record.characters] == [1, 2]
