"""A chat endpoint on a real socket that answers what a test makes up."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paco_core.config.params import ChatParams
from tests.support.loopback import JsonServer, Raw


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


class ChatServer(JsonServer):
    def __init__(self, answer: Answer) -> None:
        super().__init__(answer, path="/v1/chat/completions")

    @property
    def url(self) -> str:
        return f"{super().url}/v1"

    def params(self, **changes: Any) -> ChatParams:
        """How to reach this server."""
        defaults = {
            "base_url": self.url,
            "model": "writer",
            "api_key_env": None,
            "in_flight": 4,
            "retries": 2,
            "tries": 2,
        }
        return ChatParams(**{**defaults, **changes})
