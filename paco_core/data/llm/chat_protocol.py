"""What is asked of a chat model and what comes back, and how both look in OpenAI's protocol."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from paco_core.io.files import DataError, digest
from paco_core.io.secrets import one_line
from paco_core.io.text import parse_json, spell_surrogates
from paco_core.io.validation import first_fault

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import ChatParams

A = TypeVar("A", bound=BaseModel)

FENCE = re.compile(r"^\s*```(?:json)?\s*(.*?)\s*```\s*$", re.DOTALL)


@dataclass(frozen=True)
class Rejection:
    """Why there is no answer: a short name to count by, and the details."""

    cause: str
    detail: str = ""

    def __str__(self) -> str:
        return one_line(f"{self.cause}: {self.detail}" if self.detail else self.cause)


@dataclass(frozen=True)
class Question(Generic[A]):
    """One question. Two with equal ids and equal contents are the same question.

    Attributes:
        answer: the form of the answer, a pydantic model closed to unknown keys and without default values (what
            "strict" structured output asks for).
        images: sent after the text, in this order, as lossless PNG.
        fault: what else is wrong with an answer that has the form, or None.
    """

    id: str
    text: str
    answer: type[A]
    system: str = ""
    images: Sequence[Image] = ()
    fault: Callable[[A], Rejection | None] = lambda _answer: None


@dataclass(frozen=True)
class Reply(Generic[A]):
    """An answer, or None; and every rejection on the way to it, the last one being the cause of None.

    Not ``served``: the endpoint was down, overloaded or broken, so that another run may bring an answer.
    """

    answer: A | None
    rejected: tuple[Rejection, ...] = ()
    served: bool = True


ReplyText = Annotated[str, AfterValidator(spell_surrogates)]


class ReplyMessage(BaseModel):
    content: ReplyText | None = None
    refusal: ReplyText | None = None


class Choice(BaseModel):
    message: ReplyMessage
    finish_reason: ReplyText | None = None


class ReplyUsage(BaseModel):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class Completion(BaseModel):
    """What is read of a chat completion."""

    model: ReplyText = ""
    choices: list[Choice] = Field(min_length=1)
    usage: ReplyUsage | None = None


class ChatLine(BaseModel):
    """One line of the journal."""

    key: str
    id: str
    model: str
    content: str
    finish: str | None


def key_of(params: ChatParams, question: Question[Any]) -> str:
    """Identity of a question, under which its answers lie in a journal.

    Depends on, and holds: the model's name and the options of a request; whether the form of the answer is enforced or
    asked for in the text (``structured``); the question's id, texts and form, and mode, size and pixels of its
    pictures, in order. The address is left out, so that a run goes on where the endpoint has moved: a name is taken to
    mean the same weights wherever they are served, which no endpoint proves. What an answer is rejected for is no
    part either: it is looked for in each answer anew.
    """
    pictures = [hashlib.sha256(f"{i.mode}{i.size}".encode() + i.tobytes()).hexdigest() for i in question.images]
    schema = question.answer.model_json_schema()
    asked = [params.model, params.structured, params.options]
    return digest([*asked, question.id, question.system, question.text, schema, pictures], 24)


def messages_of(params: ChatParams, question: Question[Any]) -> list[dict[str, Any]]:
    text = question.text
    if params.structured != "json_schema":
        schema = json.dumps(question.answer.model_json_schema())
        text += f"\n\nAnswer with one JSON object and nothing else. Its JSON schema: {schema}"
    parts: list[dict[str, Any]] = [{"type": "text", "text": text}]
    parts += map(picture_part, question.images)
    system = [{"role": "system", "content": question.system}] if question.system else []
    return [*system, {"role": "user", "content": parts if question.images else text}]


def picture_part(image: Image) -> dict[str, Any]:
    """A picture as a part of a message."""
    return {"type": "image_url", "image_url": {"url": data_url(image)}}


def data_url(image: Image) -> str:
    """A picture as lossless PNG in a data URL."""
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def read(question: Question[A], line: ChatLine) -> A | Rejection:
    """The answer in a reply, or what is wrong with it."""
    if line.finish in ("refusal", "content_filter"):
        return Rejection("refused")
    if not line.content.strip():
        return Rejection("empty_answer", f"finish reason {line.finish}")
    fenced = FENCE.match(line.content)
    text = fenced.group(1) if fenced else line.content
    try:
        answer = question.answer.model_validate_json(text)
        parse_json(text)
    except DataError as error:
        return Rejection("no_text", str(error))
    except ValidationError as error:
        fault = error.errors()[0]
        if fault["type"] == "json_invalid":
            return Rejection("cut_off" if line.finish == "length" else "no_json", fault["msg"])
        return Rejection("wrong_form", first_fault(error))
    return question.fault(answer) or answer
