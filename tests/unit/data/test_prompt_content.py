"""Prompt content: two records are one prompt by what they say, whatever their ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks.unseen_prompts import unseen_prompts
from paco_core.config.params import load
from paco_core.data.annotation.votes import Annotation
from paco_core.data.pairs.leakage import measure_leakage
from paco_core.data.pairs.pairs import Instance, split_pairs
from paco_core.data.prompts.edit_prompts import read_edit_rows
from paco_core.data.prompts.prompts import make_prompts, read_imported_prompts
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.prompt_content import contents_of, group_by_content, records_by_text
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.prompt_split import PromptSplit, hold_out, predefined_split, trained_prompts
from paco_core.io.files import DataError, write_jsonl
from tests.support import REPOSITORY
from tests.support.grpo_toys import record

PARAMS = load(REPOSITORY / "params.yaml")

#: Spellings of one text: as it is, other case and blanks, full-width letters, a character of no width.
SPELLINGS = ("A red cat", "a  RED cat ", "\uff21 red cat", "A red\u200b cat")


def copies(records: list[PromptRecord], **changes: Any) -> list[PromptRecord]:
    return [row.model_copy(update={"idx": f"copy-{row.idx}", **changes}) for row in records]


@pytest.mark.parametrize("key", ["prompt", "theme"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_one_text_or_theme_in_any_spelling_is_one_content(key: str, spelling: str) -> None:
    first = record(0).model_copy(update={"prompt": "first", "theme": "one", key: SPELLINGS[0]})
    other = record(1).model_copy(update={"prompt": "second", "theme": "two", key: spelling})
    assert contents_of(first) & contents_of(other)
    assert not contents_of(first) & contents_of(other.model_copy(update={key: "A red cart"}))


@pytest.mark.parametrize("changes", [{}, {"theme": "another theme"}, {"prompt": "another text"}])
def test_prompts_to_test_on_that_are_trained_on_under_other_ids_are_refused(changes: dict[str, str]) -> None:
    trained = [record(n) for n in range(16)]
    with pytest.raises(DataError) as error:
        predefined_split(trained, copies(trained, **changes), 4, 0)
    assert all(part in str(error.value) for part in ("16", "copy-p0", "p0"))


def test_prompts_that_share_content_are_held_back_together() -> None:
    records = [record(n) for n in range(10)]
    twins = hold_out([*records, *copies(records)], 4, seed=0)
    assert len(twins.unseen) == 4 and len(twins.trained) == 16
    contents = [{content for row in part for content in contents_of(row)} for part in (twins.trained, twins.unseen)]
    assert contents[0].isdisjoint(contents[1])
    with pytest.raises(DataError, match="eval_prompts"):
        hold_out(copies(records, theme="one theme"), 4, seed=0)


def test_a_prompt_trained_on_under_another_id_is_not_unseen(tmp_path: Path) -> None:
    records = [record(n) for n in range(8)]
    PromptSplit(records[:6], records[6:]).write(tmp_path)
    trained = trained_prompts(tmp_path)
    assert {row.idx for row in unseen_prompts(copies(records), trained, 8, 0)} == {"copy-p6", "copy-p7"}
    reused = records[7].model_copy(update={"idx": records[0].idx})
    assert unseen_prompts([reused], trained, 8, 0) == [reused], "one id is not one prompt"
    (tmp_path / "prompts.json").write_text(json.dumps({"trained": ["p0"], "unseen": []}))  # of an earlier version
    unseen = unseen_prompts([*records, *copies(records)], trained_prompts(tmp_path), 99, 0)
    assert {row.idx for row in unseen} == {row.idx for row in [*records[1:], *copies(records[1:])]}


def test_pairs_on_the_theme_of_the_benchmark_are_leakage() -> None:
    row = {"prompt_id": "p1", "theme": "A red cat", "reference": "a#0", "candidates": ["b#0"]}
    benchmark = pd.DataFrame([row])
    pairs = [("theme-1", "a RED cat", "c#0", "d#0"), ("q", "", "e#0", "f#0")]
    part = pd.DataFrame(pairs, columns=["prompt_id", "theme", "first", "second"])
    assert measure_leakage(benchmark, {"train": part}, {}, {}).prompts == ["theme-1"]
    other = part.assign(prompt_id=["theme-2", "q2"])
    assert measure_leakage(benchmark.iloc[:0], {"train": part, "validation": other}, {}, {}).train_and_validation == [
        "theme-1",
        "theme-2",
    ]


def test_rankings_of_prompts_that_share_content_are_split_together() -> None:
    ids = [f"p{n}" for n in range(20)]
    groups = group_by_content({idx: {str(n // 2)} for n, idx in enumerate(ids)})
    ranked = [Annotation(f"i{n}", "test", [0, 1, 2, 3], [float("nan")] * 4, tied=False) for n in range(20)]
    instances = [
        Instance(annotation.instance_id, idx, f"{idx}#0", [f"{idx}#{n}" for n in (1, 2, 3, 4)], annotation)
        for idx, annotation in zip(ids, ranked, strict=True)
    ]
    split = split_pairs(instances, PARAMS.pairs.model_copy(update={"balance": False}), groups=groups)
    parts = [{groups[row.prompt_id] for row in rows} for rows in (split.train, split.validation, split.benchmark)]
    assert all(parts) and sum(map(len, parts)) == 10


def test_a_file_that_repeats_prompts_under_other_ids_is_read_without_them(tmp_path: Path) -> None:
    records = make_prompts(PARAMS.prompts.model_copy(update={"count": 6}), (64, 64)).records
    copy = records[0].model_copy(update={"idx": "again", "prompt": records[0].prompt.replace("images", "IMAGES")})
    write_jsonl(tmp_path / "prompts.jsonl", [row.model_dump() for row in [*records, copy]])
    imported = read_imported_prompts(tmp_path / "prompts.jsonl", (), None)
    assert imported.records == records
    ((place, cause),) = imported.rejected
    assert place.endswith(":7") and records[0].idx in cause


def test_one_instruction_about_one_image_is_one_editing_prompt(tmp_path: Path) -> None:
    for name, colour in (("a", "red"), ("b", "red"), ("c", "blue")):
        Image.new("RGB", (16, 16), colour).save(tmp_path / f"{name}.png")
    rows = [{"key": name, "instruction": "Make it green.", "input_image": f"{name}.png"} for name in "abc"]
    write_jsonl(tmp_path / "rows.jsonl", rows)
    prompts = read_edit_rows(tmp_path / "rows.jsonl")
    assert [row.idx for row in prompts.records] == ["a", "c"] and prompts.rejected.example.count("id a") == 1
    edits = [row for row in prompts.records if isinstance(row, EditRecord)]
    assert contents_of(edits[0]) == set(edits[0].references)


def test_a_look_up_by_a_text_of_two_records_is_refused_with_both_ids() -> None:
    first, other = record(0), record(1).model_copy(update={"prompt": record(0).prompt})
    assert other.theme != first.theme
    for rows in ([first, other], [other, first]):
        with pytest.raises(DataError) as error:
            records_by_text(rows)
        assert first.idx in str(error.value) and other.idx in str(error.value)
    assert list(records_by_text([first, *copies([first])])) == [first.prompt], "equal but for the id"
