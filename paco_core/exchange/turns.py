"""The turns of one row in LLaMA-Factory's ShareGPT form: which question has which answer, and which pictures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from paco_core.io.files import DataError

IMAGE = "<image>"
PICTURES = 2  # of a pair, and so of a question
#: What the chat template of Qwen2.5-VL puts first by itself: as good as no system turn. Any other one changes what is
#: asked, and the reward model is not asked so.
USUAL_SYSTEM = ("", "You are a helpful assistant.")


@dataclass(frozen=True)
class Form:
    """How the rows of a file are written: the keys of a row and of a turn, and the names of those who speak."""

    messages: str = "messages"
    images: str = "images"
    system: str = "system"
    role_tag: str = "role"
    content_tag: str = "content"
    user_tag: str = "user"
    assistant_tag: str = "assistant"
    system_tag: str = "system"


@dataclass(frozen=True)
class DialogueRound:
    """A question, the answer that follows it, and the pictures that its marks stand for."""

    asked: str  # without the marks of the pictures
    answer: str
    images: list[str]


def rounds(row: Mapping[str, Any], form: Form) -> list[DialogueRound]:
    """The rounds of a row, in order; each has the pictures of its own marks, which take them in order.

    Raises:
        DataError: when the row has no turns, they do not go question, answer, question, answer, one of them is no
            text, a system turn changes what is asked, or there are not as many pictures as marks.
    """
    if form.messages not in row:
        raise DataError(f"record: key {form.messages!r} is missing; found {', '.join(map(str, row)) or 'none'}")
    turns = row[form.messages]
    if not isinstance(turns, list) or not turns:
        raise DataError(f"record: {form.messages} is no list of turns")
    spoken = list(_spoken(turns, form))
    system = row.get(form.system)
    if spoken[0][0] == form.system_tag:
        system = spoken.pop(0)[1]
    if system is not None and (not isinstance(system, str) or system.strip() not in USUAL_SYSTEM):
        raise DataError(f"system: the reward model is asked without this system turn: {str(system)[:60]!r}")
    roles = [role for role, _ in spoken]
    if roles != [form.user_tag, form.assistant_tag] * max(1, len(roles) // 2):
        listed = ", ".join(map(str, roles[:6])) + (", ..." if len(roles) > 6 else "") or "nobody"
        raise DataError(
            f"turns: {listed}; expected {form.user_tag}, {form.assistant_tag}, each question with one answer"
        )
    texts = [text for _, text in spoken]
    return list(_rounds(texts[::2], texts[1::2], _images(row, form)))


def _spoken(turns: list[Any], form: Form) -> Iterator[tuple[str, str]]:
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or form.role_tag not in turn or form.content_tag not in turn:
            raise DataError(f"record: turn {number} is no object of {form.role_tag} and {form.content_tag}")
        content = turn[form.content_tag]
        if not isinstance(content, str):
            raise DataError(f"record: turn {number}: its {form.content_tag} is {_kind(content)}, expected a string")
        yield turn[form.role_tag], content


def _images(row: Mapping[str, Any], form: Form) -> list[str]:
    """Paths; one alone may stand without its list, as LLaMA-Factory allows."""
    given = row.get(form.images)
    if isinstance(given, str):
        return [given]
    if not isinstance(given, list):
        raise DataError(f"record: {form.images} is {_kind(given)}, expected a list of paths")
    for image in given:
        if not isinstance(image, str):
            raise DataError(f"record: {form.images} holds {_kind(image)}, expected paths")
    return given


def _rounds(questions: list[str], answers: list[str], images: list[str]) -> Iterator[DialogueRound]:
    marks = [question.count(IMAGE) for question in questions]
    if any(IMAGE in answer for answer in answers):
        raise DataError(f"record: an answer holds {IMAGE}")
    if len(images) != sum(marks) or (len(marks) == 1 and marks != [PICTURES]):
        expected = f"{PICTURES} of each" + (" a question" if len(marks) > 1 else "")
        raise DataError(
            f"record: {_counted(len(images), 'image')} and {_counted(sum(marks), f'{IMAGE} mark')}, expected {expected}"
        )
    left = iter(images)
    for question, answer, count in zip(questions, answers, marks, strict=True):
        yield DialogueRound(question.replace(IMAGE, ""), answer, list(islice(left, count)))


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _kind(value: object) -> str:
    return "missing" if value is None else f"a {type(value).__name__}"
