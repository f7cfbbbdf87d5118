"""The example prompts of a new project are complete T2IS records of 2x2 panels."""

from __future__ import annotations

from paco_core.data.records import prompt_text
from paco_core.data.records.categories import SUBCATEGORIES, category
from paco_core.data.records.records import read_prompts
from paco_core.io.rejected import Rejected
from paco_core.io.shipped import new_project_files


def test_every_example_prompt_is_usable() -> None:
    rejected = Rejected()
    records = read_prompts(new_project_files()["examples/prompts.jsonl"], lambda _record: None, rejected)
    assert len(records) == len({record.prompt for record in records}) == len({r.idx for r in records}) == 40
    assert not rejected
    kinds = {(kind.category, kind.name) for kind in SUBCATEGORIES}
    assert {(category(record), record.task_name) for record in records} <= kinds
    for record in records:
        text = prompt_text.parse_prompt(record.prompt, record.layout)
        assert record.layout == "2x2" and len(text.panels) == 4 and text.shared, record.idx
        assert set(record.criteria) == {"Style", "Identity", "Logic"} and all(record.criteria.values()), record.idx
