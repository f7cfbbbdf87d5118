"""The hack meter: right values of its measures, and what it does in a training."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pydantic import ValidationError

from paco_core.grpo import checks
from paco_core.grpo.hacking import _largest_grid_score, disagreement, drift, near_copies
from paco_core.grpo.metrics import deviation, mean_with_interval, paired_change, paired_changes
from paco_core.io.picture_measures import grid_score
from paco_core.rewards.base import RewardBatch
from tests.support import grpo_toys
from tests.support.grpo_toys import recipe, record, trainer

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
    made = trainer(recipe=recipe(**{**RULE, **changes}), rewards=rewards, unseen=UNSEEN)
    made.run(tmp / "out", tmp / "checkpoint")
    return checks.read_log(tmp / "out" / "training_log.csv")


def test_the_mean_of_changes_has_students_interval_and_leaves_missing_ones_out() -> None:
    changes = np.array([0.1, 0.2, 0.3, 0.1, 0.2, 0.3, NAN])
    mean, low, high = mean_with_interval(changes)
    half = 2.570582 * math.sqrt(0.04 / 5) / math.sqrt(6)  # t of 5 degrees of freedom
    assert (mean, low, high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))
    assert mean_with_interval(np.full(6, 0.2)) == pytest.approx((0.2, 0.2, 0.2))
    few, none = mean_with_interval(np.array([0.4] * 5)), mean_with_interval(np.array([NAN]))
    assert few[0] == pytest.approx(0.4) and all(map(math.isnan, (*few[1:], *none)))


def test_drift_is_the_gain_that_one_judge_sees_alone_and_a_missing_score_leaves_the_prompt_out() -> None:
    before = np.array([[0.5, 0.5], [0.4, 0.4], [0.1, 0.1], [0.2, 0.2], [0.6, 0.6], [0.3, 0.3], [0.7, 0.7]])
    spread = before.std(ddof=1)
    gain = np.array([[0.3], [0.3], [0.3], [0.3], [0.3], [0.3], [0.9]])  # by the training judge, of the last prompt more
    seen = np.array([[0.1], [0.1], [0.1], [0.1], [0.1], [0.1], [NAN]])
    found = drift(before + gain, before, before + seen, before)
    assert [found[f"{judge}_gain"] * spread for judge in ("trained", "held_out")] == pytest.approx([0.3, 0.1])
    assert [found[f"drift{end}"] for end in ("", "_low", "_high")] == pytest.approx([0.2 / spread] * 3)
    assert found["drift_prompts"] == 6


def test_drift_is_in_each_judges_own_deviations_so_that_a_narrow_scale_hides_nothing() -> None:
    """A gain of .02 by a judge whose scores hardly differ is a large one."""
    before = np.array([[0.2], [0.4], [0.6], [0.8], [0.3], [0.7]])
    narrow = 0.9 + 0.05 * before
    noise = np.array([[0.03], [-0.03], [0.02], [-0.02], [0.01], [-0.01]])
    found = drift(narrow + 0.02, narrow, before + noise, before)
    assert found["trained_gain"] == pytest.approx(0.02 / narrow.std(ddof=1)) and found["drift_low"] > 0
    assert math.isnan(drift(np.full((6, 1), 0.6), np.full((6, 1), 0.5), before, before)["drift"])


def test_a_copy_of_a_panel_or_of_the_reference_is_a_near_copy() -> None:
    copies = Image.new("RGB", (32, 32), (90, 90, 90))
    half = copies.copy()
    half.paste((200, 90, 90), (16, 0, 32, 32))  # two panels of one colour, two of another
    prompts = [record(0), record(1)]
    assert near_copies([copies], prompts[:1], 0.05) == 1.0
    assert near_copies([half], prompts[:1], 0.05) == pytest.approx(2 / 6)
    assert near_copies([copies, half], prompts, 0.05, lambda _record: [copies, half]) == 0.5
    assert math.isnan(near_copies([copies], [prompts[0].model_copy(update={"layout": "1x1"})], 0.05))


def test_the_grid_score_of_several_sizes_is_the_largest() -> None:
    before = [Image.new("RGB", (side, side), "grey") for side in (32, 48)]
    for place, plain in enumerate(before):
        stripes = plain.copy()
        for column in range(0, plain.width, 4):
            stripes.paste("white", (column, 0, column + 1, plain.height))
        now = [stripes if n == place else picture for n, picture in enumerate(before)]
        assert _largest_grid_score(now, before) == grid_score([stripes], [plain]) > 3
    assert _largest_grid_score(before, before) == 0


def test_judges_disagree_where_only_the_training_one_is_above_its_group() -> None:
    trained = np.array([[0.1, 0.9, 0.9, NAN], [0.5, 0.5, 0.5, 0.5]])
    held_out = np.array([[0.9, 0.1, NAN, 0.9], [0.1, 0.2, 0.3, 0.4]])
    assert disagreement(trained, held_out).tolist() == [[0, 1, 1, 0], [0, 0, 0, 0]]


def test_the_log_holds_the_meter_at_each_evaluation_and_it_starts_at_zero(tmp_path: Path) -> None:
    rows = run(tmp_path, Darkness())
    measured = [row for row in rows if "eval/32/drift" in row]
    assert [row["epoch"] for row in measured] == [0, 2, 4]
    first, last = measured[0], measured[-1]
    assert all(first[f"eval/32/{name}"] == 0 for name in ("drift", "grid_score", "start_distance"))
    assert last["eval/32/drift"] == pytest.approx(2 * last["eval/32/trained_gain"])
    assert last["eval/32/drift_low"] > 0 and last["eval/32/start_distance"] > 0
    assert 0 <= last["eval/32/near_copies"] <= 1 and last["eval/32/drift_prompts"] == 12


def test_a_held_out_judge_changes_no_weight_and_a_training_without_meter_logs_none(tmp_path: Path) -> None:
    with_meter = run(tmp_path / "a", Darkness())
    alone = {**REWARDS, "terms": {"brightness": TERMS["brightness"]}}
    rule = recipe(**{**RULE, "hack_meter": None, "rewards": alone})
    trainer(recipe=rule, unseen=UNSEEN).run(tmp_path / "b", tmp_path / "checkpoint")
    with (tmp_path / "b" / "training_log.csv").open() as stream:
        without = list(csv.DictReader(stream))
    assert [row["eval/32/brightness"] for row in without if row["eval/32/brightness"]] == [
        str(row["eval/32/brightness"]) for row in with_meter if "eval/32/brightness" in row
    ]
    assert not [name for name in without[0] if "drift" in name or "grid" in name]


def test_a_training_that_goes_on_compares_with_the_same_start(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", Darkness())
    rule = recipe(**RULE)
    rewards = {"brightness": grpo_toys.Brightness(), "other": Darkness()}
    first = trainer(recipe=rule, rewards=rewards, unseen=UNSEEN)
    with pytest.raises(KeyboardInterrupt):
        cut = first.epochs.gather

        def stop(epoch: int) -> Any:
            if epoch == 3:
                raise KeyboardInterrupt
            return cut(epoch)

        object.__setattr__(first.epochs, "gather", stop)
        first.run(tmp_path / "cut", tmp_path / "checkpoint")
    trainer(recipe=rule, rewards=rewards, unseen=UNSEEN).run(tmp_path / "cut", tmp_path / "checkpoint")
    assert checks.read_log(tmp_path / "cut" / "training_log.csv") == whole


@pytest.mark.parametrize(("other", "shared"), [(Darkness(), False), (grpo_toys.Brightness(), True)])
def test_a_gain_must_be_shared_by_the_held_out_judge(tmp_path: Path, other: Any, shared: bool) -> None:
    report = checks.shared_gain(run(tmp_path, other), recipe(**RULE))
    assert report.passed is shared and "held-out other" in report.description
    assert ("rank the samples of a prompt apart" in report.description) is not shared
    if not shared:
        assert "the held-out judge does not share the gain at 32 px" in report.description
        assert float(report.metadata["drift_32px"]) > 0


def test_no_meter_asks_nothing_and_a_log_without_its_figures_is_not_let_through() -> None:
    assert checks.shared_gain([{"epoch": 0.0}], recipe()).passed
    assert not checks.shared_gain([{"epoch": 0.0}], recipe(**RULE)).passed
    unscored = checks.shared_gain([{"eval/32/drift_prompts": 1.0}], recipe(**RULE))
    assert not unscored.passed and "fewer than 6 prompts" in unscored.description


@pytest.mark.slow
def test_kl_where_judges_agree_counts_for_nothing(tmp_path: Path) -> None:
    """The held-out judge agrees always, so the gated KL equals none."""
    kl = {"beta": 5.0, "form": "exact"}
    gated = run(tmp_path / "a", grpo_toys.Brightness(), kl={**kl, "where": "disagreement"})
    free = run(tmp_path / "b", grpo_toys.Brightness())
    held = run(tmp_path / "c", grpo_toys.Brightness(), kl=kl)
    against = run(tmp_path / "d", Darkness(), kl={**kl, "where": "disagreement"})
    last = [rows[-1]["eval/32/brightness"] for rows in (gated, free, held, against)]
    assert last[0] == pytest.approx(last[1]) and last[2] < last[1] and last[3] < last[1]
    assert gated[-1]["disagreement"] == 0 and 0 < against[-1]["disagreement"] < 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hack_meter": {**METER, "held_out": "oter"}}, "'oter' is no term of rewards; there are brightness, other"),
        ({"hack_meter": {**METER, "held_out": "brightness"}}, r"one of weight 0 \(brightness: weight 1\)"),
        ({"hack_meter": {**METER, "trained": "other"}}, r"a reward that trains \(other: weight 0\)"),
        ({"test_rewards": {**REWARDS, "terms": {"brightness": TERMS["brightness"]}}}, "'other' is no term of test_rew"),
        ({"hack_meter": None, "early_stop": {"hack_meter": True}}, "heeds the alarm of hack_meter: name its judges"),
        ({"hack_meter": None, "kl": {"beta": 1.0, "where": "disagreement"}}, "kl.where: disagreement is that of"),
    ],
)
def test_a_meter_is_refused_without_two_judges(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        recipe(**{**RULE, **changes})


def test_a_change_has_the_interval_of_its_prompts() -> None:
    gains = np.array([[0.1], [0.2], [0.3], [0.1], [0.2], [0.3]])
    before = {"a": np.tile([[0.1, 0.3]], (6, 1)), "gone": np.zeros((6, 2))}
    found = paired_changes(before, {"a": before["a"] + gains, "new": np.zeros((6, 2))})
    assert set(found) == {"a"}
    half = 2.570582 * math.sqrt(0.04 / 5) / math.sqrt(6)  # t of 5 degrees of freedom
    assert (found["a"].mean, found["a"].low, found["a"].high) == pytest.approx((0.2, 0.2 - half, 0.2 + half))


def test_a_change_and_its_interval_are_over_the_prompts_with_all_scores() -> None:
    """Half of the images after training have no score: the rest did not change."""
    before = np.array([[0.1, 0.1], [0.2, 0.2], [0.3, 0.3], [0.4, 0.4], [0.5, 0.5], [0.6, 0.6], [0.0, 0.0], [0.0, 0.0]])
    after = before.copy()
    after[6:] = NAN
    found = paired_change(before, after)
    assert (found.mean, found.low, found.high, found.missing) == (0.0, 0.0, 0.0, 2)
    assert found.row() == {"": 0.0, "_low": 0.0, "_high": 0.0, "_missing": 2.0}
    assert paired_change(np.tile(before, 2), np.column_stack([before, after])).missing == 2, "one seed is enough"
    after[:] = NAN
    assert math.isnan(paired_change(before, after).mean) and paired_change(before, after).missing == 8


def test_the_interval_of_a_share_stays_within_its_range() -> None:
    before = np.array([[0.0], [1.0], [0.0], [1.0], [0.0], [1.0]])
    share, number = paired_change(before, 1 - before), paired_change(2 * before, 2 - 2 * before)
    assert (share.mean, share.low, share.high) == (0.0, -1.0, 1.0)
    assert number.low < -2 and number.high > 2


def test_scores_that_differ_by_rounding_have_no_deviation() -> None:
    assert math.isnan(deviation(np.array([0.3, 0.1 + 0.2, NAN])))
    assert deviation(np.array([0.3, 0.4])) == pytest.approx(0.0707, abs=1e-4)


def test_a_training_reports_the_intervals_of_its_changes(tmp_path: Path) -> None:
    made = trainer(recipe=recipe(epochs=1, eval_prompts=12), unseen=UNSEEN)
    figures = made.run(tmp_path, tmp_path / "checkpoint").metrics()
    for key in ("eval.32.brightness", "eval.64.brightness", "eval.64.panel_diversity"):
        low, change, high = (figures[f"{key}.{end}"] for end in ("change_low", "change", "change_high"))
        assert low < change < high and (low + high) / 2 == pytest.approx(change, abs=1e-6), key
