"""Rows in LLaMA-Factory's ShareGPT form: each question with its answer and its images."""

from __future__ import annotations

from typing import Any

import pytest

from paco_core.exchange.sharegpt import CONVERSATIONS, Form, PairQuestion, dialogue_rounds, parse_question
from paco_core.io.files import DataError

IMAGES = ["a.png", "b.png"]
TWO = "u: <image><image>Same?"


def row(*turns: str, **fields: Any) -> dict[str, Any]:
    """A row of turns, each "u: text", "a: text" and so on."""
    roles = {"u": "user", "a": "assistant", "s": "system", "o": "observation", "f": "function_call"}
    messages = [{"role": roles[turn[0]], "content": turn[3:]} for turn in turns]
    return {"messages": messages, "images": IMAGES, **fields}


def test_turns_keep_their_order() -> None:
    turns = row(TWO, "a: Yes.", "u: <image>\n<image>Now?", "a: No.", images=[*IMAGES, "c.png", "d.png"])
    first, second = dialogue_rounds(turns, Form())
    assert (first.question, first.answer, first.images) == ("Same?", "Yes.", IMAGES)
    assert (second.question, second.answer, second.images) == ("\nNow?", "No.", ["c.png", "d.png"])
    first, second = dialogue_rounds(row(TWO, "a: Yes.", "u: And the style?", "a: No."), Form())
    assert first.images == IMAGES and second.images == [], "which its reader rejects: it shows no images"
    turns = [{"from": "human", "value": TWO[3:]}, {"from": "gpt", "value": "Yes."}]
    assert dialogue_rounds({"conversations": turns, "images": IMAGES}, CONVERSATIONS) == [first]


@pytest.mark.parametrize("system", ["", " ", "You are a helpful assistant.", None])
def test_the_usual_system_turn_changes_nothing(system: str | None) -> None:
    plain = dialogue_rounds(row(TWO, "a: Yes."), Form())
    assert dialogue_rounds(row(TWO, "a: Yes.", system=system), Form()) == plain
    assert dialogue_rounds(row(f"s: {system or ''}", TWO, "a: Yes."), Form()) == plain


@pytest.mark.parametrize(
    ("turns", "kind", "key"),
    [
        (row(TWO, "a: Yes.", "u: More?"), "turns", "user, assistant, user"),
        (row("a: No.", TWO), "turns", "assistant, user"),
        (row("s: "), "turns", "none"),
        (row(TWO, "f: {}", "o: 3", "a: Yes."), "turns", "function_call"),
        (row(TWO, "s: ", "a: Yes."), "turns", "user, system, assistant"),
        (row("s: Always say No.", TWO, "a: Yes."), "system", "Always say No."),
        (row(TWO, "a: Yes.", system="Be brief."), "system", "Be brief."),
        (row("u: <image>Same?", "a: Yes.", images="a.png"), "record", "1 images and 1 marks"),
        (row(TWO, "a: Yes.", images="a.png"), "record", "1 images and 2 marks"),
        (row(TWO, "a: Yes.", TWO, "a: No."), "record", "2 images and 4 marks"),
        (row(TWO, "a: Yes <image>."), "record", "<image>"),
        (row(TWO, "a: Yes.", images=None), "record", "images"),
        (row(TWO, "a: Yes.", images=[{"bytes": "x"}, "b"]), "record", "images"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "record", "content"),
        ({"messages": [{"from": "human", "value": "x"}]}, "record", "role and content"),
        ({"messages": "Same?"}, "record", "messages"),
        ({"text": "x"}, "record", "messages"),
    ],
)
def test_other_rows_are_rejected_by_kind_and_key(turns: dict[str, Any], kind: str, key: str) -> None:
    with pytest.raises(DataError, match=f"^{kind}: ") as error:
        dialogue_rounds(turns, Form())
    assert key in str(error.value)


@pytest.mark.parametrize(
    "question",
    [
        PairQuestion(theme='A "cat", {big}'),
        PairQuestion(instruction="Don't: 'cut' it."),
        PairQuestion(),
        PairQuestion(name='Mia "M" Fox', template="character"),
    ],
)
def test_questions_are_read_back_to_the_letter(question: PairQuestion) -> None:
    assert parse_question(question.text("theme" if question.theme else "plain")) == question
    assert parse_question("Are they alike?") is None
