"""Chat: questions to a chat model behind any OpenAI-compatible endpoint, with answers of a given form.

    class Colour(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str

    with Journal(path) as journal:
        chat = Chat(params, journal)
        replies = query_all(chat, rows, lambda row: Question(row.id, "Which colour?", Colour, images=[row.picture]))

``in_flight`` requests run at a time. An answer of the wrong form is sent back with the error. Every answer goes to the
journal, so a killed run asks nothing twice. Workers of Ray may ask: a worker that is killed loses the answers of its
piece, which are asked for again. Each worker reads the key from its environment.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from paco_core.data.llm.chat_protocol import (
    ChatError,
    ChatLine,
    Completion,
    Endpoint,
    NoAnswer,
    Question,
    Rejection,
    Reply,
    ReplyUsage,
    journal_key,
    messages_of,
    parse_reply,
)
from paco_core.data.llm.journal import Journal, SharedJournal
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams


T = TypeVar("T")
R = TypeVar("R")
A = TypeVar("A", bound=BaseModel)


@dataclass
class ChatCounts:
    """Counts of the requests and answers of a client."""

    requests: int = 0  # answered by the endpoint in this run
    from_journal: int = 0  # answers taken from the journal instead
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by cause

    def add(self, other: ChatCounts) -> None:
        """Add the counts of another client."""
        for name in ("requests", "from_journal", "retries", "prompt_tokens", "completion_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rejected.update(other.rejected)

    def figures(self) -> dict[str, int]:
        """The metrics of a stage, without the rejections."""
        return {
            "requests": self.requests,
            "remembered_answers": self.from_journal,
            "retries": self.retries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass
class Notes:
    """A journal in memory, which a worker returns to the main process."""

    path: Path
    rows: list[dict[str, Any]]

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


class Chat:
    """A client of one model.

    Use :func:`paco_core.data.llm.openai_chat.query_all`, or :meth:`run_all` and, in its work, :meth:`query`.

    Args:
        journal: answers of earlier runs; new answers are appended.

    Raises:
        ChatError: if the environment variable of the key is empty. Queries raise it if the endpoint rejects the key or
            the model, or does not answer any more.
    """

    def __init__(self, params: ChatParams, journal: Journal | SharedJournal | Notes) -> None:
        self.params, self.counts, self.journal = params, ChatCounts(), journal
        self._endpoint = Endpoint(params)
        self._lines: defaultdict[str, list[ChatLine]] = defaultdict(list)
        for number, row in enumerate(journal.rows, start=1):
            try:
                line = ChatLine.model_validate(row)
            except ValidationError:
                raise ChatError(f"{journal.path}:{number}: not a line of a chat journal; remove it") from None
            self._lines[line.key].append(line)
        self._lock = threading.Lock()

    def query_here(
        self,
        items: Iterable[T],
        question: Callable[[T], Question[A]],
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[Reply[A]]:
        """Query in this process; the replies are in the order of the items, and some may not be ``served``."""

        def work(question: Question[A]) -> Reply[A]:
            reply = self.query(question)
            advance(1)
            return reply

        return self.run_all(map(question, items), work)

    def run_all(self, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
        """See :meth:`paco_core.data.llm.chat_protocol.Endpoint.run_all`."""
        try:
            return self._endpoint.run_all(items, work)
        finally:
            self.counts.retries += self._endpoint.retries

    def query(self, question: Question[A]) -> Reply[A]:
        """Query until the answer is valid, at most ``params.tries`` times, including the answers in the journal."""
        key, rejected = journal_key(self.params, question), list[Rejection]()
        lines = self._lines[key]
        for number in range(self.params.tries):
            from_journal = number < len(lines)
            if not from_journal:
                try:
                    lines.append(self._request(key, question, lines[:number], rejected))
                except NoAnswer as error:
                    self._count([*rejected, error.rejection])
                    return Reply(None, (*rejected, error.rejection), served=error.final)
            answer = parse_reply(question, lines[number])
            with self._lock:
                self.counts.from_journal += from_journal
            if not isinstance(answer, Rejection):
                self._count(rejected)
                return Reply(answer, tuple(rejected))
            rejected.append(answer)
        self._count(rejected)
        return Reply(None, tuple(rejected))

    def _count(self, rejected: Sequence[Rejection]) -> None:
        with self._lock:
            self.counts.rejected.update(rejection.cause for rejection in rejected)

    def _request(
        self, key: str, question: Question[A], lines: Sequence[ChatLine], rejected: Sequence[Rejection]
    ) -> ChatLine:
        messages = messages_of(self.params, question)
        for before, rejection in zip(lines, rejected, strict=True):
            messages.append({"role": "assistant", "content": before.content or "(empty)"})
            content = f"This answer is rejected: {rejection}. Answer again, rightly."
            messages.append({"role": "user", "content": content})
        completion = self._endpoint.complete(self._body(messages, question.answer), Completion)
        choice, usage = completion.choices[0], completion.usage or ReplyUsage()
        finish = "refusal" if choice.message.refusal else choice.finish_reason
        line = ChatLine(
            key=key, id=question.id, model=completion.model, content=choice.message.content or "", finish=finish
        )
        with self._lock:
            self.counts.requests += 1
            self.counts.prompt_tokens += usage.prompt_tokens
            self.counts.completion_tokens += usage.completion_tokens
            self.journal.append(line.model_dump())
        return line

    def _body(self, messages: list[dict[str, Any]], answer: type[BaseModel]) -> dict[str, Any]:
        body: dict[str, Any] = {"model": self.params.model, "messages": messages}
        if self.params.structured == "json_object":
            body["response_format"] = {"type": "json_object"}
        if self.params.structured == "json_schema":
            schema = {"name": answer.__name__, "strict": True, "schema": answer.model_json_schema()}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    @property
    def name(self) -> str:
        return self._endpoint.name


@dataclass(frozen=True)
class WorkerReplies(Generic[A]):
    """The result of a worker: replies, lines for the journal, counts, and the error that stopped it, if any."""

    replies: list[Reply[A]]
    lines: list[dict[str, Any]]
    counts: ChatCounts
    error: str | None = None


class QueryWorker(Generic[T, A]):
    """A worker with a separate client and a copy of the journal from the start of the work."""

    def __init__(
        self,
        params: ChatParams,
        question: Callable[[T], Question[A]],
        path: Path,
        rows: list[dict[str, Any]],
        workers: int,
    ) -> None:
        share = max(1, params.in_flight // workers)
        self._params, self._question = params.model_copy(update={"in_flight": share}), question
        self._notes = Notes(path, list(rows))

    def __call__(self, items: Sequence[T]) -> WorkerReplies[A]:
        num_rows, replies, error = len(self._notes.rows), list[Reply[A]](), None
        chat = Chat(self._params, self._notes)
        try:
            replies = chat.query_here(items, self._question)
        except ChatError as chat_error:
            error = str(chat_error)
        return WorkerReplies(replies, self._notes.rows[num_rows:], chat.counts, error)


def query_on_workers(
    chat: Chat, items: Sequence[T], question: Callable[[T], Question[A]], advance: Callable[[int], object]
) -> list[Reply[A]]:
    """Query on the workers of the launcher; the replies are in the order of the items.

    Args:
        question: builds the question of an item, on the worker.
        advance: called with the number of finished items.

    Raises:
        ChatError: if a worker cannot use the endpoint. The journal keeps the answers so far.
    """
    size = chat.params.in_flight
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    replies: dict[int, list[Reply[A]]] = {}
    make = partial(QueryWorker[T, A], chat.params, question, chat.journal.path, list(chat.journal.rows))
    for number, result in launchers.map_pieces(pieces, make):
        for row in result.lines:
            chat.journal.append(row)
        chat.counts.add(result.counts)
        if result.error is not None:
            raise ChatError(result.error)
        replies[number] = result.replies
        advance(len(result.replies))
    return [reply for number in sorted(replies) for reply in replies[number]]


def query_all(
    chat: Chat,
    items: Iterable[T],
    question: Callable[[T], Question[A]],
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Reply[A]]:
    """Query a chat model for all items; the replies are in the order of the items.

    A question is built just before its request and then dropped, so memory does not grow with the number of pictures.

    Args:
        question: builds the question of an item. With the launcher Ray it must be picklable, so it must not refer to
            progress bars or a stage context.
        advance: called with the number of finished items.

    Raises:
        ChatError: if the endpoint cannot be used, or did not serve some of the questions.
    """
    if launchers.current_launcher() == "ray":
        replies = query_on_workers(chat, list(items), question, advance)
    else:
        replies = chat.query_here(items, question, advance)
    missing = Counter(reply.rejected[-1].cause for reply in replies if not reply.served)
    if missing:
        causes = ", ".join(f"{count} x {cause}" for cause, count in missing.most_common(5))
        raise ChatError(
            f"{chat.name}: {missing.total()} of {len(replies)} questions were not served ({causes}); the other "
            f"answers are in {chat.journal.path}: run the command again to query for the missing ones"
        )
    return replies
