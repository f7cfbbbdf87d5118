"""Editing prompts: drawn or from a file, about one picture or several, and what base editors painted for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.config.params import EditPromptsParams, EditQuestion
from paco_core.data.checks import edit_prompts_are_held_apart, painted_edits_are_of_training_prompts
from paco_core.data.pairs.editing import (
    FILE,
    EditingPairs,
    GeneratedEdit,
    add_generated_edits,
    read_generated_edits,
    write_generated_edits,
)
from paco_core.data.prompts.edit_prompts import (
    EditPrompts,
    make_edit_prompts,
    plan_edits,
    read_edit_rows,
    storybook_edit_prompts,
)
from paco_core.data.records.edit_records import (
    EditRecord,
    evaluated_references,
    of_part,
    read_edit_prompts,
    requested_edit,
)
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError, read_jsonl, write_jsonl
from paco_core.storybook.editing import Edit
from paco_core.storybook.world import Panel
from paco_core.tasks.edits import validate_reference_counts


def params(**changes: Any) -> EditPromptsParams:
    return EditPromptsParams.model_validate({"source": "storybook", "count": 12, "unseen": 4, "size": 32} | changes)


def written(prompts: EditPrompts, folder: Path) -> Path:
    folder.mkdir()
    prompts.write(folder)
    return folder


def test_a_drawn_prompt_asks_for_one_change_of_what_its_picture_shows(tmp_path: Path) -> None:
    records, references = read_edit_prompts(written(make_edit_prompts(params(), tmp_path), tmp_path / "out"))
    assert len(records) == 12 and len({r.references for r in records}) == 12
    for record in records:
        assert record.before is not None and record.trait is not None and record.word is not None
        before = Panel(**record.before)  # type: ignore[arg-type]
        after = before.with_trait(record.trait, record.word)
        assert after != before and Edit(before, after, record.trait).instruction == record.prompt
        (picture,) = references(record)
        assert picture.size == (record.width, record.height) == (32, 32)
    assert len(of_part(records, "unseen")) == 4 and len(of_part(records, "train")) == 8


def test_equal_settings_give_equal_bytes_and_more_prompts_begin_with_the_fewer(tmp_path: Path) -> None:
    first, second = (written(make_edit_prompts(params(), tmp_path), tmp_path / name) for name in ("a", "b"))
    for file in ("edits.jsonl", "pictures/images.tar"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
    assert [r.idx for r in storybook_edit_prompts(20, 32, 0).records[:12]] == [
        r.idx for r in storybook_edit_prompts(12, 32, 0).records
    ]
    assert storybook_edit_prompts(12, 32, 0).records == storybook_edit_prompts(20, 32, 0).records[:12]
    assert storybook_edit_prompts(12, 32, 1).records != storybook_edit_prompts(12, 32, 0).records


def rows_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for number, name in enumerate(("a", "b", "c")):
        Image.new("RGB", (24 + 8 * number, 16), (40 * number, 90, 120)).save(folder / f"{name}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    file = folder / "gedit.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


BOTH_LANGUAGES = [
    {"key": f"{name}-{language}", "instruction": text, "input_image": f"{name}.png", "instruction_language": language,
     "task_type": "color_alter", "Intersection_exist": True}
    for name in ("a", "b", "c")
    for language, text in (("en", f"Make {name} red."), ("cn", f"把{name}变成红色"))
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_both_languages_of_a_picture_lie_in_one_part(tmp_path: Path, seed: int) -> None:
    file = rows_file(tmp_path, BOTH_LANGUAGES)
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())  # the same picture under another name
    copied_row = {"key": "again", "instruction": "Make it blue.", "input_image": "copy.png"}
    file.write_text(file.read_text(encoding="utf-8") + json.dumps(copied_row))
    prompts = make_edit_prompts(params(source="file", count=None, unseen=1, file="gedit.jsonl", seed=seed), tmp_path)
    parts = {record.idx: record.part for record in prompts.records}
    assert len(parts) == 7 and set(parts.values()) == {"train", "unseen"}
    assert all(parts[f"{name}-en"] == parts[f"{name}-cn"] for name in "abc") and parts["again"] == parts["a-en"]
    records, references = read_edit_prompts(written(prompts, tmp_path / "out"))
    chosen = next(r for r in records if r.idx == "b-cn")
    assert (chosen.prompt, chosen.language) == ("把b变成红色", "cn")
    assert [image.size for image in references(chosen)] == [(32, 16)]


def test_bad_rows_are_named_and_counted(tmp_path: Path) -> None:
    bad = [
        {"key": "no-text", "instruction": "", "input_image": "a.png"},
        {"key": "no-key", "input_image": "a.png"},
        {"key": "lost", "instruction": "Cut it.", "input_image": "lost.png"},
        {"key": "broken", "instruction": "Cut it.", "input_image": "broken.png"},
        BOTH_LANGUAGES[0],
        {"key": "outside", "instruction": "Cut it.", "input_image": "/etc/hostname"},
        {"key": "mark", "instruction": "Cut it <|im_end|>.", "input_image": "a.png"},
    ]
    file = rows_file(tmp_path, [BOTH_LANGUAGES[0], *bad, BOTH_LANGUAGES[2]])
    prompts = read_edit_rows(file)
    assert [r.idx for r in prompts.records] == ["a-en", "b-en"] and len(prompts.pictures) == 2
    kinds = [cause.partition(":")[0] for _, cause in prompts.rejected]
    assert kinds == ["record", "record", "picture", "picture", "duplicate", "picture", "record"]
    assert [place.rpartition(":")[2] for place, _ in prompts.rejected] == ["2", "3", "4", "5", "6", "7", "8"]


def test_a_file_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    file = rows_file(tmp_path, [{"instruction": "Cut it.", "input_image": "lost.png"}])
    with pytest.raises(DataError, match=r"none of its 1 rows .*gedit.jsonl:1: .*lost.png"):
        read_edit_rows(file)
    with pytest.raises(DataError, match="unseen=3"):
        make_edit_prompts(params(source="file", file=rows_file(tmp_path, BOTH_LANGUAGES).name, unseen=3), tmp_path)


def test_damaged_records_and_pictures_are_named(tmp_path: Path) -> None:
    folder = written(storybook_edit_prompts(4, 32, 0), tmp_path / "out")
    records, references = read_edit_prompts(folder)
    plain = {k: v for k, v in records[0].model_dump().items() if k in PromptRecord.model_fields}
    with pytest.raises(DataError, match=records[0].idx):
        references(PromptRecord.model_validate(plain))
    lines = (folder / "edits.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    for changed, fault in (
        ([*lines[:2], json.dumps(row | {"reference": "gone"}), lines[3]], f"{row['idx']} names gone"),
        ([lines[0], json.dumps(row | {"prompt": ""})], "edits.jsonl:2: prompt"),
        ([lines[0], lines[0]], "edits.jsonl:2: idx e00000"),
    ):
        (folder / "edits.jsonl").write_text("\n".join(changed))
        with pytest.raises(DataError, match=fault):
            read_edit_prompts(folder)
    tar = folder / "pictures" / "images.tar"
    tar.write_bytes(tar.read_bytes()[:600])
    with pytest.raises(DataError, match=records[0].idx):
        [references(record) for record in records]


def test_the_check_sees_a_picture_in_both_parts(tmp_path: Path) -> None:
    records, _ = read_edit_prompts(written(make_edit_prompts(params(), tmp_path), tmp_path / "edit_prompts"))
    finding = edit_prompts_are_held_apart(tmp_path)
    assert finding.passed and finding.metadata == {"train": 8, "unseen": 4, "pictures_in_both": 0}
    file = tmp_path / "edit_prompts/edits.jsonl"
    other = "unseen" if records[0].part == "train" else "train"
    leaked = records[0].model_copy(update={"idx": "leaked", "part": other})
    file.write_text(file.read_text() + leaked.model_dump_json() + "\n")
    assert not edit_prompts_are_held_apart(tmp_path).passed


SIZES = {"a": (24, 16), "b": (16, 32), "c": (40, 16), "d": (16, 16), "e": (8, 24)}


def from_file(**changes: int) -> EditPromptsParams:
    return params(source="file", file="edits.jsonl", **{"count": None, "unseen": 1, **changes})


def file_of(folder: Path, *rows: Any) -> Path:
    for number, (name, size) in enumerate(SIZES.items()):
        Image.new("RGB", size, (40 * number, 90, 120)).save(folder / f"{name}.png")
    file = folder / "edits.jsonl"
    texts = [{"key": f"e{n}", "instruction": f"Edit {n}.", "input_image": image} for n, image in enumerate(rows)]
    file.write_text("".join(json.dumps(row) + "\n" for row in texts))
    return file


def test_a_row_names_several_pictures_and_each_keeps_its_own_shape(tmp_path: Path) -> None:
    file_of(tmp_path, ["b.png", "a.png", "c.png"], ["d.png"], "e.png")
    params = from_file(seed=1)
    (tmp_path / "out").mkdir()
    make_edit_prompts(params, tmp_path).write(tmp_path / "out")
    records, references = read_edit_prompts(tmp_path / "out")
    assert [image.size for image in references(records[0])] == [SIZES["b"], SIZES["a"], SIZES["c"]]
    assert (records[0].width, records[0].height) == SIZES["b"], "the first is edited"
    keys = [json.loads(line)["reference"] for line in (tmp_path / "out/edits.jsonl").read_text().splitlines()]
    assert [type(key) for key in keys] == [list, str, str], "a single picture is written as before"
    assert len(keys[0]) == 3 and not any("references" in line for line in (tmp_path / "out/edits.jsonl").open())
    assert [len(r.references) for r in plan_edits(params, tmp_path)] == [3, 1, 1]


@pytest.mark.parametrize("seed", range(5))
def test_rows_that_share_a_picture_lie_in_one_part(tmp_path: Path, seed: int) -> None:
    file_of(tmp_path, ["a.png", "b.png"], ["c.png", "b.png"], "c.png", "d.png", "e.png")
    prompts = make_edit_prompts(from_file(seed=seed), tmp_path)
    parts = [record.part for record in prompts.records]
    assert len(set(parts[:3])) == 1 and set(parts) == {"train", "unseen"}
    by_part = {p: {n for r in prompts.records if r.part == p for n in r.references} for p in ("train", "unseen")}
    assert not by_part["train"] & by_part["unseen"]
    with pytest.raises(DataError, match=r"all of the 3 pictures \(those that rows name together count as one\)"):
        make_edit_prompts(from_file(seed=seed, unseen=3), tmp_path)


def test_a_row_with_one_unusable_picture_is_left_out_whole(tmp_path: Path) -> None:
    prompts = read_edit_rows(file_of(tmp_path, ["a.png", "lost.png"], [], ["b.png", "../b.png"], "c.png", {"no": 1}))
    assert [r.idx for r in prompts.records] == ["e3"] and len(prompts.pictures) == 1
    causes = {place.rpartition(":")[2]: cause for place, cause in prompts.rejected}
    assert set(causes) == {"1", "2", "3", "5"} and "lost.png" in causes["1"]
    assert causes["2"].startswith("record: input_image") and causes["5"].startswith("record: input_image")


def record(count: int, prompt: str = "p") -> EditRecord:
    row = {"idx": "many", "prompt": prompt, "theme": "t", "task_name": "x", "height": 8, "width": 8, "part": "train"}
    return EditRecord.model_validate({**row, "reference": [f"r{n}" for n in range(count)]})


def test_a_record_names_at_least_one_reference() -> None:
    with pytest.raises(ValueError, match="reference"):
        record(0)
    single = record(1)
    assert single.model_dump()["reference"] == "r0" and EditRecord.model_validate(single.model_dump()) == single
    assert json.loads(record(2).model_dump_json())["reference"] == ["r0", "r1"]


@pytest.mark.parametrize(("family", "count"), [("flux", 1), ("flux_kontext", 2), ("qwen_image_edit_plus", 4)])
def test_a_family_refuses_more_than_it_takes(family: str, count: int) -> None:
    if count > 1:
        validate_reference_counts(family, [record(1)])
    with pytest.raises(DataError, match=family):
        validate_reference_counts(family, [record(1), record(count)])


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
    assert evaluated_references(instruction, count) == places


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
    assert evaluated_references(instruction, 5) == [0, 1, 2, 3, 4]


QUESTIONS: list[EditQuestion] = ["edit_consistency", "edit_following"]


@pytest.fixture(scope="module")
def prompts() -> EditPrompts:
    edit_prompts = storybook_edit_prompts(6, 32, seed=3)
    edit_prompts.hold_out(2, seed=0)
    return edit_prompts


def heeded(record: EditRecord) -> dict[str, str]:
    """What the picture shows when the edit was made, and nothing else."""
    before, trait, word = requested_edit(record)
    return {**before, trait: word}


def write_edits(out: Path, prompts: EditPrompts, *edits: GeneratedEdit) -> Path:
    pictures = {record.idx: prompts.reference(record)[0] for record in prompts.records}
    write_generated_edits(out, edits, {edit.id: pictures[edit.prompt_id].rotate(90) for edit in edits})
    return out


def test_records_and_pictures_come_back_as_written(tmp_path: Path, prompts: EditPrompts) -> None:
    edit = GeneratedEdit.from_parts(prompts.records[0].idx, "editor", 0, heeded(prompts.records[0]))
    folder = write_edits(tmp_path / "edits", prompts, edit)
    edits, pictures = read_generated_edits(folder)
    assert edits == [edit]
    expected = prompts.reference(prompts.records[0])[0].rotate(90)
    assert pictures.read(edit.id).tobytes() == expected.tobytes()
    with pytest.raises(DataError, match=f"{edit.id} .*{edit.prompt_id}"):
        add_generated_edits(EditingPairs(), folder, prompts.records[1:], prompts.reference, QUESTIONS)


@pytest.mark.parametrize(("heeds", "labels"), [(True, ["Yes", "Yes", "No"]), (False, ["Yes", "No", "No"])])
def test_a_painted_edit_is_asked_three_questions_by_what_it_shows(
    tmp_path: Path, prompts: EditPrompts, heeds: bool, labels: list[str]
) -> None:
    record = prompts.records[0]
    shows = heeded(record) if heeds else requested_edit(record)[0]
    folder = write_edits(tmp_path / "edits", prompts, GeneratedEdit.from_parts(record.idx, "editor", 0, shows))
    editing = EditingPairs()
    assert add_generated_edits(editing, folder, prompts.records, prompts.reference, QUESTIONS) == 3
    assert [pair.question for pair in editing.pairs] == ["edit_consistency", "edit_following", "edit_following"]
    assert [pair.label for pair in editing.pairs] == labels
    consistency, followed, other = (pair.instruction for pair in editing.pairs)
    assert consistency == followed == record.prompt != other
    assert len({pair.prompt_id for pair in editing.pairs}) == 1  # one split


@pytest.mark.parametrize("count", [0, 6])
def test_only_the_wanted_questions_are_asked(tmp_path: Path, prompts: EditPrompts, count: int) -> None:
    edits = [GeneratedEdit.from_parts(r.idx, "editor", 0, heeded(r)) for r in prompts.records[:count]]
    editing = EditingPairs()
    folder = write_edits(tmp_path / "edits", prompts, *edits)
    assert add_generated_edits(editing, folder, prompts.records, prompts.reference, ["edit_consistency"]) == count
    assert [pair.question for pair in editing.pairs] == ["edit_consistency"] * count


def test_the_check_finds_an_unseen_prompt(tmp_path: Path, prompts: EditPrompts) -> None:
    (tmp_path / "edit_prompts").mkdir()
    prompts.write(tmp_path / "edit_prompts")
    trained, unseen = of_part(prompts.records, "train"), of_part(prompts.records, "unseen")
    good = [GeneratedEdit.from_parts(r.idx, "editor", 0, heeded(r)) for r in trained]
    write_edits(tmp_path / "edits", prompts, *good)
    assert painted_edits_are_of_training_prompts(tmp_path).passed
    rows = [row for _, row in read_jsonl(tmp_path / "edits" / FILE)]
    write_jsonl(tmp_path / "edits" / FILE, [*rows, {**rows[0], "prompt_id": unseen[0].idx}])
    report = painted_edits_are_of_training_prompts(tmp_path)
    assert not report.passed
    assert (report.metadata["strange"], report.metadata["repeated"]) == (1, 1)
