"""The loop as a whole, on a toy policy: what it learns, counts, overlaps, refuses and resumes."""

from __future__ import annotations

import csv
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from paco_core.grpo.trainer import Reports
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from tests.support import forked
from tests.support.grpo_toys import TRAIN, UNSEEN, Brightness, ToyPolicy, figures, recipe, trainer


@pytest.mark.slow
def test_reward_rises_on_unseen_prompts_at_both_sizes(tmp_path: Path) -> None:
    outcome = trainer(recipe=recipe(epochs=40, eval_every=40, group_size=12, learning_rate=0.1)).run(
        tmp_path, tmp_path / "checkpoint"
    )
    assert outcome.after["32/brightness"] > outcome.before["32/brightness"] + 0.15
    assert outcome.after["64/brightness"] > outcome.before["64/brightness"] + 0.15


def test_passes_are_counted(tmp_path: Path) -> None:
    """A sample costs one pass a sampling step, one decode, one trained pass; text is encoded once for all."""
    reward = Brightness()
    given = trainer(recipe=recipe(epochs=3, eval_every=99), rewards={"brightness": reward})
    given.run(tmp_path, tmp_path / "checkpoint")
    policy: Any = given.learner.policy
    samples, evaluated = (
        3 * 4 * 6,
        2 * 2 * 3 * 2,
    )  # epochs x prompts x group; before and after x sizes x prompts x seeds
    assert policy.calls["encode"] == 2  # training's prompts and evaluation's
    assert policy.rows["sampled"] == 4 * (samples + evaluated)
    assert policy.rows["trained"] == samples
    assert policy.calls["decode"] == 3 * 3 + 4
    assert reward.seen == samples + evaluated


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
    assert pictures == [(f"unseen_{side}px", epoch) for epoch in (0, 2, 4) for side in (32, 64)]
    for when in ("before", "after"):
        for side in (32, 64):
            files = sorted((tmp_path / "samples" / when / str(side)).iterdir())
            assert [f.name for f in files] == [f"{r.idx}-{s}.png" for r in UNSEEN for s in (0, 1)]
            assert Image.open(files[0]).size == (side, side)


def test_adapter_holds_the_averaged_weights(tmp_path: Path) -> None:
    given = trainer()
    given.run(tmp_path, tmp_path / "checkpoint")
    saved = load_file(tmp_path / "adapter" / "adapter.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in given.learner.ema.shadow.items())
    assert any(not torch.equal(saved[n], p.detach()) for n, p in given.learner.policy.trainable().items())


def test_the_average_moves_by_updates_whatever_the_size_of_a_pass(tmp_path: Path) -> None:
    """Peers moved it at every micro-batch: its reach then hung on memory."""
    few, many = (trainer(recipe=recipe(epochs=2, train_batch=size, ema_decay=0.9)) for size in (24, 4))
    for given, name in ((few, "few"), (many, "many")):
        given.run(tmp_path / name, tmp_path / name / "checkpoint")
    assert few.learner.ema.steps == many.learner.ema.steps == 2 * few.recipe.updates_per_epoch
    for name, shadow in few.learner.ema.shadow.items():
        assert torch.allclose(shadow, many.learner.ema.shadow[name], atol=1e-5), name
        assert not torch.equal(shadow, few.learner.parameters[name]), "an average, not the weights"


@pytest.mark.slow
def test_resume_gives_the_uninterrupted_run(tmp_path: Path) -> None:
    whole = trainer(recipe=recipe(checkpoint_every=2)).run(tmp_path / "whole", tmp_path / "whole" / "checkpoint")
    cut = tmp_path / "cut"
    cut.mkdir()

    def kill(done: int, _note: str) -> None:
        if done == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    def train() -> None:
        trainer(recipe=recipe(checkpoint_every=2), reports=Reports(epoch=kill)).run(cut, cut / "checkpoint")

    assert forked.run(train, cut).killed
    assert not (tmp_path / "cut" / "adapter").exists()
    resumed = trainer(recipe=recipe(checkpoint_every=2)).run(tmp_path / "cut", tmp_path / "cut" / "checkpoint")
    assert resumed.resumed_at == 2
    assert figures(resumed) == figures(whole)
    adapters = [(tmp_path / where / "adapter" / "adapter.safetensors").read_bytes() for where in ("cut", "whole")]
    assert adapters[0] == adapters[1]
    whole_state, cut_state = (
        next((tmp_path / where / "checkpoint").glob("*/checkpoint-00004/tensors.safetensors")).read_bytes()
        for where in ("whole", "cut")
    )
    assert whole_state == cut_state


def test_finished_training_is_not_repeated_but_may_be_extended(tmp_path: Path) -> None:
    first = trainer(recipe=recipe(epochs=2)).run(tmp_path, tmp_path / "checkpoint")
    again = trainer(recipe=recipe(epochs=2))
    outcome = again.run(tmp_path, tmp_path / "checkpoint")
    assert outcome.resumed_at == 2 and again.learner.policy.rows["trained"] == 0  # type: ignore[attr-defined]
    assert outcome.seconds == first.seconds and first.seconds["seconds/sample"] > 0
    longer = trainer(recipe=recipe(epochs=3)).run(tmp_path, tmp_path / "checkpoint")
    assert longer.resumed_at == 2 and longer.seconds["seconds/sample"] > first.seconds["seconds/sample"]


def test_an_extended_training_equals_a_long_one(tmp_path: Path) -> None:
    """Weights, figures and log; the last epoch of the short one is evaluated where the long one does."""
    short, long = tmp_path / "short", tmp_path / "long"
    trainer(recipe=recipe(epochs=2, eval_every=2)).run(short, short / "checkpoint")
    extended = trainer(recipe=recipe(epochs=4, eval_every=2)).run(short, short / "checkpoint")
    whole = trainer(recipe=recipe(epochs=4, eval_every=2)).run(long, long / "checkpoint")
    assert extended.resumed_at == 2 and figures(extended) == figures(whole)
    assert (short / "training_log.csv").read_bytes() == (long / "training_log.csv").read_bytes()
    assert (short / "adapter/adapter.safetensors").read_bytes() == (long / "adapter/adapter.safetensors").read_bytes()


def test_fewer_epochs_do_not_answer_with_a_longer_training(tmp_path: Path) -> None:
    trainer(recipe=recipe(epochs=3)).run(tmp_path, tmp_path / "checkpoint")
    shorter = trainer(recipe=recipe(epochs=2)).run(tmp_path, tmp_path / "checkpoint")
    assert shorter.resumed_at == 0 and shorter.rows[-1]["epoch"] == 2


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


def test_scoring_overlaps_sampling(tmp_path: Path) -> None:
    """The scorer of the first batch waits for the second batch to be under way; else it would wait for ever."""
    second_batch = threading.Event()

    class Slow(Brightness):
        overlapped: bool | None = None

        def __call__(self, batch: RewardBatch) -> np.ndarray:
            if len(batch) == 8 and self.overlapped is None:
                self.overlapped = second_batch.wait(timeout=20)
            return super().__call__(batch)

    class Watched(ToyPolicy):
        def noise(self, size: Any, keys: Any) -> torch.Tensor:
            if any(key.image >= 0 and key.seed > 10 for key in keys):
                self.calls["batches"] += 1
            if self.calls["batches"] > 2:  # initial noise and noise step of the first batch, then the second's
                second_batch.set()
            return super().noise(size, keys)

    reward = Slow()
    trainer(policy=Watched(), recipe=recipe(epochs=1, seed=1), rewards={"brightness": reward}).run(
        tmp_path, tmp_path / "checkpoint"
    )
    assert reward.overlapped is True


class Failing(Brightness):
    """NaN for every n-th sample of a training epoch."""

    def __init__(self, every: int) -> None:
        super().__init__()
        self.every = every
        self.causes = {"timeout": 0}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        values = super().__call__(batch)
        if not batch.draw:  # of an evaluation
            return values
        values[:: self.every] = np.nan
        self.causes["timeout"] += len(values[:: self.every])
        return values


def test_failed_samples_teach_nothing(tmp_path: Path) -> None:
    given = trainer(rewards={"brightness": Failing(8)}, max_failed_share=0.2, recipe=recipe(epochs=1))
    outcome = given.run(tmp_path, tmp_path / "checkpoint")
    assert outcome.rows[1]["groups/failed_samples"] == 3
    assert given.learner.policy.rows["trained"] == 24 - 3  # type: ignore[attr-defined]


def test_too_many_failures_stop_the_training(tmp_path: Path) -> None:
    with pytest.raises(DataError) as error:
        trainer(rewards={"brightness": Failing(2)}, max_failed_share=0.2).run(tmp_path, tmp_path / "checkpoint")
    assert all(text in str(error.value) for text in ("epoch 1", "12 of 24", "max_failed_share", "timeout"))


class Constant(Brightness):
    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return np.full(len(batch), 0.3)


def test_constant_reward_changes_no_weight(tmp_path: Path) -> None:
    given = trainer(rewards={"brightness": Constant()}, recipe=recipe(epochs=2))
    outcome = given.run(tmp_path, tmp_path / "checkpoint")
    assert outcome.rows[1]["groups/zero_std"] == 4
    assert torch.equal(given.learner.policy.trainable()["b"], torch.zeros(2, 4))


def test_gold_is_told_beside_the_reward(tmp_path: Path) -> None:
    def gold(panels: list[Any], records: list[Any]) -> dict[str, np.ndarray]:
        assert [len(row) for row in panels] == [4] * len(records)
        return {"gold": np.full(len(records), 0.25)}

    outcome = trainer(gold=gold, recipe=recipe(epochs=1)).run(tmp_path, tmp_path / "checkpoint")
    assert outcome.before["32/gold"] == outcome.after["64/gold"] == 0.25


def test_reward_ratio_and_taming_are_logged(tmp_path: Path) -> None:
    rewards = {"consistency": Brightness("consistency"), "clip_t": Constant("clip_t")}
    rule = recipe(
        rewards={
            "terms": {"consistency": {"weight": 1.0}, "clip_t": {"weight": 1.0}},
            "aggregator": "log_tame",
            "tame_delta": 0.01,
            "advantage_std": "global",
        },
        epochs=1,
    )
    row = trainer(recipe=rule, rewards=rewards).run(tmp_path, tmp_path / "checkpoint").rows[1]
    assert row["reward_ratio"] == pytest.approx(row["reward/consistency"] / 0.3)
    assert row["tamed/consistency"] == 1.0 and row["tamed/clip_t"] == 0.0
    assert row["variation/clip_t"] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"unseen": TRAIN[:1]}, "in training and in evaluation"),
        ({"unseen": []}, "no unseen prompt"),
        ({"train": TRAIN[:3]}, "prompts_per_epoch=4"),
        ({"recipe": recipe(eval_sizes=[40])}, "does not divide"),
    ],
)
def test_impossible_set_ups_are_refused_before_anything_runs(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    policy = ToyPolicy()
    with pytest.raises(DataError, match=message):
        trainer(policy=policy, **changes).run(tmp_path, tmp_path / "checkpoint")
    assert not policy.calls


def test_nan_gradient_stops_before_a_step(tmp_path: Path) -> None:
    class Broken(ToyPolicy):
        def velocity(self, *args: Any) -> torch.Tensor:
            v = super().velocity(*args)
            return v * torch.nan if torch.is_grad_enabled() else v

    given = trainer(policy=Broken())
    with pytest.raises(RuntimeError, match="gradient's norm is nan"):
        given.run(tmp_path, tmp_path / "checkpoint")
    assert torch.equal(given.learner.policy.trainable()["b"], torch.zeros(2, 4))


def test_evaluation_asks_the_test_rewards(tmp_path: Path) -> None:
    """Train and test sets of rewards, weights and aggregators know nothing of one another."""

    class Darkness(Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            return 1.0 - super().__call__(batch)

    test = {"terms": {"a": {"weight": 3.0}, "b": {"weight": 1.0}}, "aggregator": "harmonic_mean"}
    trained, a, b = Brightness(), Darkness("a"), Constant("b")
    given = trainer(
        recipe=recipe(test_rewards={**test, "advantage_std": "group"}, epochs=1),
        rewards={"brightness": trained},
        test_rewards={"a": a, "b": b},
    )
    outcome = given.run(tmp_path, tmp_path / "checkpoint")
    assert (trained.seen, a.seen) == (24, 24)  # 4 prompts x 6; 2 evaluations x 2 sizes x 3 prompts x 2 seeds
    assert {name for name in outcome.after if name.startswith("32/")} == {
        "32/a",
        "32/b",
        "32/score",
        "32/panel_diversity",
    }
    assert 0.3 < outcome.after["32/score"] < outcome.after["32/a"]
    assert "reward/brightness" in outcome.rows[1] and "reward/a" not in outcome.rows[1]


def test_the_gap_between_sizes_is_told(tmp_path: Path) -> None:
    outcome = trainer(recipe=recipe(epochs=1)).run(tmp_path, tmp_path / "checkpoint")
    gap = outcome.after["64/brightness"] - outcome.after["32/brightness"]
    assert outcome.rows[-1]["gap/brightness"] == gap and outcome.metrics()["gap.brightness.after"] == gap
    assert outcome.metrics()["eval.64.brightness.after"] == outcome.after["64/brightness"], (
        "named apart from a benchmark's"
    )


def test_a_groupwise_reward_sees_groups_that_batches_tear_apart(tmp_path: Path) -> None:
    sizes: list[int] = []

    class Best(Brightness):
        groupwise = True

        def __call__(self, batch: RewardBatch) -> np.ndarray:
            values = super().__call__(batch)
            sizes.append(len(batch))
            return (values == values.max()).astype(float)

    reward = Best()
    outcome = trainer(rewards={"brightness": reward}, recipe=recipe(epochs=1, rollout_batch=4)).run(
        tmp_path, tmp_path / "checkpoint"
    )
    assert sizes == [2] * 6 + [6] * 4 + [2] * 6
    assert outcome.rows[1]["reward/brightness"] == pytest.approx(1 / 6)


def test_published_weights_are_a_starting_point_or_only_evaluated(tmp_path: Path) -> None:
    trainer(recipe=recipe(learning_rate=0.3)).run(tmp_path / "first", tmp_path / "first" / "checkpoint")
    start = str(tmp_path / "first" / "adapter")
    outcome = trainer(recipe=recipe(start=start, epochs=0)).run(
        tmp_path / "evaluated", tmp_path / "evaluated" / "checkpoint"
    )
    first = load_file(tmp_path / "first" / "adapter" / "adapter.safetensors")
    same = load_file(tmp_path / "evaluated" / "adapter" / "adapter.safetensors")
    assert all(torch.equal(first[name], same[name]) for name in first)
    assert outcome.before == outcome.after and outcome.rows[-1]["epoch"] == 0
    further = trainer(recipe=recipe(start=start, epochs=1)).run(
        tmp_path / "further", tmp_path / "further" / "checkpoint"
    )
    assert further.before["32/brightness"] == outcome.after["32/brightness"]
    assert "continued from" in (tmp_path / "further" / "adapter" / "README.md").read_text()


def test_a_training_that_goes_on_draws_what_the_one_before_would_have_drawn_next(tmp_path: Path) -> None:
    def drawn(place: Path, **changes: Any) -> list[list[Any]]:
        made, epochs = trainer(recipe=recipe(**changes)), []
        gather = made.epochs.gather

        def noted(epoch: int) -> Any:
            experience, scores = gather(epoch)
            epochs.append(experience.keys)
            return experience, scores

        object.__setattr__(made.epochs, "gather", noted)
        made.run(place, place / "checkpoint")
        return epochs

    long = drawn(tmp_path / "long", epochs=3)
    start = str(tmp_path / "long" / "adapter")
    assert drawn(tmp_path / "further", epochs=1, epochs_before=2, start=start) == long[2:]
    assert drawn(tmp_path / "again", epochs=1, start=start) == long[:1], "without the number it meets them once more"


def test_what_cannot_be_saved_is_found_before_the_first_epoch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = ToyPolicy()

    def save(_folder: Path) -> None:
        raise TypeError("Object of type Tensor is not JSON serializable")

    monkeypatch.setattr(policy, "save_adapter", save)
    with pytest.raises(TypeError, match="not JSON serializable"):
        trainer(policy=policy)
    assert policy.rows["sampled"] == 0 and not (tmp_path / "adapter").exists()


def test_rewards_draw_anew_each_epoch_and_alike_in_evaluations(tmp_path: Path) -> None:
    class Drawing(Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            draws.append(batch.draw)
            return super().__call__(batch)

    draws: list[int] = []
    trainer(recipe=recipe(epochs=2), rewards={"brightness": Drawing()}).run(tmp_path, tmp_path / "checkpoint")
    assert len(set(draws)) == 3 and draws[0] == draws[-1] == 0
