"""Chat: questions to a chat model behind any OpenAI-compatible endpoint, with answers of a given form.

    class Colour(BaseModel):
        model_config = ConfigDict(extra="forbid")
        name: str

    with Journal(path) as journal:
        chat = Chat(params, journal)
        replies = ask_all(chat, rows, lambda row: Question(row.id, "Which colour?", Colour, images=[row.picture]))

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
    key_of,
    messages_of,
    read,
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
    """What a client has done so far."""

    requests: int = 0  # answered by the endpoint in this run
    remembered: int = 0  # answers taken from the journal instead
    retries: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    rejected: Counter[str] = field(default_factory=Counter)  # by cause

    def add(self, other: ChatCounts) -> None:
        """What another client did, added."""
        for name in ("requests", "remembered", "retries", "prompt_tokens", "completion_tokens"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.rejected.update(other.rejected)

    def figures(self) -> dict[str, int]:
        """What a stage reports; rejections apart."""
        return {
            "requests": self.requests,
            "remembered_answers": self.remembered,
            "retries": self.retries,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
        }


@dataclass
class Notes:
    """A journal in memory, of a worker that sends it home."""

    path: Path
    rows: list[dict[str, Any]]

    def append(self, row: dict[str, Any]) -> None:
        self.rows.append(row)


class Chat:
    """A client of one model.

    Use :func:`paco_core.data.llm.openai_chat.ask_all`, or :meth:`each` and, in its work, :meth:`ask`.

    Args:
        journal: answers of earlier runs, and where new ones go.

    Raises:
        ChatError: when the environment variable that should hold the key is empty; while asking, when the endpoint
            refuses the key or the model, or serves nothing any more.
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

    def ask_here(
        self,
        items: Iterable[T],
        question: Callable[[T], Question[A]],
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[Reply[A]]:
        """The replies in the order of the items, by this process; some may not have been served."""

        def work(asked: Question[A]) -> Reply[A]:
            reply = self.ask(asked)
            advance(1)
            return reply

        return self.each(map(question, items), work)

    def each(self, items: Iterable[T], work: Callable[[T], R]) -> list[R]:
        """See :meth:`paco_core.data.llm.chat_protocol.Endpoint.each`."""
        try:
            return self._endpoint.each(items, work)
        finally:
            self.counts.retries += self._endpoint.retries

    def ask(self, question: Question[A]) -> Reply[A]:
        """Ask until the answer is good, ``params.tries`` times at most, counting those in the journal."""
        key, rejected = key_of(self.params, question), list[Rejection]()
        lines = self._lines[key]
        for number in range(self.params.tries):
            remembered = number < len(lines)
            if not remembered:
                try:
                    lines.append(self._request(key, question, lines[:number], rejected))
                except NoAnswer as error:
                    self._count([*rejected, error.rejection])
                    return Reply(None, (*rejected, error.rejection), served=error.final)
            answer = read(question, lines[number])
            with self._lock:
                self.counts.remembered += remembered
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
        for before, fault in zip(lines, rejected, strict=True):
            messages.append({"role": "assistant", "content": before.content or "(empty)"})
            messages.append({"role": "user", "content": f"This answer is rejected: {fault}. Answer again, rightly."})
        found = self._endpoint.complete(self._body(messages, question.answer), Completion)
        choice, usage = found.choices[0], found.usage or ReplyUsage()
        finish = "refusal" if choice.message.refusal else choice.finish_reason
        line = ChatLine(key=key, id=question.id, model=found.model, content=choice.message.content or "", finish=finish)
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
    """What a worker brought home: replies, lines for the journal, counts; and why it could not go on, if so."""

    replies: list[Reply[A]]
    lines: list[dict[str, Any]]
    counts: ChatCounts
    error: str | None = None


class Asker(Generic[T, A]):
    """A worker with a client of its own, which knows what the journal held when the work began."""

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
        known, replies, error = len(self._notes.rows), list[Reply[A]](), None
        chat = Chat(self._params, self._notes)
        try:
            replies = chat.ask_here(items, self._question)
        except ChatError as found:
            error = str(found)
        return WorkerReplies(replies, self._notes.rows[known:], chat.counts, error)


def ask_apart(
    chat: Chat, items: Sequence[T], question: Callable[[T], Question[A]], advance: Callable[[int], object]
) -> list[Reply[A]]:
    """The replies in the order of the items, by workers of the chosen launcher.

    Raises:
        ChatError: when a worker cannot work with the endpoint; what was answered lies in the journal.
    """
    size = chat.params.in_flight
    pieces = [items[start : start + size] for start in range(0, len(items), size)]
    replies: dict[int, list[Reply[A]]] = {}
    make = partial(Asker[T, A], chat.params, question, chat.journal.path, list(chat.journal.rows))
    for number, asked in launchers.map_pieces(pieces, make):
        for row in asked.lines:
            chat.journal.append(row)
        chat.counts.add(asked.counts)
        if asked.error is not None:
            raise ChatError(asked.error)
        replies[number] = asked.replies
        advance(len(asked.replies))
    return [reply for number in sorted(replies) for reply in replies[number]]


def ask_all(
    chat: Chat,
    items: Iterable[T],
    question: Callable[[T], Question[A]],
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Reply[A]]:
    """The replies in the order of the items. A question is made when its turn comes, and forgotten after it.

    Where Ray is chosen, its workers ask: ``question`` must not hold what cannot be sent (progress, a context).

    Raises:
        ChatError: also when, all questions having been asked, the endpoint did not serve some of them.
    """
    if launchers.current_launcher() == "ray":
        replies = ask_apart(chat, list(items), question, advance)
    else:
        replies = chat.ask_here(items, question, advance)
    missing = Counter(reply.rejected[-1].cause for reply in replies if not reply.served)
    if missing:
        listed = ", ".join(f"{count} x {cause}" for cause, count in missing.most_common(5))
        raise ChatError(
            f"{chat.name}: {missing.total()} of {len(replies)} questions were not served ({listed}); the other "
            f"answers are kept in {chat.journal.path}: run again to ask for the rest"
        )
    return replies
