"""A training against a real server of a reward model is the same bit for bit, killed and run again or not."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from paco_core.config.params import load
from paco_core.grpo.trainer import Outcome
from paco_core.rewards.consistency import Consistency
from paco_core.serving.servers.endpoint import RewardEndpoint
from tests.support import forked, tiny_vlm
from tests.support.forked import At
from tests.support.grpo_toys import figures, recipe, trainer
from tests.unit.grpo.test_killed import KILLED_AT

pytestmark = pytest.mark.slow

Train = Callable[[Path], Outcome]
MOMENTS = {
    "sampling": KILLED_AT["sampling"],
    "scoring": At("paco_core.serving.client", "RewardClient._ask", 200),
    "updating": KILLED_AT["updating"],
    "logging": KILLED_AT["logging"],
}
TERMS = {"terms": {"consistency": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}


@pytest.fixture(scope="module")
def endpoint(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RewardEndpoint]:
    """The embedded engine with a model of random weights, on two threads."""
    folder = tiny_vlm.build(tmp_path_factory.mktemp("bits") / "model")
    settings = {"threads": 2, "linger_s": 0, "start_timeout_s": 550, "request_timeout_s": 120, "score_cache": None}
    serving = load(repository / "params.yaml").serving.model_copy(update=settings)
    with RewardEndpoint.lease(folder, serving, folder.parent) as endpoint:
        yield endpoint


def training(endpoint: RewardEndpoint, cache: Path | None) -> Train:
    """Trains the toy policy for three epochs by what the server says; known scores lie in ``cache``."""
    known = None if cache is None else str(cache)
    serving = endpoint.serving.model_copy(update={"score_cache": known})

    def train(out: Path) -> Outcome:
        with replace(endpoint, serving=serving).client() as client:
            rewards = {"consistency": Consistency(client)}
            given = trainer(recipe=recipe(epochs=3, rewards=TERMS), rewards=rewards)
            return given.run(out, out / "checkpoint")

    return train


def bits(out: Path) -> dict[str, object]:
    """What a training leaves, but for how long it took."""
    files = {
        str(file.relative_to(out)): file.read_bytes()
        for file in [*out.glob("adapter/*"), *out.glob("samples/**/*.png")]
    }
    with (out / "training_log.csv").open() as log:
        rows = [{k: v for k, v in row.items() if not k.startswith("seconds/")} for row in csv.DictReader(log)]
    assert any("safetensors" in name for name in files) and len(rows) == 4  # with the one before training
    return {**files, "log": rows}


@pytest.fixture(scope="module")
def unbroken(endpoint: RewardEndpoint, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Outcome]:
    out = tmp_path_factory.mktemp("unbroken")
    return out, training(endpoint, None)(out)


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("cached", [False, True], ids=["no score is known", "scores are kept"])
def test_killed_and_run_again_is_bit_for_bit_the_unbroken_one(
    tmp_path: Path, endpoint: RewardEndpoint, unbroken: tuple[Path, Outcome], moment: str, cached: bool
) -> None:
    """Where scores are kept, the second run asks for some of a batch only: others are computed together."""
    train = training(endpoint, tmp_path / "scores.db" if cached else None)
    out = tmp_path / "out"
    out.mkdir()
    assert forked.run(lambda: train(out), out, MOMENTS[moment]).killed
    resumed = train(out)
    assert figures(resumed) == figures(unbroken[1])
    assert bits(out) == bits(unbroken[0])


def test_another_client_gets_the_same_bits_by_asking_one_by_one(
    tmp_path: Path, endpoint: RewardEndpoint, unbroken: tuple[Path, Outcome]
) -> None:
    """As on a machine that is busy with other things: what arrives together is another."""
    slow = replace(endpoint, serving=endpoint.serving.model_copy(update={"requests_in_flight": 1}))
    assert figures(training(slow, None)(tmp_path)) == figures(unbroken[1])
    assert bits(tmp_path) == bits(unbroken[0])
