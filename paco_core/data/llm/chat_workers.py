"""Questions to a chat model asked by workers elsewhere; answers come home to the one journal.

A worker that is killed loses the answers of its piece, which are asked for again. All workers together have as many
requests in flight as ``in_flight`` says. The key is read from each worker's own environment and never sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import BaseModel

from paco_core.data.llm.chat_connection import ChatError
from paco_core.data.llm.chat_protocol import Question, Reply
from paco_core.data.llm.openai_chat import Chat, ChatCounts, Notes
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from paco_core.config.params import ChatParams

T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)


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
    for number, asked in launchers.spread(pieces, make):
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
    if launchers.chosen() == "ray":
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
