"""The adapters of examples/trainers: other trainers' payloads in, the reward `consistency` and its causes out."""

from __future__ import annotations

import base64
import http.client
import io
import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scorer_service
import unirl_service
import verl_omni_scorer
from PIL import Image

from paco_core import Judge
from paco_core.data.records.panels import split_grid
from paco_core.data.records.records import PromptRecord, write_prompts
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency
from paco_core.serving.client import RewardClient
from tests.support.serving_fakes import FakeModel, served


def record(idx: str, theme: str, layout: str = "2x2") -> PromptRecord:
    words: dict[str, Any] = {"category": "Character", "task_name": "Multi-pose", "criteria": {}}
    return PromptRecord(idx=idx, prompt=f"A grid of {idx}.", height=16, width=16, layout=layout, theme=theme, **words)


CATS, PAIR, MUTE = record("cats", "a red cat"), record("pair", "two dogs", "1x2"), record("mute", "mute")


def grid(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (16, 16, 3), dtype=np.uint8))


def encoded(picture: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, **options)
    return buffer.getvalue()


def as_received(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGB")


@pytest.fixture(scope="module")
def judge_url() -> Iterator[str]:
    with served(FakeModel()) as (url, _):
        yield url


@pytest.fixture(scope="module")
def judge(judge_url: str) -> Iterator[Judge]:
    with Judge(judge_url) as judge:
        yield judge


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("prompts") / "train.jsonl"
    write_prompts(path, [CATS, PAIR, MUTE])
    return path


def in_training(judge: Judge, picture: Image.Image, of: PromptRecord) -> float:
    """What a training of this project is rewarded with for the picture."""
    assert isinstance(judge.scorer, RewardClient)
    return float(Consistency(judge.scorer)(RewardBatch([of], [split_grid(picture, of.layout)]))[0])


@contextmanager
def listening(answer: scorer_service.Answer) -> Iterator[tuple[str, int]]:
    server = scorer_service.server(answer, 0)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server.server_address[0], server.server_address[1]  # type: ignore[misc]
    finally:
        server.shutdown()
        server.server_close()


def exchanged(at: tuple[str, int], method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(*at, timeout=60)
    connection.request(method, path, body)
    response = connection.getresponse()
    status, data = response.status, response.read()
    connection.close()
    return status, data


# UniRL: unirl.reward.remote.RemoteRewardBackend


@pytest.fixture(scope="module")
def unirl(judge: Judge) -> Iterator[tuple[str, int]]:
    with listening(unirl_service.answerer(judge)) as at:
        yield at


def sample(picture: bytes, of: PromptRecord, **changes: Any) -> dict[str, Any]:
    history = [{"text": of.prompt, "image_b64": base64.b64encode(picture).decode("ascii")}]
    metadata = {"layout": of.layout, "theme": of.theme}
    return {"history": history, "required_rewards": ["paco_consistency"], "metadata": metadata, **changes}


def post_samples(at: tuple[str, int], *samples: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    status, body = exchanged(at, "POST", "/score", json.dumps({"requests": samples}).encode())
    return status, json.loads(body)


def test_unirl_gets_the_score_of_a_training_or_the_cause_for_each_sample(unirl: tuple[str, int], judge: Judge) -> None:
    health = json.loads(exchanged(unirl, "GET", "/health")[1])
    assert "paco_consistency" in health["rewards"]
    jpegs = [encoded(grid(n), format="JPEG", quality=95) for n in range(3)]
    good, themeless, ragged = jpegs[0], {"layout": "2x2"}, {"layout": "3x2", "theme": "cats"}
    faulty = [
        (sample(good, MUTE), "neither"),
        (sample(good[:200], CATS), "picture"),
        (sample(good, CATS, metadata=themeless), "metadata.theme"),
        (sample(good, CATS, metadata=ragged), "3x2"),
        (sample(good, CATS, history=[{"text": "", "image_b64": "@@@"}]), "base64"),
    ]
    sound = [sample(jpeg, of) for jpeg, of in zip(jpegs, (CATS, PAIR, CATS), strict=True)]
    status, body = post_samples(unirl, *sound, *(faulty_sample for faulty_sample, _ in faulty))
    assert status == 200 and body["errors"][:3] == [{}, {}, {}] and body["results"][3:] == [{}] * len(faulty)
    expected = [in_training(judge, as_received(jpegs[n]), of) for n, of in enumerate((CATS, PAIR, CATS))]
    assert [r["paco_consistency"]["consistency"] for r in body["results"][:3]] == pytest.approx(expected, abs=1e-12)
    assert len(set(expected)) == 3
    for error, (_, part) in zip(body["errors"][3:], faulty, strict=True):
        assert part in error["paco_consistency"]


def test_unirl_is_refused_what_is_no_request(unirl: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = b'{"requests": [{"history": [{"text": ""}], "required_rewards": ["hpsv3"]}]}'
    for body, expected_status, part in ((b"{", 422, ""), (unknown, 400, "hpsv3")):
        status, answer = exchanged(unirl, "POST", "/score", body)
        assert status == expected_status and part in json.loads(answer)["detail"]
    monkeypatch.setattr(scorer_service, "MAX_BODY", 10)
    assert exchanged(unirl, "POST", "/score", b"x" * 11)[0] == 413  # unread


# VeRL-Omni: verl_omni.utils.reward_score.http_scorer_client


@pytest.fixture(scope="module")
def verl_omni(judge: Judge, prompts: Path) -> Iterator[tuple[str, int]]:
    with listening(verl_omni_scorer.answerer(judge, scorer_service.by_prompt(prompts))) as at:
        yield at


def pickled(at: tuple[str, int], value: object) -> dict[str, Any]:
    status, body = exchanged(at, "POST", "/", value if isinstance(value, bytes) else pickle.dumps(value))
    assert status == 200
    answer: dict[str, Any] = pickle.loads(body)
    return answer


def test_verl_omni_gets_the_score_of_a_training_or_the_cause(verl_omni: tuple[str, int], judge: Judge) -> None:
    for number, of in enumerate((CATS, PAIR)):
        jpeg = encoded(grid(number), format="JPEG")
        answer = pickled(verl_omni, {"images": [jpeg], "prompts": [of.prompt], "metadata": {}})
        assert answer == {"scores": [pytest.approx(in_training(judge, as_received(jpeg), of), abs=1e-12)]}
    for images, texts, part in (
        ([jpeg], [MUTE.prompt], "picture 0"),
        ([jpeg], ["A prompt of nobody"], ""),
        ([jpeg[:300]], [CATS.prompt], "picture"),
        ([jpeg, jpeg], [CATS.prompt], "2 images"),
        (["path.jpg"], [CATS.prompt], "images.0"),
    ):
        answer = pickled(verl_omni, {"images": images, "prompts": texts, "metadata": {}})
        assert list(answer) == ["error"] and part in answer["error"]


def test_a_pickle_that_runs_code_is_refused(verl_omni: tuple[str, int], tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    harm = type("Harm", (), {"__reduce__": lambda self: (os.system, (f"touch {trace}",))})()
    answer = pickled(verl_omni, pickle.dumps({"images": [harm], "prompts": ["?"], "metadata": {}}))
    assert list(answer) == ["error"] and not trace.exists()
    assert list(pickled(verl_omni, b"no pickle")) == ["error"]


# Flow-Factory: flow_factory.rewards.GroupwiseRewardModel


@pytest.fixture
def flow_factory(monkeypatch: pytest.MonkeyPatch) -> Iterator[type]:
    """The adapter's class over the part of Flow-Factory's interface that it uses."""

    class GroupwiseRewardModel:
        def __init__(self, config: Any, accelerator: Any) -> None:
            self.config, self.accelerator = config, accelerator

    rewards = ModuleType("flow_factory.rewards")
    vars(rewards).update(GroupwiseRewardModel=GroupwiseRewardModel, RewardModelOutput=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "flow_factory", ModuleType("flow_factory"))
    monkeypatch.setitem(sys.modules, "flow_factory.rewards", rewards)
    import flow_factory_reward

    yield flow_factory_reward.PacoConsistency
    sys.modules.pop("flow_factory_reward")


def test_flow_factory_gets_the_scores_of_a_training_and_the_mean_for_what_has_none(
    flow_factory: type, judge_url: str, judge: Judge, prompts: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model = flow_factory(SimpleNamespace(judge=judge_url, prompts=str(prompts)), accelerator=None)
    pictures = [grid(n) for n in range(3)]
    scores = [in_training(judge, picture, CATS) for picture in pictures]
    output = model(prompt=[CATS.prompt] * 3, image=pictures)
    assert output.rewards.tolist() == pytest.approx(scores, abs=1e-6)
    assert output.extra_info == {"causes": [None] * 3}
    with caplog.at_level(logging.WARNING):
        output = model(prompt=[CATS.prompt, MUTE.prompt, CATS.prompt], image=pictures)
    mean = (scores[0] + scores[2]) / 2
    assert output.rewards.tolist() == pytest.approx([scores[0], mean, scores[2]], abs=1e-6)
    cause = output.extra_info["causes"][1]
    assert cause and f"1 x {cause}" in caplog.text
    with pytest.raises(RuntimeError, match="2 x "):
        model(prompt=[MUTE.prompt] * 2, image=pictures[:2])
    with pytest.raises(Exception, match="1x1"):
        judge.grid_scores([grid(1)], ["1x1"], themes=["cats"])
