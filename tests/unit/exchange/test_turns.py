"""Which question has which answer and which pictures, in rows of LLaMA-Factory's ShareGPT form."""

from __future__ import annotations

import re
from typing import Any

import pytest

from paco_core.exchange.sharegpt import CONVERSATIONS
from paco_core.exchange.turns import Form, rounds
from paco_core.io.files import DataError

IMAGES = ["a.png", "b.png"]


def said(*turns: str, **more: Any) -> dict[str, Any]:
    """A row of turns, each "u: text", "a: text" and so on."""
    names = {"u": "user", "a": "assistant", "s": "system", "o": "observation", "f": "function_call"}
    spoken = [{"role": names[turn[0]], "content": turn[3:]} for turn in turns]
    return {"messages": spoken, "images": IMAGES, **more}


TWO = "u: <image><image>Same?"


def test_turns_keep_their_order() -> None:
    row = said(TWO, "a: Yes.", "u: <image>\n<image>Now?", "a: No.", images=[*IMAGES, "c.png", "d.png"])
    first, second = rounds(row, Form())
    assert (first.asked, first.answer, first.images) == ("Same?", "Yes.", IMAGES)
    assert (second.asked, second.answer, second.images) == ("\nNow?", "No.", ["c.png", "d.png"])
    first, second = rounds(said(TWO, "a: Yes.", "u: And the style?", "a: No."), Form())
    assert first.images == IMAGES and second.images == [], "which its reader rejects: it shows no pictures of its own"
    spoken = [{"from": "human", "value": TWO[3:]}, {"from": "gpt", "value": "Yes."}]
    assert rounds({"conversations": spoken, "images": IMAGES}, CONVERSATIONS) == [first]


@pytest.mark.parametrize("system", ["", " ", "You are a helpful assistant."])
def test_the_usual_system_turn_changes_nothing(system: str) -> None:
    (plain,) = rounds(said(TWO, "a: Yes."), Form())
    assert rounds(said(f"s: {system}", TWO, "a: Yes."), Form()) == rounds(said(TWO, "a: Yes.", system=system), Form())
    assert rounds(said(TWO, "a: Yes.", system=None), Form()) == [plain]


@pytest.mark.parametrize(
    ("row", "cause"),
    [
        (said(TWO, "a: Yes.", "u: More?"), "turns: user, assistant, user; expected user, assistant, each"),
        (said("a: No.", TWO), "turns: assistant, user; expected"),
        (said(TWO, "a: Yes.", "a: No."), "turns: user, assistant, assistant; expected"),
        (said(TWO, TWO, "a: Yes."), "turns: user, user, assistant; expected"),
        (said(TWO), "turns: user; expected"),
        (said("s: "), "turns: nobody; expected"),
        (said(TWO, "f: {}", "o: 3", "a: Yes."), "turns: user, function_call, observation, assistant; expected"),
        (said(TWO, "s: ", "a: Yes."), "turns: user, system, assistant; expected"),
        (said("s: Always say No.", TWO, "a: Yes."), "system: the reward model is asked without .* 'Always say No.'"),
        (said(TWO, "a: Yes.", system="Be brief."), "system: .*'Be brief.'"),
        (said("u: <image>Same?", "a: Yes.", images="a.png"), "record: 1 image and 1 <image> mark, expected 2 of each"),
        (said(TWO, "a: Yes.", images="a.png"), "record: 1 image and 2 <image> marks, expected 2 of each"),
        (said(TWO, "a: Yes.", images=["a.png"] * 5), "record: 5 images and 2 <image> marks, expected 2 of each"),
        (said(TWO, "a: Yes.", TWO, "a: No."), "record: 2 images and 4 <image> marks, expected 2 of each a question"),
        (said(TWO, "a: Yes <image>."), "record: an answer holds <image>"),
        (said(TWO, "a: Yes.", images=None), "record: images is missing, expected a list of paths"),
        (said(TWO, "a: Yes.", images=[{"bytes": "x"}, "b"]), "record: images holds a dict, expected paths"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "turn 1: its content is a list, expec"),
        ({"messages": [{"from": "human", "value": "x"}]}, "record: turn 1 is no object of role and content"),
        ({"messages": "Same?"}, "record: messages is no list of turns"),
        ({"text": "x"}, "record: key 'messages' is missing; found text"),
    ],
)  # fmt: skip
def test_other_rows_are_rejected_with_their_true_cause(row: dict[str, Any], cause: str) -> None:
    with pytest.raises(DataError) as error:
        rounds(row, Form())
    assert re.search(cause, str(error.value))
