"""A person's words: marks of a template are refused wherever they come in, and nothing else is."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image
from pydantic import ValidationError
from transformers import AutoTokenizer

from paco_core import Judge
from paco_core.config.params_rewards import Rubric
from paco_core.data.pairs.answers import validation_error, written_validation_error
from paco_core.data.records.records import PromptRecord
from paco_core.io.files import DataError
from paco_core.io.text import template_mark, validate_marks
from paco_core.models.tokens import validate_tokens
from paco_core.operations.prompt_records import edit_record, set_record
from paco_core.reward_model.examples import read_examples
from paco_core.reward_model.instructions import render_instruction
from paco_core.serving.protocol import ChatRequest, RequestError
from tests.support.grpo_toys import record

MARKS = (
    "<|im_end|>", "<|image_pad|>", "<|endoftext|>", "<|vision_start|>", "</s>", "<pad>", "<extra_id_0>", "<think>",
    "<start_of_text>", "<end_of_turn>", "</tool_call>", "<|ENDOFTEXT|>", "\uff1c|im_end|\uff1e", "<|im_\u200bend|>",
)  # fmt: skip
WORDS = (
    "a < b and c > d", "<image2>'s hat", "<3", "x </ y", "| a |", "[TOP]-[LEFT]: a", "a <b> tag", "< |im_end| >", "",
)  # fmt: skip


def test_a_mark_is_found_in_any_spelling_that_a_tokenizer_may_read_and_words_are_words() -> None:
    for mark in MARKS:
        assert template_mark(f"a red{mark} cat") is not None
        with pytest.raises(ValueError, match="contains"):
            validate_marks(f"a red {mark}")
    for words in WORDS:
        assert validate_marks(words) == words


@pytest.mark.parametrize("folder", ["qwen2_5_vl", "clip", "flux2_klein/tokenizer"])
def test_every_mark_of_a_tokenizer_is_refused_by_both(repository: Path, folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(repository / "data/zoo" / folder)
    for mark in tokenizer.get_added_vocab():
        assert template_mark(f"a {mark}")
        with pytest.raises(DataError) as error:
            validate_tokens(tokenizer, f"a cat{mark}")
        assert mark in str(error.value)
    for words in WORDS:
        validate_tokens(tokenizer, words)
    tokenizer.add_special_tokens({"additional_special_tokens": ["[OWN]"]})
    assert template_mark("a [OWN] cat") is None
    with pytest.raises(DataError):
        validate_tokens(tokenizer, "a [OWN] cat")


MARK = "<|im_end|>"


def test_records_commands_and_questions_refuse_a_mark_by_its_name() -> None:
    picture, row = Image.new("RGB", (32, 32)), record(0).model_dump()
    for key in ("prompt", "theme"):
        with pytest.raises(ValidationError):
            PromptRecord.model_validate(row | {key: f"{row[key]} {MARK}"})
    with pytest.raises(ValidationError):
        PromptRecord.model_validate(row | {"criteria": {"Style": {"one": MARK}}})
    calls = [
        lambda: edit_record(f"Make it red {MARK}", [picture]),
        lambda: set_record("a cat", ["one", f"two {MARK}"], 32),
        lambda: set_record(f"a cat {MARK}", ["one", "two"], 32),
        lambda: render_instruction("theme", theme=f"a cat {MARK}"),
        lambda: Rubric.model_validate({"endpoint": {}, "criteria": {"one": MARK}}),
    ]
    for call in calls:
        with pytest.raises((DataError, ValidationError)) as error:
            call()
        assert MARK in str(error.value)
    body = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": f"Same? {MARK}"}]}]}
    with pytest.raises(RequestError) as error_info:
        ChatRequest.parse(json.dumps(body).encode())
    assert error_info.value.status == 400 and MARK in error_info.value.message
    judge = Judge.__new__(Judge)  # nothing is loaded
    with pytest.raises(DataError, match="theme"):
        judge.score(picture, picture, theme=f"a cat {MARK}")


def test_an_answer_with_a_mark_is_no_answer(tmp_path: Path) -> None:
    for wrong in (validation_error, written_validation_error):
        assert wrong(f"Yes. They agree.{MARK}", "Yes") == "template_mark_in_answer"
    row = {"pair_id": "p1", "theme": "a cat", "first": "a#0", "second": "b#0", "label": "Yes", "answer": "Yes. Alike."}
    for changes in ({"answer": f"Yes. {MARK}"}, {"theme": f"a cat {MARK}"}, {"instruction": f"Make it {MARK}"}):
        pd.DataFrame([row | changes]).to_parquet(tmp_path / "train.parquet")
        with pytest.raises(DataError) as error:
            read_examples(tmp_path / "train.parquet", lambda _ref: Image.new("RGB", (32, 32)), "theme")
        assert "train.parquet" in str(error.value) and "p1" in str(error.value)
