"""Somebody else's scorer on a real socket: answers what a test makes up, and keeps the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

from paco_core.config.params import HttpScorer
from tests.support.loopback import Loopback, Quiet

#: The samples of a request and its number -> status and the JSON that is answered; None hangs up.
Answer = Callable[[list[dict[str, Any]], int], "tuple[int, Any] | None"]


class ScorerServer(Loopback):
    """``answer(samples, n)`` makes the reply to the n-th request."""

    def __init__(self, answer: Answer) -> None:
        state, lock = self, threading.Lock()
        self.requests: list[dict[str, Any]] = []
        self.paths: set[str] = set()
        self.keys: set[str | None] = set()

        class Handler(Quiet):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                with lock:
                    number = len(state.requests)
                    state.requests.append(body)
                    state.paths.add(self.path)
                    state.keys.add(self.headers["Authorization"])
                given = answer(body["samples"], number)
                if given is None:
                    self.close_connection = True
                    return
                self.reply(given[0], json.dumps(given[1]).encode(), {"Content-Type": "application/json"})

        super().__init__(Handler)

    def scorer(self, **changes: Any) -> HttpScorer:
        """How to reach this server."""
        return HttpScorer(**{"url": f"{self.url}/v2/score?team=a", "model": "aesthetics 1", **changes})
