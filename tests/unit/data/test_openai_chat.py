"""The chat client against an endpoint that fails in every way, and its journal against kills."""

from __future__ import annotations

import base64
import io
import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from pydantic import BaseModel, ConfigDict, ValidationError

from paco_core.config.params import ChatParams
from paco_core.data.llm.chat_protocol import ChatError, Question, Rejection, Reply
from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat, ask_all
from paco_core.io.files import DataError
from tests.support.chat_server import ChatServer, Raw, completion, text_of
from tests.support.loopback import Loopback, Quiet


class Word(BaseModel):
    model_config = ConfigDict(extra="forbid")
    word: str


def small(answer: Word) -> Rejection | None:
    return None if answer.word.islower() else Rejection("not_small", "write small letters")


def ask(server: ChatServer, path: Path, texts: list[str], **changes: Any) -> tuple[list[Reply[Word]], Chat]:
    with Journal(path / "journal.jsonl") as journal:
        chat = Chat(server.params(**changes), journal)
        return ask_all(chat, texts, lambda text: Question(text, text, Word, fault=small)), chat


def echo(body: dict[str, Any], _number: int) -> Raw:
    return completion({"word": text_of(body)})


def test_answers_come_in_order_and_are_not_asked_twice(tmp_path: Path) -> None:
    texts = [f"w{n}" for n in range(30)]
    with ChatServer(echo) as server:
        replies, chat = ask(server, tmp_path, texts[:20])
        assert [reply.answer.word for reply in replies if reply.answer] == texts[:20]
        assert (chat.counts.requests, chat.counts.prompt_tokens, chat.counts.completion_tokens) == (20, 140, 60)
        replies, chat = ask(server, tmp_path, texts)
        assert [reply.answer.word for reply in replies if reply.answer] == texts
        assert (chat.counts.remembered, chat.counts.requests) == (20, 10) and len(server.bodies) == 30
        ask(server, tmp_path, texts[:1], model="another")
        ask(server, tmp_path, texts[:1], options={"temperature": 0.5})
        assert len(server.bodies) == 32 and server.bodies[-1]["temperature"] == 0.5


def test_requests_in_flight_are_bounded(tmp_path: Path) -> None:
    meeting = threading.Barrier(3)

    def together(body: dict[str, Any], _number: int) -> Raw:
        meeting.wait(30)  # passes only while three are in flight
        return echo(body, 0)

    with ChatServer(together) as server:
        replies, _ = ask(server, tmp_path, [f"w{n}" for n in range(12)], in_flight=3)
        assert all(reply.answer for reply in replies) and server.most_at_once == 3


def test_pictures_and_form_reach_the_endpoint_as_they_are(tmp_path: Path) -> None:
    picture = Image.effect_noise((9, 7), 90).convert("RGB")
    with ChatServer(lambda *_: completion({"word": "x"})) as server, Journal(tmp_path / "j") as journal:
        made = Question("1", "what?", Word, system="be short", images=[picture])
        ask_all(Chat(server.params(), journal), [made], lambda q: q)
        system, user = server.bodies[0]["messages"]
        assert system == {"role": "system", "content": "be short"}
        head, data = user["content"][1]["image_url"]["url"].split(",")
        assert head == "data:image/png;base64"
        assert Image.open(io.BytesIO(base64.b64decode(data))).tobytes() == picture.tobytes()
        form = server.bodies[0]["response_format"]["json_schema"]
        assert form["strict"] and form["schema"] == Word.model_json_schema()
        ask_all(Chat(server.params(structured="json_object", model="b"), journal), [made], lambda q: q)
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
        replies, chat = ask(server, tmp_path, ["a"])
        assert replies[0].answer == Word(word="a") and [r.cause for r in replies[0].rejected] == [cause]
        assert cause in server.bodies[1]["messages"][-1]["content"]
        assert chat.counts.rejected == {cause: 1}
    with ChatServer(lambda *_: bad) as server:
        replies, chat = ask(server, tmp_path / "always", ["a", "b"])
        assert [reply.answer for reply in replies] == [None, None] and chat.counts.rejected == {cause: 4}
        ask(server, tmp_path / "always", ["a", "b"])
        assert len(server.bodies) == 4, "what was rejected often enough is not asked again"


def test_fences_around_an_answer_are_taken_off(tmp_path: Path) -> None:
    with ChatServer(lambda *_: completion('```json\n{"word": "a"}\n```\n')) as server:
        assert ask(server, tmp_path, ["a"])[0][0].answer == Word(word="a")


@pytest.mark.parametrize("bad", [Raw(429, b"{}"), Raw(500, b"oh"), Raw(503), None])
def test_what_was_not_served_is_tried_again(tmp_path: Path, bad: Raw | None) -> None:
    with ChatServer(lambda body, n: echo(body, n) if n else bad) as server:
        replies, chat = ask(server, tmp_path, ["a"])
        assert replies == [Reply(Word(word="a"))] and len(server.bodies) == 2 and chat.counts.retries == 1


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (Raw(429, b'{"error": {"message": "slow down"}}'), "http_429"),
        (Raw(500), "http_500"),
        (Raw(200, b"<html>"), "no_chat_completion"),
        (Raw(200, b"{}"), "no_chat_completion"),
        (Raw(200, b"<html>", {"Content-Type": "text/html"}), "no_chat_completion"),
        (None, "no_connection"),
    ],
)
def test_what_was_not_served_is_named_and_asked_for_by_the_next_run(
    tmp_path: Path, bad: Raw | None, cause: str
) -> None:
    told = f"1 of 3 questions were not served .1 x {cause}.; the other answers are kept in .*journal.jsonl: run again"
    with (
        ChatServer(lambda body, n: bad if text_of(body) == "b" else echo(body, n)) as server,
        pytest.raises(ChatError, match=told),
    ):
        ask(server, tmp_path, ["a", "b", "c"], retries=1)
    with ChatServer(echo) as server:
        replies, _ = ask(server, tmp_path, ["a", "b", "c"])
        assert all(reply.answer for reply in replies) and len(server.bodies) == 1


def test_a_question_that_the_endpoint_refuses_is_counted(tmp_path: Path) -> None:
    bad = Raw(400, b'{"error": {"message": "flagged by the filter"}}')
    with ChatServer(lambda body, n: bad if text_of(body) == "b" else echo(body, n)) as server:
        replies, chat = ask(server, tmp_path, ["a", "b", "c"])
    assert [reply.answer is not None for reply in replies] == [True, False, True]
    assert chat.counts.rejected == {"http_400": 1} and "flagged by the filter" in str(replies[1].rejected[0])


@pytest.mark.slow
def test_a_silent_endpoint_is_given_up_in_time(tmp_path: Path) -> None:
    never = threading.Event()
    with ChatServer(lambda *_: never.wait(20) and None) as server:
        with pytest.raises(ChatError, match=r"8 questions in a row failed, .* no_answer_in_time: no answer within 1 s"):
            ask(server, tmp_path, [f"w{n}" for n in range(30)], retries=0, timeout_s=1, in_flight=8)
        never.set()


@pytest.mark.slow
def test_a_question_that_was_not_answered_in_time_is_asked_again(tmp_path: Path) -> None:
    late = threading.Event()
    with ChatServer(lambda body, n: echo(body, n) if n else late.wait(20) and None) as server:
        replies, chat = ask(server, tmp_path, ["a"], retries=1, timeout_s=1)
        assert replies == [Reply(Word(word="a"))] and chat.counts.retries == 1
        late.set()


def test_ctrl_c_waits_for_no_answer(tmp_path: Path) -> None:
    """None came before the end of asking, and the server was ready to wait for a minute."""
    arrived, go_on, hung_up = threading.Event(), threading.Event(), threading.Event()

    def never(_body: dict[str, Any], _number: int) -> None:
        arrived.set()
        go_on.wait(60)
        hung_up.set()

    def press() -> None:
        arrived.wait(20)
        signal.pthread_kill(int(threading.main_thread().ident or 0), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started these tests may have it ignored
    try:
        with ChatServer(never) as server:
            threading.Thread(target=press).start()
            with pytest.raises(KeyboardInterrupt):
                ask(server, tmp_path, ["a", "b"], retries=6, timeout_s=120)
            assert not hung_up.is_set()
            go_on.set()
    finally:
        signal.signal(signal.SIGINT, before)


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
        given = ChatParams(
            base_url=f"{server.url}/v1", model="writer", api_key_env=None, retries=0, tries=1, timeout_s=1
        )
        with pytest.raises(ChatError, match="1 x no_answer_in_time"):
            ask_all(Chat(given, journal), ["w"], lambda text: Question(text, text, Word))


@pytest.mark.slow
def test_a_dying_endpoint_loses_no_answer(tmp_path: Path) -> None:
    texts = [f"w{n}" for n in range(60)]
    told = "8 questions in a row failed, the last with http_500.*run again"
    with (
        ChatServer(lambda body, n: echo(body, n) if n < 10 else Raw(500)) as server,
        pytest.raises(ChatError, match=told),
    ):
        ask(server, tmp_path, texts, retries=0)
    with ChatServer(echo) as server:
        replies, chat = ask(server, tmp_path, texts)
        assert all(reply.answer for reply in replies)
        assert (chat.counts.remembered, len(server.bodies)) == (10, 50)


@pytest.mark.parametrize(("status", "hint"), [(401, "is the key in PACO_TEST_KEY right"), (404, "serve this model")])
def test_a_refused_key_or_model_ends_at_once_and_tells_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, hint: str
) -> None:
    monkeypatch.setenv("PACO_TEST_KEY", "sk-secret")
    body = b'{"error": {"message": "wrong key sk-secret"}}'
    with ChatServer(lambda *_: Raw(status, body)) as server:
        with pytest.raises(ChatError, match=hint) as raised:
            ask(server, tmp_path, ["a"] * 9, api_key_env="PACO_TEST_KEY")
        assert "sk-secret" not in str(raised.value) and "***" in str(raised.value)
        assert server.keys == {"Bearer sk-secret"} and len(server.bodies) <= 4
    assert "sk-secret" not in (tmp_path / "journal.jsonl").read_text()


def test_a_missing_key_is_named_before_anything_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PACO_TEST_KEY", raising=False)
    keyed = ChatParams(base_url="http://127.0.0.1:9/v1", model="m", api_key_env="PACO_TEST_KEY")
    told = "environment variable PACO_TEST_KEY holds no key"
    with Journal(tmp_path / "j") as journal, pytest.raises(ChatError, match=told):
        Chat(keyed, journal)


def test_settings_of_the_client_itself_are_no_options() -> None:
    with pytest.raises(ValidationError, match=r"\['stream'\] are set by the client itself"):
        ChatParams(base_url="http://h/v1", model="m", api_key_env=None, options={"stream": True})


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
