"""Editing prompts about several pictures: files, records, the parts that they lie in, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.config.params import EditPromptsParams
from paco_core.data.prompts.edit_prompts import edit_prompts, foreseen, read_rows
from paco_core.data.records.edit_records import EditRecord, asked_about, connected, read_edit_prompts
from paco_core.io.files import DataError
from paco_core.tasks.edits import refuse_too_many

SIZES = {"a": (24, 16), "b": (16, 32), "c": (40, 16), "d": (16, 16), "e": (8, 24)}


def params(**changes: int) -> EditPromptsParams:
    given = {"source": "file", "file": "edits.jsonl", "count": None, "unseen": 1, "size": 32}
    return EditPromptsParams.model_validate(given | changes)


def file_of(folder: Path, *rows: Any) -> Path:
    for number, (name, size) in enumerate(SIZES.items()):
        Image.new("RGB", size, (40 * number, 90, 120)).save(folder / f"{name}.png")
    file = folder / "edits.jsonl"
    texts = [{"key": f"e{n}", "instruction": f"Edit {n}.", "input_image": given} for n, given in enumerate(rows)]
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return file


def test_a_row_names_several_pictures_and_each_keeps_its_own_shape(tmp_path: Path) -> None:
    file_of(tmp_path, ["b.png", "a.png", "c.png"], ["d.png"], "e.png")
    asked = params(seed=1)
    (tmp_path / "out").mkdir()
    edit_prompts(asked, tmp_path).write(tmp_path / "out")
    records, references = read_edit_prompts(tmp_path / "out")
    assert [one.size for one in references(records[0])] == [SIZES["b"], SIZES["a"], SIZES["c"]]
    assert (records[0].width, records[0].height) == SIZES["b"], "the first is edited"
    keys = [json.loads(line)["reference"] for line in (tmp_path / "out/edits.jsonl").read_text().splitlines()]
    assert [type(key) for key in keys] == [list, str, str], "a single picture is written as before"
    assert len(keys[0]) == 3 and not any("references" in line for line in (tmp_path / "out/edits.jsonl").open())
    assert [len(r.references) for r in foreseen(asked, tmp_path)] == [3, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_share_a_picture_lie_in_one_part(tmp_path: Path, seed: int) -> None:
    file_of(tmp_path, ["a.png", "b.png"], ["c.png", "b.png"], "c.png", "d.png", "e.png")
    found = edit_prompts(params(seed=seed), tmp_path)
    parts = [record.part for record in found.records]
    assert len(set(parts[:3])) == 1 and set(parts) == {"train", "unseen"}
    by_part = {p: {n for r in found.records if r.part == p for n in r.references} for p in ("train", "unseen")}
    assert not by_part["train"] & by_part["unseen"]
    with pytest.raises(DataError, match=r"all of the 3 pictures \(those that rows name together count as one\)"):
        edit_prompts(params(seed=seed, unseen=3), tmp_path)


def test_groups_of_names_are_those_that_rows_connect() -> None:
    assert connected([["b", "a"], ["c"], ["d", "c"], ["e", "a"]]) == dict.fromkeys("abe", "a") | dict.fromkeys(
        "cd", "c"
    )


def test_a_row_with_one_unusable_picture_is_left_out_whole(tmp_path: Path) -> None:
    found = read_rows(file_of(tmp_path, ["a.png", "lost.png"], [], ["b.png", "../b.png"], "c.png", {"no": 1}))
    assert [r.idx for r in found.records] == ["e3"] and len(found.pictures) == 1
    causes = {place.rpartition(":")[2]: cause for place, cause in found.rejected}
    assert set(causes) == {"1", "2", "3", "5"} and "lost.png" in causes["1"]
    assert causes["2"].startswith("record: input_image") and causes["5"].startswith("record: input_image")


def record(count: int, prompt: str = "p") -> EditRecord:
    row = {"idx": "many", "prompt": prompt, "theme": "t", "task_name": "x", "height": 8, "width": 8, "part": "train"}
    return EditRecord.model_validate({**row, "reference": [f"r{n}" for n in range(count)]})


def test_a_record_names_at_least_one_reference() -> None:
    with pytest.raises(ValueError, match="reference"):
        record(0)
    one = record(1)
    assert one.model_dump()["reference"] == "r0" and EditRecord.model_validate(one.model_dump()) == one
    assert json.loads(record(2).model_dump_json())["reference"] == ["r0", "r1"]


@pytest.mark.parametrize(
    ("family", "count"), [("flux_kontext", 2), ("qwen_image_edit", 2), ("qwen_image_edit_plus", 4), ("flux2_klein", 20)]
)
def test_a_family_refuses_more_than_it_takes_by_name(family: str, count: int) -> None:
    refuse_too_many(family, [record(1)])
    with pytest.raises(
        DataError, match=rf"family {family} changes .*editing prompt many came with {count}; leave some"
    ):
        refuse_too_many(family, [record(1), record(count)])
    with pytest.raises(DataError, match="paints from text alone"):
        refuse_too_many("flux", [record(1)])


@pytest.mark.parametrize(
    ("instruction", "count", "places"),
    [
        ("Make it red.", 1, [0]),
        ("Put the hat of image 2 on the dog.", 3, [0, 1]),
        ("Combine pictures 2 and 3.", 4, [0, 1, 2]),
        ("Give image 1 the sky of the third photo", 3, [0, 2]),
        ("as in the last reference image", 4, [0, 3]),
        ("Blend all of them.", 3, [0, 1, 2]),
        ("Sharpen the first image", 2, [0, 1]),
        ("把第二张图的帽子给狗", 3, [0, 1]),
        ("image 9, a picture of 3 dogs", 2, [0, 1]),
        ("Use images 2, 3, and 4.", 5, [0, 1, 2, 3]),
        ("Put the hat of image 2 next to the dog with warmth.", 4, [0, 1]),
        ("把图2、图3的衣服给狗穿上", 4, [0, 1, 2]),
    ],
)
def test_an_edit_is_judged_by_the_references_that_its_instruction_names(
    instruction: str, count: int, places: list[int]
) -> None:
    assert asked_about(instruction, count) == places


@pytest.mark.parametrize(
    "instruction",
    [
        "Give the dog what is worn in the second and third images.", "Place the persons of the last two images here.",
        "The coat of image 3, the hat of the 2nd image.", "Add the people of images 2-4.", "Hat of image 2, image III.",
        "Use images 2/3.", "image_2's hat and image 3's coat", "Hat of image 2, coat of image two.", "image 2, plus 4",
        "the image to the right of image 2", "image 2 and the others", "the second image from the end", "image 2 and 9",
        "image 2 and the one after it", "image 2 and its neighbour", "image 2, several more", "image 2, subject B",
        "image 2 et l'image trois", "Bild 2, drittes Bild", "画像2の帽子", "café of image 2 ③", "image 12 and image 2",
        "把图2和3的衣服给狗", "把第二、三张图的人放进房间", "把后两张图的人放进图1", "参考图2、3、4", "图2和其他的",
    ],
)  # fmt: skip
def test_all_references_count_where_a_sentence_may_name_more_than_is_read(instruction: str) -> None:
    assert asked_about(instruction, 5) == [0, 1, 2, 3, 4]
