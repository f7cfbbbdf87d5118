"""The chat client against an endpoint that fails in every way, and its journal against kills."""

from __future__ import annotations

import base64
import io
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel, ConfigDict

from paco_core.config.params import ChatParams
from paco_core.data.llm.chat_protocol import ChatError, Question, Rejection, Reply
from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat, query_all
from paco_core.io.files import DataError
from tests.support.chat_server import ChatServer, Raw, completion, text_of
from tests.support.loopback import Loopback, Quiet


class Word(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str


def small(answer: Word) -> Rejection | None:
    return None if answer.word.islower() else Rejection("not_small", "write small letters")


def query_server(server: ChatServer, path: Path, texts: list[str], **changes: Any) -> tuple[list[Reply[Word]], Chat]:
    with Journal(path / "journal.jsonl") as journal:
        chat = Chat(server.params(**changes), journal)
        return query_all(chat, texts, lambda text: Question(text, text, Word, validation_error=small)), chat


def echo(body: dict[str, Any], _number: int) -> Raw:
    return completion({"word": text_of(body)})


def test_answers_come_in_order_and_are_not_asked_twice(tmp_path: Path) -> None:
    texts = [f"w{n}" for n in range(30)]
    with ChatServer(echo) as server:
        replies, chat = query_server(server, tmp_path, texts[:20])
        assert [reply.answer.word for reply in replies if reply.answer] == texts[:20]
        assert (chat.counts.requests, chat.counts.prompt_tokens, chat.counts.completion_tokens) == (20, 140, 60)
        replies, chat = query_server(server, tmp_path, texts)
        assert [reply.answer.word for reply in replies if reply.answer] == texts
        assert (chat.counts.from_journal, chat.counts.requests) == (20, 10) and len(server.bodies) == 30
        query_server(server, tmp_path, texts[:1], model="another")
        query_server(server, tmp_path, texts[:1], options={"temperature": 0.5})
        assert len(server.bodies) == 32 and server.bodies[-1]["temperature"] == 0.5


def test_pictures_and_form_reach_the_endpoint_as_they_are(tmp_path: Path) -> None:
    picture = Image.effect_noise((9, 7), 90).convert("RGB")
    with ChatServer(lambda *_: completion({"word": "x"})) as server, Journal(tmp_path / "j") as journal:
        question = Question("1", "what?", Word, system="be short", images=[picture])
        query_all(Chat(server.params(), journal), [question], lambda q: q)
        system, user = server.bodies[0]["messages"]
        assert system == {"role": "system", "content": "be short"}
        head, data = user["content"][1]["image_url"]["url"].split(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).tobytes() == picture.tobytes()
        form = server.bodies[0]["response_format"]["json_schema"]
        assert form["strict"] and form["schema"] == Word.model_json_schema()
        query_all(Chat(server.params(structured="json_object", model="b"), journal), [question], lambda q: q)
        assert server.bodies[1]["response_format"] == {"type": "json_object"}
        assert json.dumps(Word.model_json_schema()) in text_of(server.bodies[1])


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (completion("I would rather not."), "no_json"),
        (completion('{"word": "cut', finish="length"), "cut_off"),
        (completion({"words": ["a"]}), "wrong_form"),
        (completion({"word": "LOUD"}), "not_small"),
        (completion(""), "empty_answer"),
        (completion(None, refusal="no"), "refused"),
    ],
)
def test_a_bad_answer_is_told_its_fault_asked_again_and_then_counted(tmp_path: Path, bad: Raw, cause: str) -> None:
    with ChatServer(lambda body, n: echo(body, n) if n else bad) as server:
        replies, chat = query_server(server, tmp_path, ["a"])
        assert replies[0].answer == Word(word="a") and [r.cause for r in replies[0].rejected] == [cause]
        assert cause in server.bodies[1]["messages"][-1]["content"]
        assert chat.counts.rejected == {cause: 1}
    with ChatServer(lambda *_: bad) as server:
        replies, chat = query_server(server, tmp_path / "always", ["a", "b"])
        assert [reply.answer for reply in replies] == [None, None] and chat.counts.rejected == {cause: 4}
        query_server(server, tmp_path / "always", ["a", "b"])
        assert len(server.bodies) == 4, "what was rejected often enough is not asked again"


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (Raw(429, b'{"error": {"message": "slow down"}}'), "http_429"),
        (Raw(500), "http_500"),
        (Raw(200, b"<html>"), "no_chat_completion"),
        (Raw(200, b"{}"), "no_chat_completion"),
        (None, "no_connection"),
    ],
)
def test_what_was_not_served_is_tried_again_and_asked_for_by_the_next_run(
    tmp_path: Path, bad: Raw | None, cause: str
) -> None:
    texts = ["a", "b", "c"]
    with (
        ChatServer(lambda body, n: bad if text_of(body) == "b" else echo(body, n)) as server,
        pytest.raises(ChatError, match=f"1 of 3 .*{cause}.*journal.jsonl"),
    ):
        query_server(server, tmp_path, texts, retries=1)
    retried = cause != "no_chat_completion"
    assert len(server.bodies) == 3 + retried
    with ChatServer(lambda body, n: bad if retried and not n else echo(body, n)) as server:
        replies, chat = query_server(server, tmp_path, texts, retries=1)
        assert [reply.answer for reply in replies] == [Word(word=text) for text in texts]
        assert (len(server.bodies), chat.counts.retries) == (1 + retried, retried)


def test_a_question_that_the_endpoint_refuses_is_counted(tmp_path: Path) -> None:
    bad = Raw(400, b'{"error": {"message": "flagged by the filter"}}')
    with ChatServer(lambda body, n: bad if text_of(body) == "b" else echo(body, n)) as server:
        replies, chat = query_server(server, tmp_path, ["a", "b", "c"])
    assert [reply.answer is not None for reply in replies] == [True, False, True]
    assert chat.counts.rejected == {"http_400": 1} and "flagged by the filter" in str(replies[1].rejected[0])


@pytest.mark.slow
def test_an_endpoint_that_answers_byte_by_byte_is_given_up_in_time(tmp_path: Path) -> None:
    """Each byte came in time; the whole answer, a good one, would take half a minute."""
    body = completion({"word": "w"}).body

    class Drip(Loopback):
        def __init__(self) -> None:
            class Handler(Quiet):
                def do_POST(self) -> None:
                    self.rfile.read(int(self.headers["Content-Length"]))
                    self.send_response(200)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(body)))
                    self.end_headers()
                    for byte in body:
                        self.wfile.write(bytes([byte]))
                        threading.Event().wait(0.2)

            super().__init__(Handler)

    with Drip() as server, Journal(tmp_path / "journal.jsonl") as journal:
        params = ChatParams(
            base_url=f"{server.url}/v1", model="writer", api_key_env=None, retries=0, tries=1, timeout_s=1
        )
        with pytest.raises(ChatError, match="1 x no_answer_in_time"):
            query_all(Chat(params, journal), ["w"], lambda text: Question(text, text, Word))


@pytest.mark.parametrize("status", [401, 404])
def test_a_refused_key_or_model_ends_at_once_and_tells_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    monkeypatch.setenv("PACO_TEST_KEY", "sk-secret")
    body = b'{"error": {"message": "wrong key sk-secret"}}'
    with ChatServer(lambda *_: Raw(status, body)) as server:
        with pytest.raises(ChatError) as raised:
            query_server(server, tmp_path, ["a"] * 9, api_key_env="PACO_TEST_KEY")
        assert "sk-secret" not in str(raised.value) and "***" in str(raised.value)
        assert server.keys == {"Bearer sk-secret"} and len(server.bodies) <= 4
    assert "sk-secret" not in (tmp_path / "journal.jsonl").read_text()


def test_a_torn_line_is_removed_and_a_damaged_one_named(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    with Journal(path) as journal:
        journal.append({"n": 1})
        with pytest.raises(DataError, match="another process is writing it"):
            Journal(path)
    with path.open("ab") as file:
        file.write(b'{"n": 2')
    with Journal(path) as journal:
        assert journal.rows == [{"n": 1}]
        journal.append({"n": 3})
    assert [json.loads(line) for line in path.read_text().splitlines()] == [{"n": 1}, {"n": 3}]
    path.write_text('{"n": 1}\nnonsense\n')
    with pytest.raises(DataError, match=r"journal.jsonl:2: not valid JSON"):
        Journal(path)
    path.write_text('{"n": 1}\n')
    with Journal(path) as journal, ChatServer(echo) as server, pytest.raises(ChatError, match="jsonl:1: not a line"):
        Chat(server.params(), journal)
