"""Which server answers for a model: its weights as they are now, its device, its limits."""

from __future__ import annotations

from pathlib import Path

import pytest

from paco_core.config.params import ServingParams, load
from paco_core.serving.servers import endpoint
from paco_core.serving.servers.endpoint import RewardEndpoint, fingerprint
from paco_core.serving.servers.registry import ServerRecord


@pytest.fixture
def serving(repository: Path) -> ServingParams:
    return load(repository / "params.yaml").serving


def test_a_folder_is_what_it_holds_not_what_the_lock_says(tmp_path: Path) -> None:
    model = tmp_path / "data/reward_merged"
    model.mkdir(parents=True)
    (model / "model.safetensors").write_bytes(b"one")
    known = fingerprint(model, tmp_path)
    (tmp_path / "dvc.lock").write_text(
        "schema: '2.0'\nstages:\n  reward_merged:\n    cmd: x\n    outs:\n"
        f"    - {{path: data/reward_merged, hash: md5, md5: {known}.dir, size: 3}}\n"
    )
    assert fingerprint(model, tmp_path) == known
    (model / "model.safetensors").write_bytes(b"two")
    assert fingerprint(model, tmp_path) == fingerprint(model) != known


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"port": 1, "threads": 7, "linger_s": 3.0}, None),
        ({"device": "cuda:0"}, "computes on cpu, params.yaml asks for cuda"),
        ({"max_model_len": 77}, "refuses other questions than max_model_len"),
    ],
)
def test_a_server_that_would_answer_otherwise_is_told_apart(
    tmp_path: Path, serving: ServingParams, changes: dict[str, object], why: str | None
) -> None:
    (tmp_path / "model").mkdir()
    lives, asked = (
        endpoint.recipe(tmp_path / "model", "name", serving.model_copy(update=each), tmp_path) for each in ({}, changes)
    )
    record = ServerRecord(
        "name", "url", 1, lives.engine, "model", 0.0, lives.dtype, lives.code, lives.device, lives.limits
    )
    found = asked.differs(record)
    assert (found is None) == (why is None) and (why is None or why in str(found))


def test_scores_of_a_gpu_are_not_taken_for_a_processors(tmp_path: Path, serving: ServingParams) -> None:
    log = tmp_path / ".paco/serving/m/server.log"
    made = [
        RewardEndpoint("http://127.0.0.1:1", "m", 1, "vllm", "bfloat16", device, "c", tmp_path, serving, log)
        for device in ("cpu", "cuda")
    ]
    reckonings = set()
    for one in made:
        with one.client() as client:
            reckonings.add(client._reckoning)
    assert reckonings == {"vllm bfloat16 c png", "vllm bfloat16 c cuda png"}
