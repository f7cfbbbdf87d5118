"""Reward hacking: the hack meter, the alarm, and when a training stops early."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError

from paco_core.config.params import EarlyStop, HackMeter
from paco_core.data.image_measures import grid_score
from paco_core.grpo import checks
from paco_core.grpo.hacking import (
    alarm,
    collapse_reason,
    disagreement,
    drift,
    first_alarm,
    largest_grid_score,
    score_agreement,
)
from paco_core.grpo.image_alarm import near_copies
from paco_core.grpo.trainer import Reports, Trainer
from paco_core.rewards.base import RewardBatch
from paco_core.training.optimizers import NotFinite
from tests.support import grpo_toys
from tests.support.grpo_toys import ToyPolicy, recipe, record, trainer

NAN = float("nan")
METER = {"trained": "brightness", "held_out": "other"}
TERMS = {"brightness": {"weight": 1.0, "reward": "own:brightness"}, "other": {"weight": 0.0, "reward": "own:other"}}
REWARDS = {"terms": TERMS, "aggregator": "weighted_sum", "advantage_std": "group"}
RULE: dict[str, Any] = {
    **{"hack_meter": METER, "rewards": REWARDS, "learning_rate": 0.3, "epochs": 4, "eval_every": 2, "group_size": 12},
    **{"eval_prompts": 12, "eval_seeds": [0], "eval_sizes": [32]},
}
UNSEEN = [record(n) for n in range(20, 32)]


class Darkness(grpo_toys.Brightness):
    def __call__(self, batch: RewardBatch) -> np.ndarray:
        return 1.0 - super().__call__(batch)


def run(tmp: Path, other: Any, **changes: Any) -> list[dict[str, float]]:
    rewards = {"brightness": grpo_toys.Brightness(), "other": other}
    policy_trainer = trainer(recipe=recipe(**{**RULE, **changes}), rewards=rewards, unseen=UNSEEN)
    policy_trainer.run(tmp / "out", tmp / "checkpoint")
    return checks.read_training_log(tmp / "out" / "training_log.csv")


def test_drift_is_the_gain_that_one_judge_sees_alone_and_a_missing_score_leaves_the_prompt_out() -> None:
    before = np.array([[0.5, 0.5], [0.4, 0.4], [0.1, 0.1], [0.2, 0.2], [0.6, 0.6], [0.3, 0.3], [0.7, 0.7]])
    std = before.std(ddof=1)
    gain = np.array([[0.3], [0.3], [0.3], [0.3], [0.3], [0.3], [0.9]])  # by the training judge, of the last prompt more
    held_out_gain = np.array([[0.1], [0.1], [0.1], [0.1], [0.1], [0.1], [NAN]])
    metrics = drift(before + gain, before, before + held_out_gain, before)
    assert [metrics[f"{judge}_gain"] * std for judge in ("trained", "held_out")] == pytest.approx([0.3, 0.1])
    assert [metrics[f"drift{end}"] for end in ("", "_low", "_high")] == pytest.approx([0.2 / std] * 3)
    assert metrics["drift_prompts"] == 6


def test_drift_is_in_each_judges_deviations_so_a_narrow_scale_hides_nothing() -> None:
    before = np.array([[0.2], [0.4], [0.6], [0.8], [0.3], [0.7]])
    narrow = 0.9 + 0.05 * before
    noise = np.array([[0.03], [-0.03], [0.02], [-0.02], [0.01], [-0.01]])
    metrics = drift(narrow + 0.02, narrow, before + noise, before)
    assert metrics["trained_gain"] == pytest.approx(0.02 / narrow.std(ddof=1)) and metrics["drift_low"] > 0
    assert math.isnan(drift(np.full((6, 1), 0.6), np.full((6, 1), 0.5), before, before)["drift"])


def test_a_copy_of_a_panel_or_of_the_reference_is_a_near_copy() -> None:
    copies = Image.new("RGB", (32, 32), (90, 90, 90))
    half = copies.copy()
    half.paste((200, 90, 90), (16, 0, 32, 32))  # two panels of one colour, two of another
    prompts = [record(0), record(1)]
    assert near_copies([copies], prompts[:1], 0.05) == 1.0
    assert near_copies([half], prompts[:1], 0.05) == pytest.approx(2 / 6)
    assert near_copies([copies, half], prompts, 0.05, lambda _record: [copies, half]) == 0.5
    assert near_copies([copies], prompts[:1], 0.05, lambda _record: [copies, half]) == 1.0, "the first reference counts"
    assert math.isnan(near_copies([copies], [prompts[0].model_copy(update={"layout": "1x1"})], 0.05))


def test_the_grid_score_of_several_sizes_is_the_largest() -> None:
    before = [Image.new("RGB", (side, side), "grey") for side in (32, 48)]
    for place, plain in enumerate(before):
        stripes = plain.copy()
        for column in range(0, plain.width, 4):
            stripes.paste("white", (column, 0, column + 1, plain.height))
        now = [stripes if n == place else picture for n, picture in enumerate(before)]
        assert largest_grid_score(now, before) == grid_score([stripes], [plain]) > 3


def test_judges_disagree_where_only_the_training_one_is_above_its_group() -> None:
    trained = np.array([[0.1, 0.9, 0.9, NAN], [0.5, 0.5, 0.5, 0.5]])
    held_out = np.array([[0.9, 0.1, NAN, 0.9], [0.1, 0.2, 0.3, 0.4]])
    assert disagreement(trained, held_out).tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]


def test_a_training_that_goes_on_compares_with_the_same_start(tmp_path: Path) -> None:
    """Stopped between two checkpoints, it reports the drift, and the change, that an uninterrupted one reports."""

    def start(folder: Path, stop: int | None, changes: dict[int, float]) -> Any:
        def metrics(values: dict[str, float], epoch: int) -> None:
            if (change := values.get("change/32/brightness")) is not None:
                changes[epoch] = change

        def stopping(epoch: int) -> Any:
            if epoch == stop:
                raise KeyboardInterrupt
            return gather(epoch)

        rewards, rule = {"brightness": grpo_toys.Brightness(), "other": Darkness()}, recipe(**RULE, checkpoint_every=2)
        policy_trainer = trainer(recipe=rule, rewards=rewards, unseen=UNSEEN, reports=Reports(metrics=metrics))
        gather = policy_trainer.epochs.gather
        object.__setattr__(policy_trainer.epochs, "gather", stopping)
        return policy_trainer.run(folder, folder / "checkpoint")

    uninterrupted, resumed = dict[int, float](), dict[int, float]()
    start(tmp_path / "whole", None, uninterrupted)
    with pytest.raises(KeyboardInterrupt):
        start(tmp_path / "cut", 3, {})
    assert start(tmp_path / "cut", None, resumed).resumed_at == 2
    logs = [(tmp_path / name / "training_log.csv").read_bytes() for name in ("whole", "cut")]
    assert logs[0] == logs[1]
    assert uninterrupted[0] == 0 and uninterrupted[4] == resumed[4] != 0


@pytest.mark.parametrize(("other", "shared"), [(Darkness(), False), (grpo_toys.Brightness(), True)])
def test_a_gain_must_be_shared_by_the_held_out_judge(tmp_path: Path, other: Any, shared: bool) -> None:
    """The meter is measured at each evaluation, starts at zero, and changes no weight."""
    rows = run(tmp_path / "meter", other)
    measured = [row for row in rows if "eval/32/drift" in row]
    first, last = measured[0], measured[-1]
    assert [row["epoch"] for row in measured] == [0, 2, 4] and last["eval/32/drift_prompts"] == 12
    assert all(first[f"eval/32/{name}"] == 0 for name in ("drift", "grid_score", "start_distance"))
    assert last["eval/32/drift"] == pytest.approx(0.0 if shared else 2 * last["eval/32/trained_gain"], abs=1e-9)
    assert last["eval/32/start_distance"] > 0 and 0 <= last["eval/32/near_copies"] <= 1
    report = checks.shared_gain(rows, recipe(**RULE))
    assert report.passed is shared and shared == (float(report.metadata["drift_32px"]) <= 0)
    rule = recipe(**{**RULE, "hack_meter": None, "rewards": {**REWARDS, "terms": {"brightness": TERMS["brightness"]}}})
    trainer(recipe=rule, unseen=UNSEEN).run(tmp_path, tmp_path / "checkpoint")
    without = checks.read_training_log(tmp_path / "training_log.csv")
    for name in ("eval/32/brightness", "update/grad_norm"):
        assert [row.get(name) for row in without] == [row.get(name) for row in rows]
    assert not [name for row in without for name in row if "drift" in name or "grid" in name]


@pytest.mark.parametrize("layouts", [["1x1"], ["1x1", "2x2"]])
def test_sets_of_one_panel_are_trained_and_have_no_diversity(tmp_path: Path, layouts: list[str]) -> None:
    prompts = [record(n).model_copy(update={"layout": layouts[n % len(layouts)]}) for n in range(11)]
    rewards = {"brightness": grpo_toys.Brightness(), "other": grpo_toys.Brightness()}
    rule = recipe(**{**RULE, "epochs": 2, "eval_prompts": 3})
    outcome = trainer(recipe=rule, rewards=rewards, train=prompts[:8], unseen=prompts[8:]).run(tmp_path, tmp_path / "c")
    for name in ("panel_diversity", "near_copies"):
        assert math.isnan(outcome.after[f"32/{name}"]) == (layouts == ["1x1"])
    assert checks.collapse(checks.read_training_log(tmp_path / "training_log.csv"), rule.eval_sizes).passed


def test_a_log_without_the_metrics_of_its_meter_is_not_let_through() -> None:
    assert checks.shared_gain([{"epoch": 0.0}], recipe()).passed
    assert not checks.shared_gain([{"epoch": 0.0}], recipe(**RULE)).passed
    assert not checks.shared_gain([{"eval/32/drift_prompts": 1.0}], recipe(**RULE)).passed


@pytest.mark.slow
def test_kl_where_judges_agree_counts_for_nothing(tmp_path: Path) -> None:
    """The held-out judge agrees always, so the gated KL equals none."""
    kl = {"kl": {"beta": 5.0, "form": "exact", "where": "disagreement"}}
    gated, free = run(tmp_path / "a", grpo_toys.Brightness(), **kl), run(tmp_path / "b", grpo_toys.Brightness())
    against = run(tmp_path / "d", Darkness(), **kl)
    gated_score, free_score, against_score = (rows[-1]["eval/32/brightness"] for rows in (gated, free, against))
    assert gated_score == pytest.approx(free_score) and against_score < free_score
    assert gated[-1]["disagreement"] == 0 and 0 < against[-1]["disagreement"] < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hack_meter": {**METER, "held_out": "oter"}}, "oter"),
        ({"hack_meter": {**METER, "held_out": "brightness"}}, "brightness: weight 1"),
        ({"hack_meter": {**METER, "trained": "other"}}, "other: weight 0"),
        ({"test_rewards": {**REWARDS, "terms": {"brightness": TERMS["brightness"]}}}, "other"),
        ({"hack_meter": None, "early_stop": {"hack_meter": True}}, "hack_meter"),
        ({"hack_meter": None, "kl": {"beta": 1.0, "where": "disagreement"}}, "kl.where"),
    ],
)
def test_a_meter_is_refused_without_two_judges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**{**RULE, **changes})


COLLAPSE = EarlyStop(reward_rise=0.1, diversity_kept=0.5, patience=2)


def rows(rewards: list[float], diversities: list[float]) -> list[dict[str, float]]:
    trained = [
        {"epoch": n + 1.0, "reward/a": reward, "reward/b": 0.2, "panel_diversity": diversity}
        for n, (reward, diversity) in enumerate(zip(rewards, diversities, strict=True))
    ]
    return [{"epoch": 0.0, "eval/64/a": 0.1}, *trained]


@pytest.mark.parametrize(
    ("rewards", "diversities", "stops"),
    [
        ([1, 1, 2, 2], [0.4, 0.4, 0.1, 0.1], True),
        ([1, 1, 2, 2], [0.4, 0.4, 0.3, 0.1], False),  # one epoch is not patience
        ([1, 1, 1, 1], [0.4, 0.4, 0.1, 0.1], False),  # the reward did not rise
        ([1, 1, 2, 2], [0.4, 0.4, 0.3, 0.3], False),  # the panels still differ
        ([2, 2, 2], [0.4, 0.1, 0.1], False),  # too early to tell
        ([1, 2, 3], [0.4, 0.1, 0.05], False),  # too early, too: the first and the last epochs overlap
    ],
)
def test_collapse_is_a_rising_reward_with_panels_that_become_one(
    rewards: list[float], diversities: list[float], stops: bool
) -> None:
    reason = collapse_reason(rows(rewards, diversities), {"a": 1.0, "b": 0.5}, COLLAPSE)
    assert (reason is not None) == stops
    assert reason is None or ("2.1 (1.1 at first)" in reason and "0.1 (0.4 at first)" in reason)


@pytest.mark.parametrize(
    ("agreements", "raised"),
    [
        ([0.9, 0.4, 0.3, 0.2], True),
        ([0.4, 0.6, 0.2], True),  # their mean counts: one epoch has few prompts
        ([0.4, 0.9, 0.3, 0.3], False),
        ([0.4, 0.3], False),  # too few epochs
        ([0.4, float("nan"), 0.3, 0.2], True),  # an epoch that teaches nothing says nothing
        ([0.5, 0.5, 0.5], False),  # at the bound is not below it
    ],
)
def test_the_alarm_is_raised_where_judges_rank_samples_apart(agreements: list[float], raised: bool) -> None:
    trained = [{"epoch": n + 1.0, "agreement": value} for n, value in enumerate(agreements)]
    meter = HackMeter(trained="a", held_out="b", agreement=0.5, patience=3)
    reason = alarm([{"epoch": 0.0}, *trained], meter)
    assert (reason is not None) == raised
    if reason is not None:
        mean = f"{np.nanmean([value for value in agreements if value == value][-3:]):.2f}"
        assert f"{mean} over the 3 epochs up to {len(agreements)}" in reason
    later = [{"epoch": len(trained) + n + 1.0, "agreement": 0.9} for n in range(3)]
    assert first_alarm([*trained, *later], meter) == reason and alarm([*trained, *later], meter) is None
    impatient = meter.model_copy(update={"patience": 1})
    assert first_alarm([{"epoch": 1.0, "agreement": 0.4}, *later], impatient) is not None, "the first epoch counts"
    assert first_alarm([*later, {"epoch": 9.0, "agreement": 0.1}], impatient) is not None, "and so does the last"


@pytest.mark.parametrize(
    ("trained", "held_out", "expected"),
    [
        ([[0.1, 0.2, 0.3]], [[0.5, 0.6, 0.7]], 1.0),  # whatever the scale
        ([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3]], [[1, 2, 3], [3, 2, 1]], 0.0),
        ([[0.1, 0.2, 0.3]], [[0.5, 0.5, 0.5]], 0.0),  # the other judge sees no difference
        ([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3]], [[1, 2, 3], [1, 2, 3]], 1.0),  # the first prompt teaches nothing
        ([[0.1, 0.2, 0.9]], [[0.5, 0.6, float("nan")]], 1.0),
        ([[0.5, 0.5]], [[0.5, 0.6]], float("nan")),
        ([[float("nan"), 0.5]], [[0.5, float("nan")]], float("nan")),
    ],
)
def test_agreement_is_the_correlation_of_scores_within_prompts(trained: Any, held_out: Any, expected: float) -> None:
    assert score_agreement(np.array(trained), np.array(held_out)) == pytest.approx(expected, abs=1e-6, nan_ok=True)


def test_a_training_ends_where_its_judges_disagree(tmp_path: Path) -> None:
    class ConstantReward(grpo_toys.Brightness):
        def __call__(self, batch: RewardBatch) -> np.ndarray:
            return np.full(len(batch), 0.5)

    stopping = {"early_stop": {"reward_rise": 9.0, "hack_meter": True}, "hack_meter": {**METER, "patience": 2}}
    rule = recipe(**{**RULE, "eval_every": 99, **stopping})
    for other, last in ((ConstantReward(), 2), (grpo_toys.Brightness(), 4)):
        policy_trainer = trainer(
            recipe=rule, rewards={"brightness": grpo_toys.Brightness(), "other": other}, unseen=UNSEEN
        )
        outcome = policy_trainer.run(tmp_path / str(last), tmp_path / str(last) / "checkpoint")
        assert outcome.rows[-1]["epoch"] == last and (outcome.stopped is None) == (last == 4)


def collapsing(policy: ToyPolicy | None = None, **changes: Any) -> Trainer:
    rule = recipe(epochs=30, eval_every=99, group_size=12, learning_rate=0.3, checkpoint_every=30, **changes)
    return grpo_toys.trainer(policy=policy or ToyPolicy(), recipe=rule)


def test_a_training_that_collapses_ends_early_and_whole(tmp_path: Path) -> None:
    """All white is the brightest: the panels of a set become equal while the reward rises."""
    rule = {"reward_rise": 0.02, "diversity_kept": 0.9, "patience": 2}
    outcome = collapsing(early_stop=rule).run(tmp_path, tmp_path / "checkpoint")
    last = int(outcome.rows[-1]["epoch"])
    assert 4 <= last < 30 and outcome.stopped is not None and "collapse" in outcome.stopped
    assert outcome.metrics()["stopped_early"] == 1.0 and outcome.metrics()["epochs"] == last
    assert (tmp_path / "adapter" / "adapter.safetensors").is_file()
    second_run = collapsing(early_stop=rule)
    assert int(second_run.run(tmp_path, tmp_path / "checkpoint").rows[-1]["epoch"]) == last
    assert second_run.learner.policy.rows["trained"] == 0  # type: ignore[attr-defined]


class BreaksLater(ToyPolicy):
    """Gradients are NaN from the third epoch on."""

    def velocity(self, *args: Any) -> torch.Tensor:
        v = super().velocity(*args)
        return v * torch.nan if torch.is_grad_enabled() and self.rows["trained"] > 2 * 48 else v


def test_a_gradient_that_is_not_finite_fails_or_ends_the_training(tmp_path: Path) -> None:
    with pytest.raises(NotFinite, match="norm is nan"):
        collapsing(BreaksLater(), early_stop={}).run(tmp_path / "fails", tmp_path / "fails" / "checkpoint")
    policy = BreaksLater()
    outcome = collapsing(policy, early_stop={"nan": "stop"}).run(tmp_path / "ends", tmp_path / "ends" / "checkpoint")
    assert outcome.stopped is not None and "norm is nan" in outcome.stopped
    assert [row["epoch"] for row in outcome.rows] == [0, 1, 2, 3]
    assert torch.isfinite(policy.b).all() and policy.b.abs().sum() > 0
    assert outcome.after["32/brightness"] > 0
