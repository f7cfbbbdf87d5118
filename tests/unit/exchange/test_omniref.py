"""OmniRef-Bench in its layout: cases become editing prompts with several references, by their largest number."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.cli.exchange import import_dataset
from paco_core.data.prompts.edit_prompts import read_edit_rows
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.pictures import read_image


def case(index: int, references: int) -> dict[str, Any]:
    folder = f"subject_bg/{references}/{index}"
    subjects = [f"{folder}/transfer_subjects/a subject {n}.png" for n in range(references - 1)]
    return {
        "image": f"{folder}/0.png", "index": index, "category": "subject_bg",
        "prompt": "A rabbit in image 1 against the background of image 2.",
        "edit_image": [*subjects, f"{folder}/background/background.png"],
    }  # fmt: skip


def write(folder: Path, cases: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    (folder / "data_our_multibanana_skeleton.json").write_text(json.dumps(cases))
    for shade, name in enumerate(name for row in cases for name in row["edit_image"]):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (64, 80), (shade, 0, 0)).save(path)
    return folder


def test_cases_are_editing_prompts_with_all_their_references(tmp_path: Path) -> None:
    source = write(tmp_path / "omniref", [case(0, 2), case(1, 5), case(2, 3), case(435, 2)])
    counts = import_dataset("omniref", source, tmp_path / "out").figures
    assert {name: counts[name] for name in counts if name.startswith("edits")} == {
        "edits.upto_2": 2, "edits.upto_3": 3, "edits.upto_5": 4
    }  # fmt: skip
    assert counts["pictures"] == 12 and not any(name.startswith("rejected.") for name in counts)
    prompts = read_edit_rows(tmp_path / "out/edits_upto_5.jsonl")
    assert not prompts.rejected and [len(record.references) for record in prompts.records] == [2, 5, 3, 2]
    assert [record.idx for record in prompts.records] == ["omniref-0", "omniref-1", "omniref-2", "omniref-435"]
    assert {record.task_name for record in prompts.records} == {"subject_bg"}
    ((_, row),) = [line for line in read_jsonl(tmp_path / "out/edits_upto_3.jsonl") if line[1]["key"] == "omniref-2"]
    shades = [read_image(tmp_path / "out" / name).getpixel((0, 0))[0] for name in row["input_image"]]  # type: ignore[index]
    assert shades == [7, 8, 9], "in the order of the prompt"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"prompt": " "}, "record"),
        ({"edit_image": []}, "record"),
        ({"index": "7"}, "record"),
        ({"index": 0}, "duplicate"),
        ({"edit_image": ["subject_bg/2/0/background/background.png", "gone.png"]}, "picture"),
    ],
)
def test_cases_that_cannot_be_used_are_counted(tmp_path: Path, changes: dict[str, Any], kind: str) -> None:
    source = write(tmp_path / "omniref", [case(0, 2), case(1, 2)])
    file = source / "data_our_multibanana_skeleton.json"
    file.write_text(json.dumps([case(0, 2), case(1, 2) | changes]))
    counts = import_dataset("omniref", file, tmp_path / "out").figures
    assert counts["edits.upto_2"] == 1 and counts[f"rejected.{kind}"] == 1 and counts["pictures"] == 2


def test_the_file_of_cases_must_be_clear(tmp_path: Path) -> None:
    source = write(tmp_path / "omniref", [case(0, 2)])
    (source / "other.json").write_text("[]")
    with pytest.raises(DataError, match="2 JSON files"):
        import_dataset("omniref", source, tmp_path / "out")
    with pytest.raises(DataError, match="none of its 0 cases"):
        import_dataset("omniref", source / "other.json", tmp_path / "out")
    (source / "other.json").write_text("{}")
    with pytest.raises(DataError, match="list of cases"):
        import_dataset("omniref", source / "other.json", tmp_path / "out")
