"""Telling people that something went wrong: a line in ``.paco/alerts.jsonl``, and a webhook where one is named.

``PACO_ALERT_WEBHOOK`` takes JSON of the form ``{"text": ...}``, as Slack and Mattermost do. Its address is a
secret: it is neither kept nor logged.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from pathlib import Path

import httpx

from paco_core.io.secrets import redacted

FILE = Path(".paco") / "alerts.jsonl"
WEBHOOK = "PACO_ALERT_WEBHOOK"
TIMEOUT_S, CHARACTERS = 10.0, 2000


def alert(root: Path, title: str, text: str, link: str | None = None) -> str:
    """Send it; returns where it was sent. A webhook that fails loses nothing: the line is on disk before."""
    message = redacted(text)[:CHARACTERS]
    entry = {"time": datetime.now(UTC).isoformat(timespec="seconds"), "title": redacted(title), "text": message}
    if link:
        entry["link"] = link
    file = root / FILE
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("a", encoding="utf-8") as stream:
        stream.write(json.dumps(entry, ensure_ascii=False) + "\n")
    url = os.environ.get(WEBHOOK)
    return f"kept in {file}" + (f", {_post(url, entry)}" if url else "")


def _post(url: str, entry: dict[str, str]) -> str:
    words = "\n".join(part for part in (entry["title"], entry["text"], entry.get("link", "")) if part)
    try:
        answer = httpx.post(url, json={"text": words}, timeout=TIMEOUT_S)
    except httpx.HTTPError as error:
        return f"the webhook did not answer ({type(error).__name__})"
    return "sent to the webhook" if answer.is_success else f"the webhook answered {answer.status_code}"
