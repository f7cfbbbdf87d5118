"""Prompts written by a language model: shares and rejections."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from paco_core.config.params import PromptsParams
from paco_core.data.llm.chat_protocol import ChatError
from paco_core.data.prompts.prompts import Prompts, make_prompts
from paco_core.data.records import prompt_text
from paco_core.data.records.categories import CATEGORIES, SUBCATEGORIES, prompts_per_subcategory
from paco_core.io.files import DataError
from tests.support.chat_server import ChatServer, Raw, completion, text_of

pytestmark = pytest.mark.slow

Form = dict[str, Any]


def form(name: str, panels: int = 4) -> Form:
    """A filled form, different for every name."""
    criterion = {"name": "Palette", "text": f"The colours of {name} stay."}
    return {
        "theme": f"A set about {name}.",
        "subject": f"portraying {name}",
        "shared": f"All images show {name} in soft light.",
        "panels": [f"{name}, scene {n}." for n in range(panels)],
        "style": [criterion],
        "identity": [criterion],
        "logic": [criterion],
    }


def request_of(body: dict[str, Any]) -> tuple[str, list[str]]:
    """(kind, subjects that it must not repeat) of a request."""
    kind = re.search(r"Kind: (.+?) \(category (.+?)\)", text_of(body))
    assert kind
    return f"{kind[2]} {kind[1]}", re.findall(r"^- (portraying .+)$", text_of(body), re.MULTILINE)


def writer(body: dict[str, Any], _number: int) -> Raw:
    kind, had = request_of(body)
    return completion({"prompts": [form(f"{kind} {len(had) + n}") for n in range(5)]})


def run(server: ChatServer, root: Path, count: int, layout: str | list[str] = "2x2", **changes: Any) -> Prompts:
    endpoint = server.params(**{"in_flight": 8, **changes})
    params = PromptsParams(engine="openai", count=count, layout=layout, seed=0, endpoint=endpoint)
    return make_prompts(params, (64, 64), root)


def test_the_subcategories_are_those_of_the_paper() -> None:
    assert [sum(kind.category == category for kind in SUBCATEGORIES) for category in CATEGORIES] == [5, 5, 6, 6, 5, 5]
    assert (
        set(prompts_per_subcategory(2000).values()) == {62, 63} and sum(prompts_per_subcategory(2000).values()) == 2000
    )
    assert {kind.category for kind, share in prompts_per_subcategory(6).items() if share} == set(CATEGORIES)


def test_shares_are_equal_and_nothing_is_asked_twice(tmp_path: Path) -> None:
    with ChatServer(writer) as server:
        first = run(server, tmp_path, 70)
        assert Counter(Counter((r.category, r.task_name) for r in first.records).values()) == {2: 26, 3: 6}
        assert len({r.idx for r in first.records}) == 70 and len(server.bodies) == 32
        assert all(
            prompt_text.parse_prompt(r.prompt, r.layout).shared.startswith("All images show") for r in first.records
        )
        second = run(server, tmp_path, 70)
        assert second.records == first.records and second.figures["remembered_answers"] == len(server.bodies) == 32
        larger = run(server, tmp_path, 200)
        assert len(server.bodies) == 64 and all(record in larger.records for record in first.records)
        assert all(len(request_of(body)[1]) == 5 for body in server.bodies[32:]), "the model is told what there is"


def test_layouts_are_written_in_turn_and_asked_for_once(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], _number: int) -> Raw:
        (panels,) = re.findall(r"Layout: (\d) panels", text_of(body))
        kind, had = request_of(body)
        names = [f"{kind} {panels} {len(had) + n}" for n in range(5)]
        return completion({"prompts": [form(name, panels=int(panels)) for name in names]})

    with ChatServer(answer) as server:
        prompts = run(server, tmp_path, 65, layout=["2x2", "1x3"]).records
        assert [record.layout for record in prompts] == [*["2x2", "1x3"] * 32, "2x2"]
        assert {(r.layout, r.height, r.width) for r in prompts} == {("2x2", 64, 64), ("1x3", 32, 96)}
        questions = len(server.bodies)
        assert run(server, tmp_path, 65, layout=["2x2", "1x3"]).records == prompts and len(server.bodies) == questions


def test_unusable_prompts_are_counted_by_cause_and_replaced(tmp_path: Path) -> None:
    bad: dict[str, Form] = {
        "wrong_number_of_panels": {"panels": ["one"]},
        "empty_text": {"theme": " "},
        "too_long": {"theme": "x" * 3000},
        "no_criteria": {"logic": []},
        "repeated_criterion": {"logic": [{"name": "A", "text": "a"}] * 2},
        "panel_mark_in_text": {"subject": "x [LEFT]: y"},
        "shared_traits_not_told_apart": {"shared": "same dog, same hat"},
        "wrong_form": {"category": "Cats"},  # it is given, never taken from the model
    }
    kinds = dict(zip((f"{k.category} {k.name}" for k in SUBCATEGORIES), bad.values(), strict=False))

    def answer(body: dict[str, Any], number: int) -> Raw:
        kind, _ = request_of(body)
        if spoil := kinds.pop(kind, None):
            return completion({"prompts": [form(kind) | spoil, form(f"{kind} good")]})
        return writer(body, number)

    with ChatServer(answer) as server:
        prompts = run(server, tmp_path, 64)
        assert len(prompts.records) == 64
        assert {f"rejected.{cause}": 1 for cause in bad}.items() <= prompts.figures.items()


def test_themes_of_another_subcategory_are_replaced(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], number: int) -> Raw:
        _, had = request_of(body)
        return writer(body, number) if had else completion({"prompts": [form("the same old idea")]})

    with ChatServer(answer) as server:
        prompts = run(server, tmp_path, 32)
        assert len({r.theme for r in prompts.records}) == 32 and prompts.figures["rejected.repeated"] == 31
        assert run(server, tmp_path, 32).records == prompts.records


def test_a_model_that_cannot_do_it_is_given_up_with_the_causes(tmp_path: Path) -> None:
    with (
        ChatServer(lambda body, _n: completion({"prompts": [form("a", panels=3)] * 5})) as server,
        pytest.raises(DataError, match="15 x wrong_number_of_panels"),
    ):
        run(server, tmp_path, 6)
    with ChatServer(lambda *_: Raw(500)) as server, pytest.raises(ChatError, match="http_500"):
        run(server, tmp_path / "dead", 32, retries=0, in_flight=8)
