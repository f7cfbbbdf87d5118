"""Editing prompts: drawn or from a file, split by picture, and rejected where they are wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from paco_core.config.params import EditPromptsParams
from paco_core.data.checks import edit_prompts_are_held_apart
from paco_core.data.prompts.edit_prompts import EditPrompts, drawn, edit_prompts, read_rows
from paco_core.data.records.edit_records import of_part, read_edit_prompts
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.stages import run_stage
from paco_core.storybook.editing import Edit
from paco_core.storybook.world import Panel


def params(**changes: Any) -> EditPromptsParams:
    return EditPromptsParams.model_validate({"source": "storybook", "count": 12, "unseen": 4, "size": 32} | changes)


def written(found: EditPrompts, folder: Path) -> Path:
    folder.mkdir()
    found.write(folder)
    return folder


def test_a_drawn_prompt_asks_for_one_change_of_what_its_picture_shows(tmp_path: Path) -> None:
    records, references = read_edit_prompts(written(edit_prompts(params(), tmp_path), tmp_path / "out"))
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
    first, second = (written(edit_prompts(params(), tmp_path), tmp_path / name) for name in ("a", "b"))
    for file in ("edits.jsonl", "pictures/images.tar"):
        assert (first / file).read_bytes() == (second / file).read_bytes()
    assert [r.idx for r in drawn(20, 32, 0).records[:12]] == [r.idx for r in drawn(12, 32, 0).records]
    assert drawn(12, 32, 0).records == drawn(20, 32, 0).records[:12]
    assert drawn(12, 32, 1).records != drawn(12, 32, 0).records


def rows_file(folder: Path, rows: list[dict[str, Any]]) -> Path:
    for number, name in enumerate(("a", "b", "c")):
        Image.new("RGB", (24 + 8 * number, 16), (40 * number, 90, 120)).save(folder / f"{name}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    file = folder / "gedit.jsonl"
    file.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return file


BOTH = [
    {"key": f"{name}-{language}", "instruction": text, "input_image": f"{name}.png", "instruction_language": language,
     "task_type": "color_alter", "Intersection_exist": True}
    for name in ("a", "b", "c")
    for language, text in (("en", f"Make {name} red."), ("cn", f"把{name}变成红色"))
]  # fmt: skip


@pytest.mark.parametrize("seed", range(4))
def test_both_languages_of_a_picture_lie_in_one_part(tmp_path: Path, seed: int) -> None:
    file = rows_file(tmp_path, BOTH)
    (tmp_path / "copy.png").write_bytes((tmp_path / "a.png").read_bytes())  # the same picture under another name
    file.write_text(
        file.read_text(encoding="utf-8")
        + json.dumps({"key": "again", "instruction": "Make it blue.", "input_image": "copy.png"})
    )
    found = edit_prompts(params(source="file", count=None, unseen=1, file="gedit.jsonl", seed=seed), tmp_path)
    parts = {record.idx: record.part for record in found.records}
    assert len(parts) == 7 and set(parts.values()) == {"train", "unseen"}
    assert all(parts[f"{name}-en"] == parts[f"{name}-cn"] for name in "abc") and parts["again"] == parts["a-en"]
    records, references = read_edit_prompts(written(found, tmp_path / "out"))
    chosen = next(r for r in records if r.idx == "b-cn")
    assert (
        chosen.prompt == "把b变成红色"
        and chosen.language == "cn"
        and [one.size for one in references(chosen)] == [(32, 16)]
    )


def test_bad_rows_are_named_and_counted(tmp_path: Path) -> None:
    file = rows_file(
        tmp_path,
        [
            BOTH[0],
            {"key": "no-text", "instruction": "", "input_image": "a.png"},
            {"key": "no-key", "input_image": "a.png"},
            {"key": "lost", "instruction": "Cut it.", "input_image": "lost.png"},
            {"key": "broken", "instruction": "Cut it.", "input_image": "broken.png"},
            BOTH[0],
            BOTH[2],
        ],
    )
    found = read_rows(file)
    assert [r.idx for r in found.records] == ["a-en", "b-en"] and len(found.pictures) == 2
    told = {place.rpartition(":")[2]: cause for place, cause in found.rejected}
    assert set(told) == {"2", "3", "4", "5", "6"} and "instruction" in told["2"] and "lost.png" in told["4"]
    assert found.rejected.figures() == {"rejected.record": 2, "rejected.picture": 2, "rejected.duplicate": 1}


def test_a_file_without_a_usable_row_is_an_error(tmp_path: Path) -> None:
    file = rows_file(tmp_path, [{"instruction": "Cut it.", "input_image": "lost.png"}])
    with pytest.raises(DataError, match=r"none of its 1 rows can be used, e.g. .*gedit.jsonl:1: picture: .*lost.png"):
        read_rows(file)
    with pytest.raises(DataError, match=r"unseen=3 holds back all of the 3 pictures; choose at most 2"):
        edit_prompts(params(source="file", file=rows_file(tmp_path, BOTH).name, unseen=3), tmp_path)
    with pytest.raises(DataError, match="no such file"):
        edit_prompts(params(source="file", file="none.jsonl"), tmp_path)


def test_a_missing_reference_picture_is_named_by_its_record(tmp_path: Path) -> None:
    folder = written(drawn(4, 32, 0), tmp_path / "out")
    lines = (folder / "edits.jsonl").read_text().splitlines()
    row = json.loads(lines[2])
    (folder / "edits.jsonl").write_text("\n".join([*lines[:2], json.dumps(row | {"reference": "gone"}), lines[3]]))
    with pytest.raises(DataError, match=rf"1 editing prompts have no reference picture, e.g. {row['idx']} names gone"):
        read_edit_prompts(folder)
    (folder / "edits.jsonl").write_text("\n".join([lines[0], json.dumps(row | {"prompt": ""})]))
    with pytest.raises(DataError, match=r"edits.jsonl:2: prompt: "):
        read_edit_prompts(folder)
    (folder / "edits.jsonl").write_text("\n".join([lines[0], lines[0]]))
    with pytest.raises(DataError, match=r"edits.jsonl:2: idx e00000 is already"):
        read_edit_prompts(folder)


def test_a_damaged_or_foreign_picture_is_named_when_it_is_asked_for(tmp_path: Path) -> None:
    folder = written(drawn(2, 32, 0), tmp_path / "out")
    records, references = read_edit_prompts(folder)
    tar = folder / "pictures" / "images.tar"
    tar.write_bytes(tar.read_bytes()[:600])
    with pytest.raises(DataError, match=rf"editing prompt {records[0].idx}: .*cut off"):
        [references(record) for record in records]
    plain = {k: v for k, v in records[0].model_dump().items() if k in PromptRecord.model_fields}
    with pytest.raises(DataError, match="names no reference picture"):
        references(PromptRecord.model_validate(plain))


@pytest.mark.slow
@pytest.mark.usefixtures("sender_in_a_thread")
def test_the_stage_writes_both_parts_and_tells_what_they_hold(repository: Path, tmp_path: Path) -> None:
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    tree["edit_prompts"] |= {"count": 10, "unseen": 3, "size": 32}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(tree))
    run_stage("edit_prompts", None, tmp_path)
    figures = json.loads((tmp_path / "data/metrics/edit_prompts.json").read_text())
    assert (figures["train"], figures["unseen"], figures["pictures"], figures["pictures_in_both"]) == (7, 3, 10, 0)
    assert sum(value for name, value in figures.items() if name.startswith("task.")) == 10
    records, _ = read_edit_prompts(tmp_path / "data/edit_prompts")
    assert len(records) == 10
    seen = edit_prompts_are_held_apart(tmp_path / "data")
    assert seen.passed and seen.metadata == {"train": 7, "unseen": 3, "pictures_in_both": 0}
    file = tmp_path / "data/edit_prompts/edits.jsonl"
    other = "unseen" if records[0].part == "train" else "train"
    leaked = records[0].model_copy(update={"idx": "leaked", "part": other})
    file.write_text(file.read_text() + leaked.model_dump_json() + "\n")
    assert not edit_prompts_are_held_apart(tmp_path / "data").passed


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"source": "file"}, "needs file"),
        ({"count": None}, "needs count"),
        ({"unseen": 12}, "unseen=12 holds back all of count=12"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        params(**changes)
