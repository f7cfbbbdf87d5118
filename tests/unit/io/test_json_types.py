"""JSON that people and other programs write: true is no number, "false" is not false, and numbers are finite."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from paco_core.adapters.settings import Settings
from paco_core.benchmarks.public_files import _parse_case
from paco_core.benchmarks.viescore import Rating
from paco_core.data.annotation.judge import Order, PairScore
from paco_core.data.prompts.edit_prompts import EditRow
from paco_core.data.records.records import PromptRecord, validated
from paco_core.exchange import rank_bench, sharegpt
from paco_core.exchange.gedit_bench import _usable
from paco_core.io.files import DataError, read_json, read_jsonl
from paco_core.io.rejected import Rejected
from paco_core.policies.families import is_distilled
from paco_core.rewards.http_scorer import _Answer
from paco_core.rewards.rubric import Mark

MARK = {"criterion": "a", "reason": "b"}


@pytest.mark.parametrize(
    ("form", "right", "wrong"),
    [
        (Mark, {**MARK, "mark": 7}, [{**MARK, "mark": mark} for mark in (True, "7", 7.5)]),
        (Rating, {"reasoning": "", "score": [7, 8.5]}, [{"reasoning": "", "score": s} for s in ([True, 1], ["7", 1])]),
        (PairScore, {"score": 3}, [{"score": True}, {"score": "3"}]),
        (Order, {"ranking": [1, 0]}, [{"ranking": [True, False]}, {"ranking": ["1", "0"]}]),
        (_Answer, {"scores": [1, 0.5, None]}, [{"scores": [True]}, {"scores": ["0.5"]}]),
        (
            EditRow,
            {"instruction": "a", "input_image": "b"},
            [{"instruction": "a", "input_image": "b", "Intersection_exist": "false"}],
        ),
    ],
)
def test_answers_and_rows_keep_the_types_of_json(form: Any, right: dict[str, Any], wrong: list[dict[str, Any]]) -> None:
    form.model_validate(right)
    for value in wrong:
        with pytest.raises(ValidationError):
            form.model_validate(value)
        with pytest.raises(ValidationError):
            form.model_validate_json(json.dumps(value))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("use_rslora", "false"), ("r", True), ("r", 1.5), ("lora_alpha", True), ("lora_alpha", "8"),
        ("lora_alpha", float("nan")), ("rank_pattern", {"a": True}), ("alpha_pattern", {"a": "8"}),
        ("target_modules", [1]), ("layers_to_transform", [True]),
    ],
)  # fmt: skip
def test_the_settings_of_an_adapter_have_their_types(key: str, value: object) -> None:
    right = {"r": 4, "lora_alpha": 8, "target_modules": ["a"]}
    assert Settings(right, Path("adapter_config.json")).config.r == 4
    with pytest.raises(DataError, match=f"adapter_config.json: .*{key}"):
        Settings({**right, key: value}, Path("adapter_config.json"))


@pytest.mark.parametrize(("key", "value"), [("height", True), ("height", "512"), ("size", [True, 512])])
def test_the_numbers_of_a_prompt_are_numbers(key: str, value: object) -> None:
    row = {
        "idx": "a", "prompt": "A fox.", "height": 512, "width": 512, "layout": "1x1", "theme": "fox", "category": "c",
        "task_name": "t", "criteria": {},
    }  # fmt: skip
    assert validated(PromptRecord, {**row, "size": [512, 512]}, "f:1").height == 512
    with pytest.raises(DataError, match=f"f:1: .*{key}"):
        validated(PromptRecord, {**row, key: value}, "f:1")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_no_json(tmp_path: Path, number: str) -> None:
    (tmp_path / "a.json").write_text(f'{{"score": {number}}}')
    with pytest.raises(DataError, match="a.json"):
        read_json(tmp_path / "a.json")
    rejected: list[int] = []
    (tmp_path / "a.jsonl").write_text(f'{{"score": 1}}\n{{"score": {number}}}\n')
    rows = read_jsonl(tmp_path / "a.jsonl", lambda line, _cause: rejected.append(line))
    assert list(rows) == [(1, {"score": 1})] and rejected == [2]


def test_the_index_of_a_model_says_true_or_false(tmp_path: Path) -> None:
    index = tmp_path / "model" / "model_index.json"
    index.parent.mkdir()
    for value, expected in ((True, True), (False, False), (None, False)):
        index.write_text(json.dumps({"is_distilled": value}))
        assert is_distilled(tmp_path, "model") is expected
    index.write_text(json.dumps({"is_distilled": "false"}))
    with pytest.raises(DataError, match="is_distilled"):
        is_distilled(tmp_path, "model")


def test_rows_of_public_benchmarks_keep_their_types(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Intersection_exist"):
        _usable({"instruction": "a", "Intersection_exist": "false", "input_image": {"bytes": b""}})
    entry: Any = {"key": ["a", "b"], "dimension": "overall", "instruction": "a", "task_type": "t"}
    for name, value in (("key", [True, "b"]), ("task_type", None)):
        with pytest.raises(DataError, match=name):
            _parse_case({**entry, name: value}, lambda: ())  # type: ignore[arg-type, return-value]
    (tmp_path / "prompts.jsonl").write_text('{"idx": "a", "theme": "t", "prompt": true}\n')
    assert rank_bench._prompts(tmp_path / "prompts.jsonl", Rejected()) == {}
    info = {"x": {"formatting": "sharegpt", "file_name": "x.jsonl", "ranking": "false"}}
    (tmp_path / "dataset_info.json").write_text(json.dumps(info))
    rejected = Rejected()
    with pytest.raises(DataError):
        list(sharegpt.read_sharegpt(tmp_path, rejected))
    assert "ranking" in rejected.example
