"""Edits that base editors painted: kept with what the annotator reads, asked about in three ways."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config.params import EditQuestion
from paco_core.data.checks import painted_edits_are_of_training_prompts
from paco_core.data.pairs.editing import FILE, EditingPairs, PaintedEdit, add_painted, read_painted, write_painted
from paco_core.data.prompts.edit_prompts import EditPrompts, drawn
from paco_core.data.records.edit_records import EditRecord, asked_of, of_part
from paco_core.io.files import DataError, read_jsonl, write_jsonl

BOTH: list[EditQuestion] = ["edit_consistency", "edit_following"]


@pytest.fixture(scope="module")
def prompts() -> EditPrompts:
    found = drawn(6, 32, seed=3)
    found.hold_out(2, seed=0)
    return found


def heeded(record: EditRecord) -> dict[str, str]:
    """What the picture shows when the edit was made, and nothing else."""
    before, trait, word = asked_of(record)
    return {**before, trait: word}


def painted(out: Path, prompts: EditPrompts, *edits: PaintedEdit) -> Path:
    pictures = {record.idx: prompts.reference(record)[0] for record in prompts.records}
    write_painted(out, edits, {edit.id: pictures[edit.prompt_id].rotate(90) for edit in edits})
    return out


def test_records_and_pictures_come_back_as_written(tmp_path: Path, prompts: EditPrompts) -> None:
    edit = PaintedEdit.from_parts(prompts.records[0].idx, "editor", 0, heeded(prompts.records[0]))
    found, pictures = read_painted(painted(tmp_path / "edits", prompts, edit))
    assert found == [edit]
    expected = prompts.reference(prompts.records[0])[0].rotate(90)
    assert pictures.read(edit.id).tobytes() == expected.tobytes()


def test_painters_and_seeds_have_separate_ids() -> None:
    ids = {PaintedEdit.from_parts("e0", painter, seed, {}).id for painter in ("a", "b") for seed in (0, 1)}
    assert len(ids) == 4


@pytest.mark.parametrize(("heeds", "labels"), [(True, ["Yes", "Yes", "No"]), (False, ["Yes", "No", "No"])])
def test_a_painted_edit_is_asked_three_questions_by_what_it_shows(
    tmp_path: Path, prompts: EditPrompts, heeds: bool, labels: list[str]
) -> None:
    record = prompts.records[0]
    shows = heeded(record) if heeds else asked_of(record)[0]
    folder = painted(tmp_path / "edits", prompts, PaintedEdit.from_parts(record.idx, "editor", 0, shows))
    found = EditingPairs()
    assert add_painted(found, folder, prompts.records, prompts.reference, BOTH) == 3
    assert [pair.question for pair in found.pairs] == ["edit_consistency", "edit_following", "edit_following"]
    assert [pair.label for pair in found.pairs] == labels
    kept, followed, other = (pair.instruction for pair in found.pairs)
    assert kept == followed == record.prompt != other
    assert len({pair.prompt_id for pair in found.pairs}) == 1  # one split


@pytest.mark.parametrize("count", [0, 6])
def test_only_the_wanted_questions_are_asked(tmp_path: Path, prompts: EditPrompts, count: int) -> None:
    edits = [PaintedEdit.from_parts(r.idx, "editor", 0, heeded(r)) for r in prompts.records[:count]]
    found = EditingPairs()
    folder = painted(tmp_path / "edits", prompts, *edits)
    assert add_painted(found, folder, prompts.records, prompts.reference, ["edit_consistency"]) == count
    assert [pair.question for pair in found.pairs] == ["edit_consistency"] * count


def test_an_edit_of_no_known_prompt_is_refused(tmp_path: Path, prompts: EditPrompts) -> None:
    edit = PaintedEdit.from_parts(prompts.records[0].idx, "editor", 0, heeded(prompts.records[0]))
    folder = painted(tmp_path / "edits", prompts, edit)
    with pytest.raises(DataError, match=rf"{edit.id} belongs to prompt {edit.prompt_id}, which is not in data"):
        add_painted(EditingPairs(), folder, prompts.records[1:], prompts.reference, BOTH)


def test_a_damaged_line_is_named(tmp_path: Path, prompts: EditPrompts) -> None:
    edit = PaintedEdit.from_parts(prompts.records[0].idx, "editor", 0, heeded(prompts.records[0]))
    folder = painted(tmp_path / "edits", prompts, edit)
    write_jsonl(folder / FILE, [{"id": "x"}])
    with pytest.raises(DataError, match=r"painted\.jsonl:1: prompt_id"):
        read_painted(folder)


def test_the_check_finds_an_unseen_prompt(tmp_path: Path, prompts: EditPrompts) -> None:
    (tmp_path / "edit_prompts").mkdir()
    prompts.write(tmp_path / "edit_prompts")
    trained, unseen = of_part(prompts.records, "train"), of_part(prompts.records, "unseen")
    good = [PaintedEdit.from_parts(r.idx, "editor", 0, heeded(r)) for r in trained]
    painted(tmp_path / "edits", prompts, *good)
    assert painted_edits_are_of_training_prompts(tmp_path).passed
    rows = [row for _, row in read_jsonl(tmp_path / "edits" / FILE)]
    write_jsonl(tmp_path / "edits" / FILE, [*rows, {**rows[0], "prompt_id": unseen[0].idx}])
    report = painted_edits_are_of_training_prompts(tmp_path)
    assert not report.passed
    assert (report.metadata["strange"], report.metadata["repeated"]) == (1, 1)
