"""The loop as a whole, on a toy policy: what it learns, counts, overlaps, refuses and resumes."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from paco_core.config.measures import IMAGE_CONTENT
from paco_core.grpo.trainer import Reports
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import UNSEEN, Brightness, figures, recipe, trainer


def test_outs_and_log(tmp_path: Path) -> None:
    pictures: list[tuple[str, int]] = []
    reports = Reports(picture=lambda _image, key, epoch: pictures.append((key, epoch)))
    outcome = trainer(reports=reports).run(tmp_path, tmp_path / "checkpoint")
    with (tmp_path / "training_log.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["epoch"]) for row in rows] == [0, 1, 2, 3, 4]
    assert rows[1]["eval/32/brightness"] == "" and float(rows[2]["eval/64/brightness"]) > 0
    assert max(float(row["update/ratio_gap"]) for row in rows[1:]) < 1e-6
    assert any(float(row["update/clip_fraction"]) > 0 for row in rows[1:])
    assert float(rows[-1]["eval/32/brightness"]) == pytest.approx(outcome.after["32/brightness"])
    gap = outcome.after["64/brightness"] - outcome.after["32/brightness"]
    assert outcome.rows[-1]["gap/brightness"] == gap and outcome.metrics()["gap.brightness.after"] == gap
    assert outcome.metrics()["eval.64.brightness.after"] == outcome.after["64/brightness"]
    assert pictures == [(f"unseen_{side}px", epoch) for epoch in (0, 2, 4) for side in (32, 64)]
    for state in ("before", "after"):
        for side in (32, 64):
            files = sorted((tmp_path / "samples" / state / str(side)).iterdir())
            assert [f.name for f in files] == [f"{r.idx}-{s}.png" for r in UNSEEN for s in (0, 1)]
            assert Image.open(files[0]).size == (side, side)


def test_the_adapter_holds_an_average_that_moves_by_updates_whatever_the_size_of_a_pass(tmp_path: Path) -> None:
    """If it moved at every micro-batch, its reach would depend on memory."""
    few, many = (trainer(recipe=recipe(epochs=2, train_batch=size, ema_decay=0.9)) for size in (24, 4))
    for changes, name in ((few, "few"), (many, "many")):
        changes.run(tmp_path / name, tmp_path / name / "checkpoint")
    assert few.learner.ema.steps == many.learner.ema.steps == 2 * few.recipe.updates_per_epoch
    saved = load_file(tmp_path / "few" / "adapter" / "adapter.safetensors")
    for name, shadow in few.learner.ema.shadow.items():
        assert torch.equal(saved[name], shadow)
        assert torch.allclose(shadow, many.learner.ema.shadow[name], atol=1e-5), name
        assert not torch.equal(shadow, few.learner.parameters[name]), "an average, not the weights"


def test_a_finished_training_is_not_repeated_may_be_extended_and_does_not_answer_for_a_shorter_one(
    tmp_path: Path,
) -> None:
    """Weights, metrics and log of the extended one equal those of a long one."""
    short, long = tmp_path / "short", tmp_path / "long"
    first = trainer(recipe=recipe(epochs=2)).run(short, short / "checkpoint")
    second_trainer = trainer(recipe=recipe(epochs=2))
    outcome = second_trainer.run(short, short / "checkpoint")
    assert outcome.resumed_at == 2 and second_trainer.learner.policy.rows["trained"] == 0  # type: ignore[attr-defined]
    assert outcome.seconds == first.seconds and first.seconds["seconds/sample"] > 0
    extended = trainer(recipe=recipe(epochs=4)).run(short, short / "checkpoint")
    uninterrupted = trainer(recipe=recipe(epochs=4)).run(long, long / "checkpoint")
    assert extended.resumed_at == 2 and figures(extended) == figures(uninterrupted)
    assert extended.seconds["seconds/sample"] > first.seconds["seconds/sample"]
    for file in ("training_log.csv", "adapter/adapter.safetensors"):
        assert (short / file).read_bytes() == (long / file).read_bytes()
    shorter = trainer(recipe=recipe(epochs=3)).run(short, short / "checkpoint")
    assert shorter.resumed_at == 0 and shorter.rows[-1]["epoch"] == 3


REWRITTEN = [record.model_copy(update={"prompt": f"{record.prompt} e"}) for record in UNSEEN]


@pytest.mark.parametrize(
    "other",
    [
        {"recipe": recipe(epochs=2, learning_rate=0.01)},
        {"identity": {"code": "other"}},
        {"unseen": REWRITTEN},  # the pictures before training, and the log, would be those of other prompts
    ],
)
def test_checkpoints_of_other_settings_or_code_are_left_aside_and_kept(tmp_path: Path, other: dict[str, Any]) -> None:
    first = {"recipe": recipe(epochs=2), "identity": {"code": "one"}}
    trainer(**first).run(tmp_path, tmp_path / "checkpoint")
    assert trainer(**{**first, **other}).run(tmp_path, tmp_path / "checkpoint").resumed_at == 0
    assert len([place for place in (tmp_path / "checkpoint").iterdir() if place.is_dir()]) == 2
    assert trainer(**first).run(tmp_path, tmp_path / "checkpoint").resumed_at == 2


class Constant(Brightness):
    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.full(len(batch), 0.3)


def test_reward_ratio_taming_and_gold_scores_are_logged(tmp_path: Path) -> None:
    def gold(panels: list[Any], records: list[Any]) -> dict[str, np.ndarray]:
        assert [len(row) for row in panels] == [4] * len(records)
        return {"gold": np.full(len(records), 0.25)}

    terms = {"consistency": {"weight": 1.0}, "clip_t": {"weight": 1.0}}
    rule = recipe(
        rewards={"terms": terms, "aggregator": "log_tame", "tame_delta": 0.01, "advantage_std": "global"}, epochs=1
    )
    rewards = {"consistency": Brightness("consistency"), "clip_t": Constant("clip_t")}
    outcome = trainer(recipe=rule, rewards=rewards, gold=gold).run(tmp_path, tmp_path / "checkpoint")
    row = outcome.rows[1]
    assert row["reward_ratio"] == pytest.approx(row["reward/consistency"] / 0.3)
    assert row["tamed/consistency"] == 1.0 and row["tamed/clip_t"] == 0.0
    assert row["variation/clip_t"] == pytest.approx(0.0, abs=1e-9)
    assert outcome.before["32/gold"] == outcome.after["64/gold"] == 0.25


def test_evaluation_asks_the_test_rewards(tmp_path: Path) -> None:
    """Train and test sets of rewards, weights and aggregators know nothing of one another."""

    class Darkness(Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            return 1.0 - super().__call__(batch)

    test = {"terms": {"a": {"weight": 3.0}, "b": {"weight": 1.0}}, "aggregator": "harmonic_mean"}
    trained, a, b = Brightness(), Darkness("a"), Constant("b")
    policy_trainer = trainer(
        recipe=recipe(test_rewards={**test, "advantage_std": "group"}, epochs=1),
        rewards={"brightness": trained},
        test_rewards={"a": a, "b": b},
    )
    outcome = policy_trainer.run(tmp_path, tmp_path / "checkpoint")
    # Training: 4 prompts x 6 images. Evaluation: 2 evaluations x 2 sizes x 3 prompts x 2 seeds.
    assert (trained.num_scored, a.num_scored) == (24, 24)
    names = {name.removeprefix("32/") for name in outcome.after if name.startswith("32/")}
    assert names == {"a", "b", "score", "panel_diversity", *IMAGE_CONTENT}
    assert 0.3 < outcome.after["32/score"] < outcome.after["32/a"]
    assert "reward/brightness" in outcome.rows[1] and "reward/a" not in outcome.rows[1]


def test_published_weights_are_a_starting_point_or_only_evaluated(tmp_path: Path) -> None:
    trainer(recipe=recipe(learning_rate=0.3)).run(tmp_path / "first", tmp_path / "first" / "checkpoint")
    start = str(tmp_path / "first" / "adapter")
    outcome = trainer(recipe=recipe(start=start, epochs=0)).run(tmp_path / "evaluated", tmp_path / "checkpoint")
    first = load_file(tmp_path / "first" / "adapter" / "adapter.safetensors")
    evaluated = load_file(tmp_path / "evaluated" / "adapter" / "adapter.safetensors")
    assert all(torch.equal(first[name], evaluated[name]) for name in first)
    assert outcome.before == outcome.after and outcome.rows[-1]["epoch"] == 0
    further = trainer(recipe=recipe(start=start, epochs=1)).run(tmp_path / "further", tmp_path / "checkpoint")
    assert further.before["32/brightness"] == outcome.after["32/brightness"]


def test_a_training_that_goes_on_draws_what_the_one_before_would_have_drawn_next(tmp_path: Path) -> None:
    def sampled_prompts(place: Path, **changes: Any) -> list[list[Any]]:
        policy_trainer, epochs = trainer(recipe=recipe(**changes)), []
        gather = policy_trainer.epochs.gather

        def noted(epoch: int) -> Any:
            experience, scores = gather(epoch)
            epochs.append(experience.keys)
            return experience, scores

        object.__setattr__(policy_trainer.epochs, "gather", noted)
        policy_trainer.run(place, place / "checkpoint")
        return epochs

    long = sampled_prompts(tmp_path / "long", epochs=3)
    start = str(tmp_path / "long" / "adapter")
    assert sampled_prompts(tmp_path / "further", epochs=1, epochs_before=2, start=start) == long[2:]
    assert sampled_prompts(tmp_path / "again", epochs=1, start=start) == long[:1], (
        "without the number it meets them once more"
    )


def test_rewards_draw_anew_each_epoch_and_alike_in_evaluations(tmp_path: Path) -> None:
    class Drawing(Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            draws.append(batch.seed)
            return super().__call__(batch)

    draws: list[int] = []
    trainer(recipe=recipe(epochs=2), rewards={"brightness": Drawing()}).run(tmp_path, tmp_path / "checkpoint")
    assert len(set(draws)) == 3 and draws[0] == draws[-1] == 0
