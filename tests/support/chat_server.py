"""A chat endpoint on a real socket that answers what a test makes up."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paco_core.config.params import ChatParams
from tests.support.loopback import Loopback, Quiet


@dataclass(frozen=True)
class Raw:
    """A reply as it goes over the wire."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def completion(content: Any, finish: str = "stop", **message: Any) -> Raw:
    """A chat completion whose content is the given text, or the JSON of anything else."""
    text = content if isinstance(content, str | None) else json.dumps(content)
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", "content": text, **message}}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return Raw(body=json.dumps({"model": "writer-2026", "choices": [choice], "usage": usage}).encode())


def text_of(body: dict[str, Any]) -> str:
    """The text of the first user message of a request."""
    content = next(m["content"] for m in body["messages"] if m["role"] == "user")
    return content if isinstance(content, str) else str(content[0]["text"])


Answer = Callable[[dict[str, Any], int], "Raw | None"]


class ChatServer(Loopback):
    """``answer(body, n)`` makes the reply to the n-th request, None hangs up; keeps the requests and the keys."""

    def __init__(self, answer: Answer) -> None:
        state, lock = self, threading.Lock()
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str | None] = set()
        self.most_at_once = self._now = 0

        class Handler(Quiet):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                if not data:
                    return  # the client was killed
                body = json.loads(data)
                assert self.path == "/v1/chat/completions"
                with lock:
                    number = len(state.bodies)
                    state.bodies.append(body)
                    state.keys.add(self.headers["Authorization"])
                    state._now += 1
                    state.most_at_once = max(state.most_at_once, state._now)
                try:
                    raw = answer(body, number)
                finally:
                    with lock:
                        state._now -= 1
                if raw is None:
                    self.close_connection = True
                    return
                self.reply(raw.status, raw.body, {"Content-Type": "application/json", **raw.headers})

        super().__init__(Handler)

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def params(self, **changes: Any) -> ChatParams:
        """How to reach this server."""
        given = {"base_url": self.url, "model": "writer", "api_key_env": None, "in_flight": 4, "retries": 2, "tries": 2}
        return ChatParams(**{**given, **changes})
