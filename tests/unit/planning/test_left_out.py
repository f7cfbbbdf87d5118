"""`paco check` and partly unusable files: files with rows that are skipped, and layouts that are invalid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.config import profiles
from paco_core.config.params import Params, ParamsError, parse
from paco_core.io.files import DataError
from paco_core.planning.planned_prompts import edits_of, list_unusable_rows, sets_of
from paco_core.tasks.sets import read_sets
from tests.support.dataset_world import records

PROMPT = records(1)[0].model_dump(mode="json")


def editing(repository: Path, file: Path, *rows: tuple[str, list[str]]) -> Params:
    """Editing prompts of a file, of (key, pictures)."""
    lines = [{"key": key, "instruction": "Make it red.", "input_image": pictures} for key, pictures in rows]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    tree = profiles.resolve(repository, "storybook")
    tree["edit_prompts"] |= {"source": "file", "file": str(file), "count": None, "unseen": 1}
    tree["edits"]["painters"], tree["pairs"]["editing"]["count"] = [], 0
    return parse(tree)


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    for number in range(3):
        Image.new("RGB", (64, 64), (90 * number, 0, 0)).save(tmp_path / f"{number}.png")
    cut(tmp_path / "no.png")
    return tmp_path


def test_rows_whose_pictures_cannot_be_read_are_named_before_a_run(repository: Path, pictures: Path) -> None:
    """The other rows are used, as the stage uses them."""
    file = pictures / "edits.jsonl"
    params = editing(
        repository, file, ("a", ["0.png"]), ("lost", ["1.png", "gone.png"]), ("b", ["2.png"]), ("no", ["no.png"])
    )
    assert [record.idx for record in edits_of(params, repository)] == ["a", "b"]
    first, second = list_unusable_rows(params, repository)
    assert first == f"edit_prompts.file: left out: {file}:2: picture: {pictures / 'gone.png'}: no such picture"
    assert second.startswith(f"edit_prompts.file: left out: {file}:4: picture: {pictures / 'no.png'}: ")
    assert list_unusable_rows(editing(repository, file, ("a", ["0.png"]), ("b", ["2.png"])), repository) == []


def cut(file: Path) -> None:
    """Keep of a picture its head and half of its pixels."""
    Image.effect_noise((64, 64), 50).convert("RGB").save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def test_triples_whose_pictures_cannot_be_read_are_named_before_a_run(repository: Path, pictures: Path) -> None:
    cut(pictures / "1.png")
    file, tree = pictures / "triples.jsonl", profiles.resolve(repository, "storybook")
    tree["pairs"]["editing"] |= {"source": "import", "file": str(file), "count": None}
    params = parse(tree)
    row = {"original": "0.png", "edited": "2.png", "instruction": "Make it red."}
    file.write_text("".join(json.dumps({**row, "edited": name}) + "\n" for name in ("2.png", "1.png", "gone.png")))
    first, second = list_unusable_rows(params, repository)
    expected = f"{file}:2: picture: {pictures / '1.png'}: not a readable picture"
    assert first.startswith(f"pairs.editing.file: left out: {expected}")
    assert second.startswith(f"pairs.editing.file: left out: {file}:3: picture: {pictures / 'gone.png'}: ")
    file.write_text(json.dumps({**row, "edited": "gone.png"}))
    assert list_unusable_rows(params, repository) == [], "one sentence a fault"


def test_a_file_without_a_usable_row_is_refused(repository: Path, pictures: Path) -> None:
    params = editing(repository, pictures / "edits.jsonl", ("lost", ["gone.png"]))
    with pytest.raises(DataError, match=r"none of its 1 rows can be used, e\.g\. .*gone\.png: no such picture"):
        edits_of(params, repository)
    assert list_unusable_rows(params, repository) == [], "one sentence a fault"


def written(repository: Path, file: Path, *layouts: str) -> Params:
    """Prompts of a file, of these layouts by their keys."""
    rows = [{**PROMPT, "idx": f"r{number}", "layout": layout} for number, layout in enumerate(layouts)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    tree = profiles.resolve(repository, "storybook")
    tree["prompts"] |= {"engine": "import", "source": str(file), "count": None, "layout": None}
    tree["diverse_prompts"]["target"] = None
    return parse(tree)


@pytest.mark.parametrize("layout", ["0x2", "2x", "2x2x2", "-1x2", ""])
def test_a_layout_that_is_none_is_named_with_what_is_one(repository: Path, tmp_path: Path, layout: str) -> None:
    expected = f"{layout!r} is not a layout; expected rows x columns from 1 to 99, such as 2x3"
    for layout_value in (layout, ["2x2", layout]):
        tree: dict[str, Any] = profiles.resolve(repository, "storybook")
        tree["prompts"]["layout"] = layout_value
        with pytest.raises(ParamsError) as raised:
            parse(tree)
        assert str(raised.value) == f"params.yaml: prompts.layout: {expected} (got {layout_value!r})"
    file = tmp_path / "prompts.jsonl"
    with pytest.raises(DataError) as raised_by_file:
        sets_of(written(repository, file, layout), repository)
    assert f"{file}:1: record: layout: {expected}" in str(raised_by_file.value)
    (remark,) = list_unusable_rows(written(repository, file, "2x2", layout), repository)
    assert remark == f"prompts.source: left out: {file}:2: record: layout: {expected}"


@pytest.mark.parametrize("usable", [True, False])
def test_every_row_that_cannot_be_used_is_named(repository: Path, tmp_path: Path, usable: bool) -> None:
    """One line per cause with all its rows, also where the file is refused: its error names the first row only."""
    file = tmp_path / "prompts.jsonl"
    params = written(repository, file, "2x", *["2x2"] * usable, "0x2", "2x")
    numbers = ("1, 4", "3") if usable else ("1, 3", "2")
    for remark, rows, layout in zip(list_unusable_rows(params, repository), numbers, ("2x", "0x2"), strict=True):
        assert remark.startswith(f"prompts.source: left out: {file}:{rows}: record: layout: {layout!r} is not a layout")


def test_a_recipes_file_of_prompts_is_refused_with_all_its_faults(tmp_path: Path) -> None:
    """No row of it is left out, because a published split must be complete."""
    file = tmp_path / "train.jsonl"
    rows = [{**PROMPT, "idx": f"r{number}", "layout": layout} for number, layout in enumerate(("0x2", "2x2", "2x"))]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(DataError) as raised:
        read_sets(file)
    assert f"{file}:1: " in str(raised.value) and f"{file}:3: " in str(raised.value)
    file.write_text("")
    with pytest.raises(DataError, match="holds no prompt"):
        read_sets(file)


def test_stories_that_cannot_be_used_are_named_before_a_run(repository: Path, pictures: Path) -> None:
    file, tree = pictures / "stories.jsonl", profiles.resolve(repository, "storybook")
    tree["pairs"]["characters"]["stories"] = str(file)
    row = {"characters": [{"name": "Mia", "images": ["0.png"]}], "panels": [{"image": "2.png", "text": "Mia"}]}
    lost = {**row, "panels": [{"image": "gone.png", "text": "Mia"}]}
    file.write_text("".join(json.dumps(story) + "\n" for story in (row, lost, {**row, "characters": []})))
    first, second = list_unusable_rows(parse(tree), repository)
    assert first.startswith(f"pairs.characters.stories: left out: {file}:2: picture: {pictures / 'gone.png'}")
    assert second.startswith(f"pairs.characters.stories: left out: {file}:3: record: characters")
