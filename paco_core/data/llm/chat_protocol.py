"""Chat protocol: questions to a chat model and its answers in OpenAI's protocol, and the endpoint that serves them.

Requests that the endpoint did not serve (408, 409, 429, 5xx, no connection, no answer in time) are repeated with
back-off, jitter and ``Retry-After`` by :class:`paco_core.io.http_client.HttpClient`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import AfterValidator, BaseModel, Field, ValidationError

from paco_core.io.files import DataError, digest
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.secrets import one_line
from paco_core.io.text import parse_json, spell_surrogates
from paco_core.io.validation import first_validation_error

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import ChatParams


A = TypeVar("A", bound=BaseModel)

FENCE = re.compile(r"^\s*```(?:json)?\s*(.*?)\s*```\s*$", re.DOTALL)


@dataclass(frozen=True)
class Rejection:
    """The cause of a missing answer: a short name, which is counted, and the details."""

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
        validation_error: returns the rejection of an answer that has the form but is invalid, or None.
    """

    id: str
    text: str
    answer: type[A]
    system: str = ""
    images: Sequence[Image] = ()
    validation_error: Callable[[A], Rejection | None] = lambda _answer: None


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


def journal_key(params: ChatParams, question: Question[Any]) -> str:
    """The key of a question in a journal of answers.

    It digests the name of the model, the options of the request, the setting ``structured``, the id, texts and answer
    form of the question, and the mode, size and pixels of its pictures in order. It does not contain the address of the
    endpoint, so a run resumes after the endpoint has moved. It does not contain the validation rules either, because
    every answer is validated again when it is read.
    """
    pictures = [hashlib.sha256(f"{i.mode}{i.size}".encode() + i.tobytes()).hexdigest() for i in question.images]
    schema = question.answer.model_json_schema()
    request = [params.model, params.structured, params.options]
    return digest([*request, question.id, question.system, question.text, schema, pictures], 24)


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


def parse_reply(question: Question[A], line: ChatLine) -> A | Rejection:
    """Parse the answer in a reply and validate it; returns the rejection if it is invalid."""
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
        first_error = error.errors()[0]
        if first_error["type"] == "json_invalid":
            return Rejection("cut_off" if line.finish == "length" else "no_json", first_error["msg"])
        return Rejection("wrong_form", first_validation_error(error))
    return question.validation_error(answer) or answer


T = TypeVar("T")
R = TypeVar("R")
M = TypeVar("M", bound=BaseModel)

GIVE_UP_AFTER = 8  # questions in a row that came to nothing, or as many as are in flight together
BACKOFF_S = 0.5
FATAL = {
    401: "is the key in {key} right?",
    403: "may the key in {key} use this model?",
    404: "does the endpoint serve this model, and does its base URL end where its documentation says (often /v1)?",
}


class ChatError(DataError):
    """The endpoint cannot be used. The journal keeps the answers so far."""


class NoAnswer(Exception):
    """The endpoint returned no answer; ``final`` means that a repeated request cannot succeed."""

    def __init__(self, cause: str, detail: str = "", *, final: bool = False) -> None:
        super().__init__(cause)
        self.rejection, self.final = Rejection(cause, detail), final


class Endpoint:
    """A chat endpoint that receives up to ``params.in_flight`` requests at a time.

    Call :meth:`run_all`, and :meth:`complete` in its ``work``.

    Raises:
        ChatError: if the environment variable of the key is empty.
    """

    def __init__(self, params: ChatParams) -> None:
        self.params = params
        self._key = os.environ.get(params.api_key_env, "") if params.api_key_env else None
        if self._key == "":
            raise ChatError(
                f"{params.base_url}: the environment variable {params.api_key_env} is empty; set it to the key"
            )
        self._lock = threading.Lock()
        self._client: HttpClient | None = None
        self._unserved = 0  # requests in a row
        self._error: BaseException | None = None

    @property
    def retries(self) -> int:
        """The number of retries of all requests of the present or last :meth:`run_all`."""
        return 0 if self._client is None else self._client.retries

    @property
    def name(self) -> str:
        return f"{self.params.base_url}, model {self.params.model}"

    def run_all(self, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
        """Call ``work`` for each item in threads; the results are in the order of the items.

        Items are taken from the iterable one by one. After the first exception no further item is started, but running
        requests finish, so their answers are kept.

        Raises:
            BaseException: the first exception of ``items`` or ``work``. Ctrl-C and SIGTERM interrupt running requests.
        """
        turns, results = enumerate(items), dict[int, R]()
        taking = threading.Lock()

        def go_on(_worker: int) -> None:
            try:
                while self._error is None:
                    with taking:
                        turn = next(turns, None)
                    if turn is None:
                        return
                    results[turn[0]] = work(turn[1])
            except BaseException as error:  # the caller raises it again  # noqa: BLE001
                self._error = self._error or error

        params = self.params
        patience = Patience(params.retries, BACKOFF_S, when_late=True)
        self._error = None
        self._client = HttpClient(params.base_url, params.timeout_s, patience, self._key, through_proxy=True)
        with ThreadPoolExecutor(params.in_flight, thread_name_prefix="chat") as pool:
            try:
                list(pool.map(go_on, range(params.in_flight)))
            except BaseException as error:
                self._error = error
                self._client.interrupt()
                raise
        if self._error is not None:
            raise self._error
        return [results[number] for number in sorted(results)]

    def complete(self, body: dict[str, Any], form: type[M]) -> M:
        """Send a request and return the chat completion; only for the ``work`` of :meth:`run_all`.

        Args:
            form: the model of the fields that are read.

        Raises:
            NoAnswer: if the endpoint returns no chat completion.
            ChatError: if the endpoint rejects the key, does not know the model, or too many requests in a row failed.
        """
        if self._client is None or self._error is not None:
            raise self._error or RuntimeError("complete() is called in the work of each()")
        try:
            data = json.dumps(body | self.params.options).encode()
            answer = form.model_validate(self._client.call("POST", "/chat/completions", data))
        except (RequestFailed, ValidationError) as error:
            failure = self._failure(error)
            with self._lock:
                self._unserved += 1
                if self._unserved >= max(GIVE_UP_AFTER, self.params.in_flight):
                    raise ChatError(
                        f"{self.name}: {self._unserved} questions in a row failed, the last with {failure.rejection}; "
                        "the journal keeps the answers so far: run the command again to resume"
                    ) from None
            raise failure from None
        self._unserved = 0
        return answer

    def _failure(self, error: RequestFailed | ValidationError) -> NoAnswer:
        if isinstance(error, ValidationError):
            return NoAnswer(
                "no_chat_completion", f"the endpoint answered something else ({first_validation_error(error)})"
            )
        if error.status in FATAL:
            hint = FATAL[error.status].format(key=self.params.api_key_env or "(no key is configured)")
            raise ChatError(f"{self.name}: {error.cause}; {hint}")
        if error.status is not None:
            return NoAnswer(f"http_{error.status}", error.cause, final=not error.is_busy)
        causes = {"time": "no_answer_in_time", "answer": "no_chat_completion"}
        return NoAnswer(causes.get(error.kind, "no_connection"), error.cause)
