"""Samples without a score: how many a training accepts, and what its differences are then over."""

from __future__ import annotations

import csv
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import Brightness, recipe, record, trainer

NAN = float("nan")
UNSEEN = [record(n) for n in range(20, 28)]
RULE: dict[str, Any] = {"epochs": 2, "eval_every": 1, "eval_prompts": 8, "eval_seeds": [0], "eval_sizes": [32, 64]}


class Failing(Brightness):
    """No score for samples that ``fails`` selects by prompt id, size of a panel and number of evaluations so far.

    The number is -1 for samples of a training epoch.
    """

    def __init__(self, fails: Callable[[str, int, int], bool]) -> None:
        super().__init__()
        self.fails, self.samples = fails, 0

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        evaluation = -1 if batch.seed else self.samples // 16
        self.samples += 0 if batch.seed else len(batch)
        failed = [
            self.fails(record.idx, panels[0].width, evaluation)
            for record, panels in zip(batch.records, batch.panels, strict=True)
        ]
        self.causes["busy"] = self.causes.get("busy", 0) + sum(failed)
        return np.where(failed, NAN, super().__call__(batch))


def run(tmp: Path, fails: Callable[[str, int, int], bool], share: float = 0.3, **parts: Any) -> Any:
    run_trainer = trainer(
        recipe=recipe(**RULE), rewards={"brightness": Failing(fails)}, unseen=UNSEEN, max_failed_share=share, **parts
    )
    return run_trainer.run(tmp / "out", tmp / "checkpoint")


@pytest.mark.parametrize(("last", "phase"), [(0, "32 px"), (1, "32 px"), (2, "32 px"), (-1, "epoch 1")])
def test_too_many_failures_end_the_training(tmp_path: Path, last: int, phase: str) -> None:
    """Before training, between epochs and after them, and in an epoch; the message has counts, place and cause."""
    with pytest.raises(DataError) as error:
        run(tmp_path, lambda idx, _size, number: number == last and (number < 0 or idx < "p24"))
    counts = "24 of 24" if last < 0 else "4 of 8"
    assert all(text in str(error.value) for text in (phase, counts, "busy"))


def test_differences_are_over_the_prompts_that_have_all_scores(tmp_path: Path) -> None:
    """The two brightest prompts fail in the last evaluation at 32 px: no difference changes by that alone."""
    complete = run(tmp_path / "whole", lambda *_: False)
    failed = run(tmp_path / "failed", lambda idx, size, number: idx >= "p26" and size == 16 and number == 2)
    scores = complete.metrics()
    figures = failed.metrics()
    scored = [n for n, record in enumerate(UNSEEN) if record.idx < "p26"]
    after = failed.after
    assert after["32/failed_samples"] == 2 and "64/failed_samples" not in after
    assert figures["eval.32.brightness.change_missing"] == 2
    assert "eval.64.brightness.change_missing" not in figures
    assert figures["eval.64.brightness.change"] == scores["eval.64.brightness.change"]
    low, change, high = (figures[f"eval.32.brightness.{end}"] for end in ("change_low", "change", "change_high"))
    assert low < change < high and change == pytest.approx((low + high) / 2)
    assert figures["eval.32.brightness.after"] - figures["eval.32.brightness.before"] != pytest.approx(change)
    assert len(scored) == 6 and math.isfinite(figures["gap.brightness.change"])
    with (tmp_path / "failed/out/training_log.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[-1]["eval/32/failed_samples"] == "2.0"


def test_a_reward_that_is_only_watched_ends_no_training(tmp_path: Path) -> None:
    terms = {"brightness": {"weight": 1.0}, "watched": {"weight": 0.0}}
    rewards = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    functions = {"brightness": Brightness(), "watched": Failing(lambda *_: True)}
    run_trainer = trainer(
        recipe=recipe(**RULE, rewards=rewards), rewards=functions, unseen=UNSEEN, max_failed_share=0.0
    )
    figures = run_trainer.run(tmp_path / "out", tmp_path / "checkpoint").metrics()
    assert math.isnan(figures["eval.32.watched.change"]) and figures["eval.32.watched.change_missing"] == 8
    assert math.isfinite(figures["eval.32.brightness.change"]) and "eval.32.failed_samples.after" not in figures
