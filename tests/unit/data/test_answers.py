"""Answers: only one spelling of the first word is trained, and it is the token that is scored."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paco_core.data.pairs.answers import leading_verdict, normalize_answer, validation_error
from paco_core.io.files import DataError
from paco_core.reward_model.examples import Example
from paco_core.reward_model.examples import leading_verdict as trained
from tests.support import tiny_vlm
from zoo.vlm import build_tokenizer

VALID = {
    "Yes. They agree.": "Yes. They agree.",
    "Yes.\n1. Same style.\n2. Same bear.": "Yes.\n1. Same style.\n2. Same bear.",
    "Yes, they agree.": "Yes. they agree.",
    "Yes: they agree.": "Yes. they agree.",
    "Yes\nThey agree.": "Yes. They agree.",
    "\nYes. They agree. \n": "Yes. They agree.",
    " No. They differ.": "No. They differ.",
    "\ufeff\u3000Yes. 两张图片风格一致。": "Yes. 两张图片风格一致。",
    "Yes。两张图片风格一致。": "Yes. 两张图片风格一致。",
    "Ｎｏ，颜色不同。": "No. 颜色不同。",
    "“Yes。”两张图片": "Yes. 两张图片",
    "YES!": "Yes.",
    "no": "No.",
    "**Yes** They agree.": "Yes. They agree.",
    "**No.** They differ.": "No. They differ.",
    "**No**. **Style**: one is flat.": "No. **Style**: one is flat.",
    '"Yes": they agree.': "Yes. they agree.",
    "> - No - they differ.": "No. they differ.",
    "Yes — both are flat.": "Yes. both are flat.",
    "Yes.They agree.": "Yes. They agree.",
}
INVALID = (
    "", "  ", "**", "Perhaps.", "Nothing differs.", "No two hats differ, so yes.", "No-one would see a difference.",
    "Yes they agree.", "Yes/No", "Yes and no.", "Answer: Yes.", "是。", "yes_no", "Nope.", "Yes?",
)  # fmt: skip


@pytest.mark.parametrize("answer", VALID)
def test_what_is_taken_begins_as_it_is_trained(answer: str) -> None:
    normalized = normalize_answer(answer)
    label = normalized.partition(".")[0]
    assert normalized == VALID[answer] and normalize_answer(normalized) == normalized
    assert leading_verdict(answer) == trained(answer) == label and validation_error(answer, label) is None
    assert validation_error(answer, "No" if label == "Yes" else "Yes") == "answer_contradicts_label"


@pytest.mark.parametrize("answer", INVALID)
def test_what_says_neither_or_both_is_refused(answer: str) -> None:
    with pytest.raises(DataError, match="neither Yes nor No|after Yes or No"):
        normalize_answer(answer)
    assert (
        leading_verdict(answer) == ""
        and validation_error(answer, "Yes") == validation_error(answer, "No") == "answer_without_yes_or_no"
    )


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.text(st.sampled_from("YyEeSsNnOo .,:*\"'-\n_中。"), max_size=9))
def test_normalising_twice_changes_nothing(text: str) -> None:
    if label := leading_verdict(text):
        assert normalize_answer(normalize_answer(text)) == normalize_answer(text) and normalize_answer(text).startswith(
            f"{label}."
        )


def test_the_first_token_that_is_trained_is_the_one_that_is_scored() -> None:
    """In the byte pairs of Qwen's kind, which the small tokenizer has, " Yes" is another token than "Yes"."""
    tokenizer = build_tokenizer([*tiny_vlm.SENTENCES, " Yes", "**", '"'])

    def first(text: str) -> int:
        return int(tokenizer(text, add_special_tokens=False)["input_ids"][0])

    scored = {word: first(word) for word in ("Yes", "No")}
    assert any(first(answer) not in scored.values() for answer in VALID), "some of them would train another token"
    for answer in VALID:
        assert first(normalize_answer(answer)) == scored[leading_verdict(answer)], answer


def test_an_example_with_another_opening_is_refused() -> None:
    for answer in (" Yes. Both.", "Yes, both.", "Perhaps."):
        with pytest.raises(DataError, match="pair p: its answer must begin with Yes. or No."):
            Example("p", (None, None), "?", answer)  # type: ignore[arg-type]
