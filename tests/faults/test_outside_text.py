"""Text from outside: what a scorer, a chat model, a file or an argument gives is shown and kept without harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from paco_core.cli import main
from paco_core.config.params import RewardTerm
from paco_core.data.llm.journal import Journal, SharedJournal
from paco_core.data.llm.openai_chat import Chat, Question
from paco_core.data.records.records import read_prompts
from paco_core.io.files import DataError
from paco_core.io.http_client import HttpClient, Patience, RequestFailed
from paco_core.io.secrets import redacted
from paco_core.rewards import registry
from paco_core.rewards.sources import Sources
from tests.support.chat_server import ChatServer, Raw
from tests.support.loopback import Loopback, Quiet
from tests.support.scorer_server import ScorerServer
from tests.unit.rewards.test_http import batch

KEY = "hunter2-hunter2-hunter2"
HOSTILE = "\x1b[31mRED\x1b]0;pwned\x07 \ud800 line\nsecond line: everything is fine\u202e"
RECORD = {
    "idx": "a", "prompt": "Cats. [LEFT]: x [RIGHT]: y", "height": 64, "width": 64, "layout": "1x2", "theme": "t",
    "category": "c", "task_name": "t", "criteria": {},
}  # fmt: skip


def test_the_causes_of_a_scorer_have_no_key_and_steer_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THEIR_SCORER", KEY)  # a name that does not say what it is

    def answer(samples: list[dict[str, Any]], _number: int) -> tuple[int, Any]:
        return 200, {"scores": [None] * len(samples), "causes": [f"who is {KEY} {HOSTILE}"] * len(samples)}

    with ScorerServer(answer) as server:
        term = RewardTerm(weight=1.0, reward="http", http=server.scorer(api_key_env="THEIR_SCORER"))
        reward = registry.build_reward("theirs", term, Sources(root=tmp_path))
        reward(batch(1, 2))
    ((cause, count),) = reward.causes.items()
    assert count == 2 and cause.isprintable() and KEY not in cause
    assert KEY not in redacted(f"and in a log line {KEY}")


def test_the_words_of_a_server_are_one_line_of_plain_text() -> None:
    class Handler(Quiet):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.reply(400, json.dumps({"error": {"message": HOSTILE}}).encode())

    with Loopback(Handler) as server, pytest.raises(RequestFailed) as raised:
        HttpClient(server.url, 5, Patience(retries=0)).call("POST", "/", b"{}")
    assert raised.value.cause.isprintable() and "RED" in raised.value.cause


class Colour(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


@pytest.mark.parametrize("text", [r'{"name": "\ud800"}', r'{"name": "a\u0000b"}', "\ud800"])
@pytest.mark.parametrize("kind", [Journal, SharedJournal])
def test_an_answer_that_is_no_text_is_kept_and_rejected(
    tmp_path: Path, text: str, kind: type[Journal] | type[SharedJournal]
) -> None:
    """Asked for a second time in the same run, and not again in the next one."""

    def answer(_body: dict[str, Any], number: int) -> Raw:
        content = text if number == 0 else '{"name": "red"}'
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        return Raw(body=json.dumps({"model": "writer", "choices": [choice]}).encode())

    with ChatServer(answer) as server:
        for _run in range(2):
            chat = Chat(server.params(tries=2, in_flight=1), kind(tmp_path / f"{kind.__name__}.jsonl"))
            (reply,) = chat.query_here(["x"], lambda item: Question(item, "Which colour?", Colour))
            if isinstance(chat.journal, Journal):
                chat.journal.close()
            assert reply.answer == Colour(name="red") and len(reply.rejected) == 1
        assert len(server.bodies) == 2


@pytest.mark.parametrize(("key", "character"), [("theme", "\ud800"), ("prompt", "\0")])
def test_a_record_with_what_is_no_text_is_refused_by_its_line(tmp_path: Path, key: str, character: str) -> None:
    file = tmp_path / "prompts.jsonl"
    row = {**RECORD, key: f"{RECORD[key]}{character}"}
    file.write_text(json.dumps(RECORD) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(DataError, match=f"{file}:2: ") as raised:
        read_prompts(file)
    assert str(raised.value).isprintable()
    file.write_text(json.dumps({**RECORD, "theme": "cats \U0001f600 and \\u0000"}))
    assert read_prompts(file)[0].theme == "cats \U0001f600 and \\u0000"


def test_an_argument_that_is_not_utf_8_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit_info:
        main(["score", "a.png", "b\udcff.png"])
    assert exit_info.value.code == 2 and r"b\udcff.png" in capsys.readouterr().err
