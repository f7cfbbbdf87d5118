"""Somebody else's scorer on a real socket: answers what a test makes up, and keeps the requests."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from paco_core.config.params import HttpScorer
from tests.support.loopback import JsonServer, Raw

#: The samples of a request and its number -> status and the JSON that is answered; None hangs up.
Answer = Callable[[list[dict[str, Any]], int], "tuple[int, Any] | None"]


class ScorerServer(JsonServer):
    def __init__(self, answer: Answer) -> None:
        def reply(body: dict[str, Any], number: int) -> Raw | None:
            answered = answer(body["samples"], number)
            return None if answered is None else Raw(answered[0], json.dumps(answered[1]).encode())

        super().__init__(reply)
        self.requests = self.bodies

    def scorer(self, **changes: Any) -> HttpScorer:
        """How to reach this server."""
        return HttpScorer(**{"url": f"{self.url}/v2/score?team=a", "model": "aesthetics 1", **changes})
