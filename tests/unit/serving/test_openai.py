"""Clients that are not ours: the `openai` package of today, and the request of the official PaCo-RL scorer.

The latter is what `ConsistencyScorer` of github.com/X-GenGroup/PaCo-RL sends
(PaCo-GRPO/paco_grpo/rewards/consistency_scorer.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from paco_core.config.params import load
from paco_core.io.shards import encode_png
from paco_core.serving.servers.endpoint import RewardEndpoint
from paco_core.serving.servers.gateway import Gateway, build_app
from tests.support.serving_fakes import NAME, FakeModel, listening, panel, served, true_score
from tests.unit.serving.test_app import GOOD, post, url_of

THEME = (
    'Given two subfigures generated based on the theme: "a red cat", do the two images maintain consistency '
    'in terms of style, logic and identity? Answer "Yes" and "No" first, and then provide detailed reasons.'
)
PICTURES = [url_of(encode_png(panel(number))) for number in (3, 4)]


def official(model: str, pictures: list[str], text: str = THEME) -> dict[str, Any]:
    """The arguments of `client.chat.completions.create` there."""
    content: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in pictures]
    messages = [{"role": "user", "content": [*content, {"type": "text", "text": text}]}]
    return {
        "model": model,
        "messages": messages,
        "temperature": 0.0,
        "max_completion_tokens": 1,
        "logprobs": True,
        "top_logprobs": 20,
    }


@pytest.fixture(scope="module")
def model() -> FakeModel:
    return FakeModel()


@pytest.fixture(scope="module", params=["server", "gateway"])
def url(request: pytest.FixtureRequest, model: FakeModel) -> Iterator[str]:
    with served(model) as (server, _):
        if request.param == "server":
            yield server
        else:
            with listening(build_app(Gateway(lambda: {NAME: server}, timeout_s=60))) as gateway:
                yield gateway


def client(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def test_todays_openai_client_gets_a_score(url: str, model: FakeModel) -> None:
    with client(url) as openais:
        assert [card.id for card in openais.models.list()] == [NAME]
        answer = openais.chat.completions.create(**official(NAME, PICTURES))
    ask = model.asks[-1]
    assert (ask.max_tokens, ask.logprobs, ask.top) == (1, True, 20)
    assert [picture.tobytes() for picture in (ask.query.first, ask.query.second)] == [
        panel(n).tobytes() for n in (3, 4)
    ]
    first = answer.choices[0].logprobs.content[0].top_logprobs  # type: ignore[union-attr,index]
    shares = {entry.token: math.exp(entry.logprob) for entry in first}
    assert shares["Yes"] == pytest.approx(true_score(ask.query)) and answer.model == NAME
    assert answer.usage is not None
    told = answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens
    assert told == (len(THEME), len("Yes"), len(THEME) + len("Yes"))


def test_the_official_scorers_request_as_it_travels(url: str) -> None:
    status, answer = post(url, official(NAME, PICTURES))
    assert status == 200 and len(answer["choices"][0]["logprobs"]["content"]) == 1
    assert set(answer["usage"]) == {"prompt_tokens", "completion_tokens", "total_tokens"}


def test_refusals_are_the_clients_own_errors(url: str) -> None:
    with client(url) as openais:
        with pytest.raises(openai.NotFoundError, match="is not served here"):
            openais.chat.completions.create(**official("gpt", PICTURES))
        with pytest.raises(openai.BadRequestError, match="expected 2 images"):
            openais.chat.completions.create(**official(NAME, PICTURES[:1]))


@pytest.mark.parametrize(
    ("limits", "status", "tokens"),
    [
        ({"max_completion_tokens": 7}, 200, 7),
        ({"max_tokens": 7}, 200, 7),
        ({"max_tokens": 7, "max_completion_tokens": 9}, 200, 9),
        ({"max_tokens": 7, "max_completion_tokens": None}, 200, 7),
        ({"max_tokens": None}, 200, 128),
        ({}, 200, 128),
        ({"max_completion_tokens": 0}, 400, None),
        ({"max_completion_tokens": 513}, 400, None),
        ({"max_completion_tokens": 2, "logprobs": True}, 400, None),
    ],
)
def test_both_names_of_the_longest_answer(
    url: str, model: FakeModel, limits: dict[str, Any], status: int, tokens: int | None
) -> None:
    question = {name: official(NAME, PICTURES)[name] for name in ("model", "messages", "temperature")}
    got, answer = post(url, {**question, **limits})
    assert got == status
    if tokens is not None:
        assert model.asks[-1].max_tokens == tokens
    else:
        assert "max" in answer["error"]["message"]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_real_engine_counts_its_tokens(repository: Path, tmp_path: Path) -> None:
    """Against a tokenisation by the model's own processor."""
    from transformers import AutoProcessor

    settings = {"start_timeout_s": 550, "score_cache": None, "linger_s": 0}
    serving = load(repository / "params.yaml").serving.model_copy(update=settings)
    folder = repository / "data/zoo/qwen2_5_vl"
    with RewardEndpoint.lease(folder, serving, tmp_path) as endpoint, client(endpoint.url) as openais:
        score = openais.chat.completions.create(**official(endpoint.model, [GOOD, PICTURES[0]]))
        question = official(endpoint.model, [GOOD, PICTURES[0]])
        reasons = openais.chat.completions.create(
            model=endpoint.model, messages=question["messages"], max_completion_tokens=12
        )
    processor = AutoProcessor.from_pretrained(folder)
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "image"}, {"type": "text", "text": THEME}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    prompt = len(processor(text=[text], images=[panel(1), panel(3)])["input_ids"][0])
    assert score.usage is not None and reasons.usage is not None
    assert (score.usage.prompt_tokens, score.usage.completion_tokens) == (prompt, 1)
    assert reasons.usage.prompt_tokens == prompt and 0 < reasons.usage.completion_tokens <= 12
    assert len(json.loads(score.model_dump_json())["choices"][0]["logprobs"]["content"][0]["top_logprobs"]) == 20
