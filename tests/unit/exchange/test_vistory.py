"""ViStoryBench's data as stories: one record a story and language, one panel a shot, and what is left out."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from paco_core.cli.exchange import import_dataset
from paco_core.data.records.characters import load_images
from paco_core.data.records.records import characters_of_panels, panel_texts, read_prompts
from paco_core.data.records.story_records import story_of
from paco_core.exchange.vistory import import_vistory
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.pictures import read_image
from tests.support.vistory_data import CASTS, shot, write_vistory


def changed(folder: Path, story: str, **keys: object) -> None:
    file = folder / "ViStory" / story / "story.json"
    file.write_text(json.dumps(json.loads(file.read_text("utf-8-sig")) | keys))


def causes(out: Path) -> dict[str, str]:
    return {row["place"].rpartition("ViStory/")[2]: row["cause"] for _, row in read_jsonl(out / "rejected.jsonl")}


def test_each_shot_is_a_panel_of_its_story(tmp_path: Path) -> None:
    figures = import_dataset("vistory", write_vistory(tmp_path / "data"), tmp_path / "out").figures
    assert (figures["stories.en"], figures["stories.ch"], figures["pictures"]) == (2, 2, 6)
    first, second = read_prompts(tmp_path / "out/prompts_en.jsonl")
    assert (first.idx, first.layout, second.layout) == ("vistory-en-01", "1x4", "1x3")
    assert panel_texts(first)[1] == (
        "Close-Up; They play.; it runs 2; Big Brown Rabbit is a brown rabbit; Cat is a red cat; the beach 2"
    )
    assert panel_texts(first)[2] == "Close-Up; They play.; it runs 3; the beach 3"
    story = story_of(first)
    assert [list(shot.characters) for shot in story.shots] == CASTS["01"]
    assert (story.story, story.language) == ("01", "en")
    pictures = [read_image(tmp_path / "out" / name) for name in story.cast["Cat"].pictures]
    assert [picture.size for picture in pictures] == [(64, 64)] * 2
    chinese = read_prompts(tmp_path / "out/prompts_ch.jsonl")[0]
    assert "它跑2" in panel_texts(chinese)[1] and story_of(chinese).language == "ch"


def test_what_cannot_be_used_is_left_out_with_its_cause(tmp_path: Path) -> None:
    folder = write_vistory(tmp_path / "data", {**CASTS, "03": [["Cat"]], "04": [["Cat"]]})
    lacking = shot(3, [])
    del lacking["Shot Perspective Design"]
    blank = shot(4, [], **{"Setting Description": {"en": ""}})
    marked = shot(5, [], **{"Static Shot Description": {"en": "PANEL-1: a cat", "ch": "猫"}})
    shots = [shot(2, ["Cat", "Dog"]), shot(1, []), lacking, shot(2, []), blank, marked]
    changed(folder, "01", Shots=shots)
    for picture in (folder / "ViStory/02/image/Cat").iterdir():
        picture.write_bytes(b"no picture")
    (folder / "ViStory/03/story.json").write_text("{")
    changed(folder, "04", Shots=[lacking])
    counts = import_vistory(folder / "ViStory", tmp_path / "out")
    records = {record.idx: record for record in read_prompts(tmp_path / "out/prompts_en.jsonl")}
    assert list(records) == ["vistory-en-01", "vistory-en-02"]
    story = story_of(records["vistory-en-01"])
    assert [shot.index for shot in story.shots] == [1, 2] and list(story.shots[1].characters) == ["Cat"]
    assert not story_of(records["vistory-en-02"]).cast["Cat"].pictures
    left_out = causes(tmp_path / "out")
    assert left_out.pop("04/story.json").startswith("story: ") and counts["rejected.story"] == 2
    places = {
        "Shots[2]": "shot",
        "Shots[3]": "duplicate",
        "shot 5": "mark",
        "Shots[0]": "'Dog'",
        "shot 4": "text",
    }
    assert all(cause in left_out[f"01/story.json: {place}"] for place, cause in places.items())
    kinds = ("character", "duplicate", "picture", "shot", "story", "text")
    assert all(counts[f"rejected.{kind}"] for kind in kinds)


def test_characters_of_a_story_become_reference_images_of_its_panels(tmp_path: Path) -> None:
    import_dataset("vistory", write_vistory(tmp_path / "data"), tmp_path / "out")
    first, second = read_prompts(tmp_path / "out/prompts_en.jsonl")
    assert [[c.name for c in panel] for panel in characters_of_panels(first)] == CASTS["01"]
    assert [len(load_images(character)) for character in first.characters] == [2, 2]
    assert [c.name for c in second.characters] == ["Cat"]
    assert {path.name for path in (tmp_path / "out/characters").iterdir()} == {
        Path(source).name for record in (first, second) for c in record.characters for source in c.images
    }
    assert [c.name for c in read_prompts(tmp_path / "out/prompts_ch.jsonl")[0].characters] == [
        "Big Brown Rabbit",
        "Cat",
    ]


def test_a_panel_gets_at_most_four_images_of_at_most_four_characters(tmp_path: Path) -> None:
    names = ["Ann", "Bob", "Cid", "Dan", "Eve"]
    folder = write_vistory(tmp_path / "data", {"01": [["Cat"], ["Cat"]]})
    people = {name: {"name_en": name, "prompt_en": "a person"} for name in names}
    for name in names:
        shutil.copytree(folder / "ViStory/01/image/Cat", folder / "ViStory/01/image" / name)
    changed(folder, "01", Characters=people, Shots=[shot(1, names), shot(2, names[1:])])
    import_vistory(folder, tmp_path / "out")
    (record,) = read_prompts(tmp_path / "out/prompts_en.jsonl")
    assert [c.name for c in record.characters] == names[1:] and all(len(c.images) == 1 for c in record.characters)
    assert list(story_of(record).cast) == names
    changed(folder, "01", Shots=[shot(1, names[:2]), shot(2, names[1:2])])
    import_vistory(folder, tmp_path / "two")
    (record,) = read_prompts(tmp_path / "two/prompts_en.jsonl")
    assert [len(c.images) for c in record.characters] == [2, 2]


def test_a_folder_without_stories_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        import_vistory(tmp_path, tmp_path / "out")
    changed(folder := write_vistory(tmp_path / "data", {"01": [["Cat"]]}), "01", Shots=[])
    with pytest.raises(DataError, match="none of its 1 stories"):
        import_vistory(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
