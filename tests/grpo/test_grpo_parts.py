"""EMA, sampler, checkpoints, prompt split, plan and checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from grpo_toys import record

from paco_core.grpo import checks
from paco_core.grpo.ema import Ema
from paco_core.grpo.epoch_prompts import prompts_of_epoch, share
from paco_core.grpo.figures import write_log
from paco_core.grpo.prompt_split import hold_out, trained_ids
from paco_core.io.files import DataError
from paco_core.training import checkpoint
from paco_core.training.checkpoint import Checkpoint


def test_ema_closed_form() -> None:
    """Constant target 1 from 0: 1 - product of the decays at the steps that were due."""
    parameters = {"w": torch.zeros(3)}
    ema = Ema(parameters, decay=0.9, every=4)
    parameters["w"] = torch.ones(3)
    for _ in range(50):
        ema.update(parameters)
    left = 1.0
    for step in range(4, 51, 4):
        left *= min((1 + step) / (10 + step), 0.9)
    assert torch.allclose(ema.shadow["w"], torch.full((3,), 1.0 - left), atol=1e-6)


def test_ema_swap_restores_bit_for_bit_even_after_an_error() -> None:
    parameters = {"w": torch.randn(64)}
    ema = Ema(parameters, 0.9, 1)
    before = parameters["w"].clone()
    parameters["w"].mul_(3)
    live = parameters["w"].clone()
    with pytest.raises(KeyError), ema.applied(parameters):
        assert torch.equal(parameters["w"], before)
        raise KeyError
    assert torch.equal(parameters["w"], live)


def test_every_prompt_is_met_equally_often() -> None:
    met = [row for epoch in range(30) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    counts = [met.count(row) for row in range(10)]
    assert max(counts) <= 10 and sum(counts) == 90
    first_deck = [row for epoch in range(3) for row in prompts_of_epoch(10, 3, epoch, seed=1)]
    assert len(set(first_deck)) == 9
    assert prompts_of_epoch(10, 3, 5, 1) == prompts_of_epoch(10, 3, 5, 1) != prompts_of_epoch(10, 3, 5, 2)


def test_sampler_refuses_what_cannot_be_dealt() -> None:
    with pytest.raises(DataError, match="at most 2"):
        prompts_of_epoch(2, 3, 0, 0)
    with pytest.raises(DataError, match=r"6 rollout batches.*\[1, 2, 3, 6\]"):
        share(6, 0, 4)
    assert [list(share(6, rank, 3)) for rank in range(3)] == [[0, 1], [2, 3], [4, 5]]


def make(epoch: int, recipe: str = "r") -> Checkpoint:
    return Checkpoint(recipe, epoch, {"weights/a": torch.full((2,), float(epoch))}, {"rows": []})


def test_checkpoint_round_trip_and_retention(tmp_path: Path) -> None:
    for epoch in (1, 2, 3):
        checkpoint.save(tmp_path, make(epoch), keep=2)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["checkpoint-00002", "checkpoint-00003"]
    found = checkpoint.latest(tmp_path, "r", 9)
    assert found is not None and found.done == 3
    assert torch.equal(found.tensors["weights/a"], torch.full((2,), 3.0))
    assert checkpoint.latest(tmp_path, "another recipe", 9) is None


def test_full_disk_leaves_the_checkpoint_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoint.save(tmp_path, make(1))

    def full(*_args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("paco_core.training.checkpoint.save_file", full)
    with pytest.raises(OSError, match="No space"):
        checkpoint.save(tmp_path, make(2))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00001"]


def test_what_a_kill_leaves_is_no_checkpoint(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, make(1))
    (tmp_path / ".checkpoint-00002.part").mkdir()
    (tmp_path / ".checkpoint-00002.part" / "state.json").write_text(json.dumps({"key": "r"}))
    found = checkpoint.latest(tmp_path, "r", 9)
    assert found is not None and found.done == 1
    checkpoint.save(tmp_path, make(2))
    assert [p.name for p in tmp_path.iterdir()] == ["checkpoint-00002"]


def test_damaged_checkpoint_is_named(tmp_path: Path) -> None:
    checkpoint.save(tmp_path, make(1))
    (tmp_path / "checkpoint-00001" / "tensors.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(DataError, match="checkpoint-00001.*damaged"):
        checkpoint.latest(tmp_path, "r", 9)


def test_held_out_prompts_are_never_trained_on(tmp_path: Path) -> None:
    records = [record(n) for n in range(10)]
    split = hold_out(records, 3, seed=1)
    assert len(split.unseen) == 3 and len(split.trained) == 7
    assert not {r.idx for r in split.unseen} & {r.idx for r in split.trained}
    assert hold_out(records, 3, seed=1) == split != hold_out(records, 3, seed=2)
    split.write(tmp_path)
    assert trained_ids(tmp_path) == {r.idx for r in split.trained}
    with pytest.raises(DataError, match="at most 9"):
        hold_out(records, 10, seed=1)


def log(diversity: float, gap: float, gain: float, following: float) -> list[dict[str, float]]:
    def figures(share: float, consistency: float, follows: float) -> dict[str, float]:
        names = {"panel_diversity": share, "gold_consistency": consistency, "gold_following": follows}
        return {f"eval/64/{name}": value for name, value in names.items()}

    before, after = figures(0.3, 0.4, 0.8), figures(0.3 * diversity, 0.4 + gain, 0.8 + following)
    return [before, {"update/ratio_gap": 1e-8}, {"update/ratio_gap": gap, **after}]


def test_checks_pass_and_fail() -> None:
    good = log(0.9, 1e-7, 0.2, -0.01)
    assert checks.collapse(good, [64]).passed and not checks.collapse(log(0.4, 0, 0, 0), [64]).passed
    assert checks.ratio_before_update(good, "ppo", "float32").passed
    assert not checks.ratio_before_update(log(1, 2e-6, 0, 0), "ppo", "float32").passed
    assert not checks.ratio_before_update([{}], "ppo", "float32").passed
    assert checks.ratio_before_update([{}], "nft", "float32").passed, "there is no ratio to look at"
    assert checks.gold_gain(good, 64, 0.15).passed
    assert not checks.gold_gain(log(1, 0, 0.1, 0), 64, 0.15).passed
    assert not checks.gold_gain(log(1, 0, 0.2, -0.06), 64, 0.15).passed


def test_log_is_read_back(tmp_path: Path) -> None:
    rows = [{"epoch": 0.0, "eval/64/a": 0.5}, {"epoch": 1.0, "b": 2.0}]
    write_log(tmp_path / "log.csv", rows)
    assert checks.read_log(tmp_path / "log.csv") == rows
    with pytest.raises(DataError, match="no such file"):
        checks.read_log(tmp_path / "nothing.csv")
