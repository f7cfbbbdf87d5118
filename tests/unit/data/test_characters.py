"""Characters of prompt records: names in panel texts, checked images, and files that keep both."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.data.prompts.prompts import read_imported_prompts
from paco_core.data.records.characters import Character, image_digests, load_images, named_characters
from paco_core.data.records.prompt_content import prompt_key
from paco_core.data.records.prompt_text import prompt_from_theme
from paco_core.data.records.records import PromptRecord, characters_of_panels, read_prompts, write_prompts
from paco_core.grpo.panel_references import count_panel_references, panel_references
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.rejected import Rejected
from paco_core.tasks.sets import SETS, read_sets
from tests.support.grpo_toys import recipe

PANELS = ("Fox wakes at dawn", "Mia finds Fox", "a stream")


def row(characters: object, panels: tuple[str, ...] = PANELS, idx: str = "story") -> dict[str, Any]:
    prompt = str(prompt_from_theme("a day in the wood", panels, f"1x{len(panels)}"))
    return {
        "idx": idx, "prompt": prompt, "height": 64, "width": 64 * len(panels), "layout": f"1x{len(panels)}",
        "theme": "a day in the wood", "category": "Story", "task_name": "Comic Story", "criteria": {},
        "characters": characters,
    }  # fmt: skip


def picture(folder: Path, name: str, size: tuple[int, int] = (64, 64), color: object = "red") -> str:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGBA" if isinstance(color, tuple) and len(color) == 4 else "RGB", size, color).save(folder / name)  # type: ignore[arg-type]
    return name


def write_rows(folder: Path, *rows: dict[str, Any]) -> Path:
    file = folder / "stories.jsonl"
    file.write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    return file


@pytest.fixture
def characters(tmp_path: Path) -> list[dict[str, Any]]:
    return [
        {"name": "Fox", "images": [picture(tmp_path, "images/fox.png")]},
        {
            "name": "Mia",
            "images": [picture(tmp_path, f"images/mia{n}.jpg", color=c) for n, c in enumerate(("blue", "cyan"))],
        },
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("Mia waves", ["Mia"]),
        ("They fly to Miami", []),
        ("mia's fox and FOX MULDER", ["Fox", "Mia", "Fox Mulder"]),
        ("Fox  Mulder runs", ["Fox Mulder"]),
        ("Foxes run", []),
        ("小兔在海边跑", ["小兔"]),
        ("Mia在海边", ["Mia"]),
        ("Ｍｉａ waves", ["Mia"]),
    ],
)
def test_whole_words_name_a_character_and_the_longest_name_wins(text: str, names: list[str]) -> None:
    characters = [Character(name, ("x",)) for name in ("Fox", "Mia", "Fox Mulder", "小兔")]
    assert [character.name for character in named_characters(text, characters)] == names


def test_a_record_gives_the_characters_of_each_panel_and_their_images(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    (record,) = read_prompts(write_rows(tmp_path, row(characters)))
    assert [[c.name for c in panel] for panel in characters_of_panels(record)] == [["Fox"], ["Fox", "Mia"], []]
    assert [len(load_images(character)) for character in record.characters] == [1, 2]
    assert load_images(record.characters[0])[0].getpixel((0, 0)) == (255, 0, 0)
    assert not record.unknown_keys


def test_a_record_without_characters_is_written_as_before(tmp_path: Path) -> None:
    plain = row(None)
    del plain["characters"]
    (record,) = read_prompts(write_rows(tmp_path, plain))
    assert not record.characters and "characters" not in record.model_dump()
    assert record.model_dump() == plain


def test_written_records_name_images_by_content_and_need_no_other_folder(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    (record,) = read_prompts(write_rows(tmp_path, row(characters)))
    write_prompts(tmp_path / "b" / "prompts.jsonl", [record])
    write_prompts(tmp_path / "c" / "prompts.jsonl", read_prompts(tmp_path / "b" / "prompts.jsonl"))
    for path in (tmp_path / "images").iterdir():
        path.rename(tmp_path / path.name)
    assert (tmp_path / "b/prompts.jsonl").read_bytes() == (tmp_path / "c/prompts.jsonl").read_bytes()
    (copy,) = read_prompts(tmp_path / "c" / "prompts.jsonl")
    assert [len(load_images(character)) for character in copy.characters] == [1, 2]
    assert len({path.name for path in (tmp_path / "c/characters").iterdir()}) == 3


def test_the_images_of_characters_are_part_of_what_a_prompt_is(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    (record,) = read_prompts(write_rows(tmp_path, row(characters)))
    picture(tmp_path, "images/fox.png", color="green")
    (other,) = read_prompts(write_rows(tmp_path, row(characters)))
    assert prompt_key(record.model_copy(update={"characters": ()})) != prompt_key(other)
    before = image_digests(record.characters)
    picture(tmp_path, "images/fox.png", color="black")
    assert image_digests(record.characters)[0] != before[0]


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"name": "Wolf"}, "characters: 0.name"),
        ({"name": "MIA "}, "1.name"),
        ({"images": []}, "0.images"),
        ({"images": ["images/fox.png"] * 4}, "0.images"),
        ({"images": ["images/absent.png"]}, "0.images.0"),
        ({"images": ["../fox.png"]}, "0.images.0"),
        ({"images": ["clear.png"]}, "0.images.0"),
        ({"images": ["images/fox.png", "dot.png"]}, "0.images.1"),
        ({"images": ["huge.png"]}, "0.images.0"),
        ({"images": ["text.png"]}, "0.images.0"),
        ({"name": "  "}, "0.name"),
        ({"name": 7}, "0.name"),
    ],
)
def test_a_character_that_cannot_be_used_is_refused_with_line_and_key(
    tmp_path: Path, characters: list[dict[str, Any]], change: dict[str, Any], key: str
) -> None:
    picture(tmp_path, "clear.png", color=(0, 0, 0, 0))
    picture(tmp_path, "dot.png", (1, 1))
    Image.new("1", (10_000, 10_000)).save(tmp_path / "huge.png")
    (tmp_path / "text.png").write_text("no image")
    characters[0] |= change
    with pytest.raises(DataError, match=rf"stories\.jsonl:1: .*{key}"):
        read_prompts(write_rows(tmp_path, row(characters)))


def test_half_transparent_images_are_put_on_white(tmp_path: Path, characters: list[dict[str, Any]]) -> None:
    image = Image.new("RGBA", (64, 64), (0, 0, 0, 0))
    image.paste((255, 0, 0, 255), (0, 0, 32, 64))
    image.save(tmp_path / "cut.png")
    characters[0]["images"] = ["cut.png"]
    (record,) = read_prompts(write_rows(tmp_path, row(characters)))
    loaded = load_images(record.characters[0])[0]
    assert (loaded.getpixel((0, 0)), loaded.getpixel((63, 0))) == ((255, 0, 0), (255, 255, 255))


@pytest.mark.parametrize("count", [0, 5])
def test_a_story_has_one_to_four_characters(tmp_path: Path, count: int) -> None:
    names = [f"Fox{number}" for number in range(count)]
    rows = [{"name": name, "images": [picture(tmp_path, f"{name}.png")]} for name in names]
    with pytest.raises(DataError, match="characters"):
        read_prompts(write_rows(tmp_path, row(rows, (" and ".join(names) or "nobody", "a stream"))))


def test_all_problems_of_a_file_are_reported(tmp_path: Path, characters: list[dict[str, Any]]) -> None:
    wolf = [{**characters[0], "name": "Wolf", "images": ["absent.png", "lost.png"]}]
    rows = [
        row(characters),
        row(wolf, idx="second"),
        row(characters[:1], ("Fox",), idx="third"),
        row({"Fox": 1}, idx="fourth"),
    ]
    with pytest.raises(DataError) as error:
        read_sets(write_rows(tmp_path, *rows))
    for part in ("stories.jsonl:2", "absent.png", "lost.png", "stories.jsonl:3", "stories.jsonl:4", "import vistory"):
        assert part in str(error.value)
    rejected = Rejected()
    assert (
        len(read_imported_prompts(tmp_path / "stories.jsonl", [], None, rejected).records) == 1 and len(rejected) == 3
    )


def test_a_missing_image_is_named_with_its_key_and_a_remedy_and_hides_no_other_problem(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    (tmp_path / "folder.png").mkdir()
    characters[0] |= {"name": "Wolf", "images": ["absent.png", "folder.png"]}
    characters.append({"name": "Bear", "images": []})
    with pytest.raises(DataError) as error:
        read_sets(write_rows(tmp_path, row(characters)))
    text = str(error.value)
    for key, file in (("0.images.0 of Wolf", "absent.png"), ("0.images.1 of Wolf", "folder.png")):
        problem = next(part for part in text.split("; ") if key in part)
        assert str(tmp_path / file) in problem
    assert text.count("correct its path") == 2
    assert "0.name: no panel text names 'Wolf'" in text and "2.images" in text and "1.name" not in text


def test_a_recipe_refuses_more_reference_images_than_its_family_accepts(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    eleven = [
        {"name": name, "images": [picture(tmp_path, f"{name}{n}.png") for n in range(count)]}
        for name, count in (("Ann", 3), ("Bob", 3), ("Cid", 3), ("Dan", 2))
    ]
    file = write_rows(tmp_path, row(characters), row(eleven, ("Ann, Bob, Cid and Dan", "Ann and Bob"), idx="eleven"))
    small = [{**characters[0], "images": [picture(tmp_path, "small.png", (48, 96))]}]
    test = tmp_path / "test.jsonl"
    other = row(small, ("Fox", "a tree"), idx="small") | {"theme": "a night"}
    test.write_text(json.dumps(other) + "\n")
    stories = recipe(
        family="flux2_klein", panels="one_by_one", eval_prompts=1, prompts={"train": str(file), "test": str(test)}
    )
    with pytest.raises(DataError, match=r"stories\.jsonl:2: .*11 images.*panel 2 names Ann, Bob with 6"):
        SETS.split(stories, lambda path: path)
    write_rows(tmp_path, row(characters))
    with pytest.raises(DataError, match=r"test\.jsonl:1: .*48 x 96"):
        SETS.split(stories, lambda path: path)
    other = row(characters, ("Mia", "Fox"), idx="other") | {"theme": "a night"}
    test.write_text(json.dumps(other) + "\n")
    assert len(SETS.split(stories, lambda path: path).trained) == 1
    test.write_text(json.dumps(other | {"characters": small, "prompt": other["prompt"].replace("Mia", "Fox")}) + "\n")
    together = stories.model_copy(update={"panels": "together"})
    assert len(SETS.split(together, lambda path: path).trained) == 1


def test_references_are_images_of_named_characters_then_the_latest_panels(
    tmp_path: Path, characters: list[dict[str, Any]]
) -> None:
    (record,) = read_prompts(write_rows(tmp_path, row(characters)))
    plain = record.model_copy(update={"characters": ()})
    assert count_panel_references(record, 4, 4) == [1, 4, 2]
    assert count_panel_references(record, 1, 4) == [1, 4, 1]
    assert count_panel_references(record, 4, 3) == [1, 3, 2]
    assert count_panel_references(plain, 4, 4) == [0, 1, 2]
    panels = [Image.new("RGB", (8, 8), color) for color in ("cyan", "black", "white")]
    fox, images = record.characters[0], load_images(record.characters[0])
    assert panel_references([fox], panels, 4, 3) == [*images, *panels[1:]]
    assert panel_references([fox], panels, 1, 4) == [*images, panels[2]]
    assert panel_references([fox] * 4, panels, 4, 4) == images * 4
    assert panel_references([], [], 4, 4) == []


def test_characters_in_memory_need_no_file(characters: list[dict[str, Any]], tmp_path: Path) -> None:
    import base64

    data = (tmp_path / "images/fox.png").read_bytes()
    url = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    record = PromptRecord.model_validate(row((Character("Fox", (url,)),)))
    assert load_images(record.characters[0])[0].size == (64, 64)
    write_prompts(tmp_path / "out/prompts.jsonl", [record])
    ((_, written),) = read_jsonl(tmp_path / "out/prompts.jsonl")
    assert (tmp_path / "out" / written["characters"][0]["images"][0]).read_bytes() == data
