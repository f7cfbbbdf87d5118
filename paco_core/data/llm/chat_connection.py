"""An OpenAI-compatible endpoint: its key, requests from many threads, and what can go wrong with it.

What the endpoint did not serve (408, 409, 429, 5xx, no connection, no answer in time) is tried again with back-off,
jitter and ``Retry-After`` by :class:`paco_core.io.http_client.HttpClient`.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BaseModel, ValidationError

from paco_core.data.llm.chat_protocol import Rejection
from paco_core.io.files import DataError
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.validation import first_fault

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams

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
    """The endpoint cannot be worked with; what it answered so far is kept."""


class NoAnswer(Exception):
    """Nothing to judge came back; ``final`` when asking the same later would bring nothing either."""

    def __init__(self, cause: str, detail: str = "", *, final: bool = False) -> None:
        super().__init__(cause)
        self.rejection, self.final = Rejection(cause, detail), final


class Endpoint:
    """Requests with ``params.in_flight`` of them on their way at a time: :meth:`each` and, in it, :meth:`complete`.

    Raises:
        ChatError: when the environment variable that should hold the key is empty.
    """

    def __init__(self, params: ChatParams) -> None:
        self.params = params
        self._key = os.environ.get(params.api_key_env, "") if params.api_key_env else None
        if self._key == "":
            raise ChatError(f"{params.base_url}: the environment variable {params.api_key_env} holds no key")
        self._lock = threading.Lock()
        self._client: HttpClient | None = None
        self._unserved = 0  # requests in a row
        self._ended: BaseException | None = None

    @property
    def retries(self) -> int:
        """Tries beyond the first, of all requests of the present or last :meth:`each`."""
        return 0 if self._client is None else self._client.retries

    @property
    def name(self) -> str:
        return f"{self.params.base_url}, model {self.params.model}"

    def each(self, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
        """Do work that asks on each item; the results in the order of the items, which are taken one by one.

        After the first exception, what is on its way is waited for, so that it is kept, and no more is asked.

        Raises:
            BaseException: the first that ``items`` or ``work`` raised; on Ctrl-C and SIGTERM nothing is waited for.
        """
        turns, found = enumerate(items), dict[int, R]()
        taking = threading.Lock()

        def go_on(_worker: int) -> None:
            try:
                while self._ended is None:
                    with taking:
                        turn = next(turns, None)
                    if turn is None:
                        return
                    found[turn[0]] = work(turn[1])
            except BaseException as error:
                self._ended = self._ended or error

        given = self.params
        patience = Patience(given.retries, BACKOFF_S, when_late=True)
        self._ended = None
        self._client = HttpClient(given.base_url, given.timeout_s, patience, self._key, through_proxy=True)
        with ThreadPoolExecutor(given.in_flight, thread_name_prefix="chat") as pool:
            try:
                list(pool.map(go_on, range(given.in_flight)))
            except BaseException as error:
                self._ended = error
                self._client.interrupt()
                raise
        if self._ended is not None:
            raise self._ended
        return [found[number] for number in sorted(found)]

    def complete(self, body: dict[str, Any], form: type[M]) -> M:
        """The chat completion that the endpoint answers a request's body with; for the ``work`` of :meth:`each`.

        Args:
            form: what of an answer is read.

        Raises:
            NoAnswer: when it answers none.
            ChatError: when it refuses the key, does not know the model, or has served nothing for a while.
        """
        if self._client is None or self._ended is not None:
            raise self._ended or RuntimeError("complete() is called in the work of each()")
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
                        "what was answered is kept: run again to resume from there"
                    ) from None
            raise failure from None
        self._unserved = 0
        return answer

    def _failure(self, error: RequestFailed | ValidationError) -> NoAnswer:
        if isinstance(error, ValidationError):
            return NoAnswer("no_chat_completion", f"the endpoint answered something else ({first_fault(error)})")
        if error.status in FATAL:
            hint = FATAL[error.status].format(key=self.params.api_key_env or "(no key is configured)")
            raise ChatError(f"{self.name}: {error.cause}; {hint}")
        if error.status is not None:
            return NoAnswer(f"http_{error.status}", error.cause, final=not error.is_busy)
        causes = {"time": "no_answer_in_time", "answer": "no_chat_completion"}
        return NoAnswer(causes.get(error.kind, "no_connection"), error.cause)
