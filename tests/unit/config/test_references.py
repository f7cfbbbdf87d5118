"""A parameter that names a model or a file is looked for by its type alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config.params_base import Section
from paco_core.config.references import ModelRef, UserFile, model_at, model_content, named_files, references
from paco_core.io.files import DataError, folder_digest


class Part(Section):
    model: ModelRef
    start: ModelRef | None = None


class Example(Section):
    """A section as somebody may add it: nothing but its fields names what must be there."""

    parts: dict[str, Part]
    painters: list[ModelRef]
    file: UserFile | None = None
    note: str = "data/no/reference"


def faults(root: Path, example: Example) -> dict[str, str]:
    return {reference.key: fault for reference in references(example) if (fault := reference.fault(root)) is not None}


def test_what_is_missing_is_found_by_its_type(tmp_path: Path) -> None:
    (tmp_path / "data/there").mkdir(parents=True)
    (tmp_path / "data/table").write_text("x")
    example = Example(
        parts={"a": Part(model="data/there", start="data/gone"), "b": Part(model="org/of-a-hub")},
        painters=["data/there", "data/table", "data/zoo/flux"],
        file="data/there",
    )
    assert faults(tmp_path, example) == {
        "parts.a.start": "folder data/gone is missing; put the model there or name another",
        "painters.1": "data/table is a file, expected a folder; put the model there or name another",
        "painters.2": "folder data/zoo/flux is missing; what came with the project returns by `git checkout -- "
        "data/zoo/flux`",
        "file": "data/there is a folder, expected a file; put the file there or name another",
    }
    assert [reference.key for reference in references(example) if reference.is_of_hub(tmp_path)] == ["parts.b.model"]


def test_a_model_is_a_folder_where_there_is_one_else_a_name(tmp_path: Path) -> None:
    folder = tmp_path / "org" / "name"
    assert model_at(tmp_path, "org/name", "x") == "org/name" == model_content(tmp_path, "org/name")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    assert model_at(tmp_path, "org/name", "x") == folder
    assert model_content(tmp_path, "org/name") == folder_digest(folder)
    with pytest.raises(DataError, match="reward.base './none': no such folder below the project; give a model folder"):
        model_at(tmp_path, "./none", "reward.base")


def test_files_that_the_rows_of_a_file_name_are_found(tmp_path: Path) -> None:
    for name in ("a.png", "deep/b.png", "c.png", "../outside.png"):
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(name.encode())
    rows = ['{"picture": "a.png", "words": "red"}', '{"pictures": ["deep/b.png", "gone.png"]}', "no JSON"]
    (tmp_path / "in/rows.txt").write_text("\ufeff" + "\n".join([*rows, '{"picture": "../outside.png"}']))
    assert [file.name for file in named_files(tmp_path / "in/rows.txt")] == ["a.png", "b.png"]
    assert not list(named_files(tmp_path / "in/a.png")) and not list(named_files(tmp_path / "gone"))
