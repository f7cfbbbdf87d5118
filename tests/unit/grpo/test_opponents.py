"""The aggregator win_rate in a training: opponents by the policy of step 0, painted once a prompt and kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from paco_core.grpo.opponents import FOLDER, START
from paco_core.grpo.outcome import Outcome
from paco_core.grpo.trainer import Trainer
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from tests.support import forked
from tests.support.forked import At
from tests.support.grpo_toys import Brightness, ToyPolicy, figures, recipe, trainer

TERMS = {"brightness": {"weight": 2.0, "reward": "own:brightness"}}
REWARDS = {"terms": TERMS, "aggregator": "win_rate", "advantage_std": "group"}


def compared(policy: ToyPolicy | None = None, reward: Brightness | None = None, **changes: Any) -> Trainer:
    rewards = {"brightness": reward or Brightness()}
    return trainer(recipe=recipe(rewards=REWARDS, **changes), policy=policy or ToyPolicy(), rewards=rewards)


def run(out: Path, **changes: Any) -> Outcome:
    return compared(**changes).run(out, out / "checkpoint")


def kept(out: Path) -> list[dict[str, dict[str, list[float]]]]:
    return [json.loads(file.read_text()) for file in sorted(out.rglob(f"{FOLDER}/*.json"))]


class Painters(ToyPolicy):
    """Which adapter painted so many pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.painted: dict[str | None, int] = {}

    def decode(self, latents: Any, size: Any) -> Any:
        self.painted[self.active] = self.painted.get(self.active, 0) + len(latents)
        return super().decode(latents, size)


def test_opponents_are_painted_once_a_prompt_by_the_policy_of_step_0(tmp_path: Path) -> None:
    policy = Painters()
    fast = {"epochs": 14, "learning_rate": 0.1, "clip_range": 0.1, "eval_every": 99, "checkpoint_every": 14}
    outcome = run(tmp_path, policy=policy, **fast)
    assert policy.painted[START] == 8 * 6, "8 prompts are met in epochs of 4, with 6 pictures each"
    assert [len(file) for file in kept(tmp_path)] == [4, 4]
    rates = [row["win_rate"] for row in outcome.rows if "win_rate" in row]
    assert abs(rates[0] - 0.5) < 0.1 and np.mean(rates[-4:]) > 0.65, rates
    assert outcome.after["64/brightness"] > outcome.before["64/brightness"]


def test_the_values_are_win_rates_against_these_pictures(tmp_path: Path) -> None:
    trained = compared()
    with trained.epochs.open(tmp_path):
        experience, row, _ = trained.epochs.gather(0)
        again, _, _ = trained.epochs.gather(0)
    assert np.array_equal(experience.advantages, again.advantages)
    (opponents,) = kept(tmp_path)
    names = [f"p{number}" for number in dict.fromkeys(experience.rows)]
    assert list(opponents) == names and all(len(set(one["brightness"])) > 1 for one in opponents.values())
    assert row["win_rate"] != 0.5 and np.abs(experience.advantages.reshape(4, 6).mean(1)).max() < 1e-8


def test_a_stopped_training_goes_on_with_the_opponents_that_there_are(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole")
    run(tmp_path / "stopped", epochs=1)
    policy = Painters()
    found = run(tmp_path / "stopped", policy=policy)
    assert figures(found) == figures(whole) and policy.painted[START] == 4 * 6, "those of the second epoch alone"
    assert kept(tmp_path / "stopped") == kept(tmp_path / "whole")
    paths = [tmp_path / name / "adapter/adapter.safetensors" for name in ("whole", "stopped")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(
    "moment",
    [
        At("paco_core.grpo.sampler", "paint_page", 8),  # while opponents of the first epoch are painted
        At("paco_core.grpo.opponents", "write_json", 1),
        At("paco_core.grpo.opponents", "write_json", 2),
        At("paco_core.training.checkpoint", "save_file", 2),  # those of the second epoch are there, and it is not
    ],
)
def test_a_killed_training_ends_as_an_undisturbed_one(tmp_path: Path, moment: At) -> None:
    whole = run(tmp_path / "whole")
    out = tmp_path / "killed"
    out.mkdir()
    assert forked.run(lambda: run(out), out, moment).killed
    assert figures(run(out)) == figures(whole) and kept(out) == kept(tmp_path / "whole")


class Failing(Brightness):
    """No score for the first six pictures of one prompt, its opponents."""

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self.prompt, self.asked = prompt, 0

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        found = super().__call__(batch)
        for place, record in enumerate(batch.records):
            if record.idx == self.prompt:
                self.asked += 1
                found[place] = np.nan if self.asked <= 6 else found[place]
        return found


def test_a_prompt_without_scored_opponents_counts_as_failed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="6 of 24 samples could not be scored"):
        run(tmp_path, reward=Failing("p3"), epochs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"test_rewards": REWARDS}, "test_rewards\n.*in training alone; choose another"),
        (
            {"rewards": {**REWARDS, "terms": {"consistency": {"weight": 1.0, "pairs": 4}}}},
            "consistency draws its pairs anew",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**{"rewards": REWARDS, **changes})
