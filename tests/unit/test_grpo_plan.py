"""The arithmetic, memory and cost of a training, and the numbers that cannot work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny import tiny_flux

from paco_core import profiles
from paco_core.files import DataError
from paco_core.grpo.footprint import KNOWN, architecture, footprint
from paco_core.grpo.optimizers import build, check_optimizer
from paco_core.grpo.plan import Plan, plan
from paco_core.params import Params, load, parse
from paco_core.policies import adapters, base
from paco_core.policies.flux import FluxPolicy


@pytest.fixture
def params(repository: Path) -> Params:
    return load(repository / "params.yaml")


def changed(params: Params, recipe: dict[str, Any] | None = None, **changes: Any) -> Params:
    """The parameters with other numbers, checked as the file would be."""
    tree = params.model_dump()
    tree["policies"].update(changes)
    tree["policies"]["recipes"]["flux_t2is"].update(recipe or {})
    return parse(tree)


def test_plan_counts_the_work(repository: Path, params: Params) -> None:
    asked = changed(
        params,
        epochs=21,
        eval_every=10,
        prompts_per_epoch=8,
        group_size=16,
        updates_per_epoch=2,
        rollout_batch=50,
        train_batch=30,
    )
    found = Plan.of(asked, "flux_t2is")
    assert (found.images_an_epoch, found.questions_a_picture, found.rollout_batches) == (128, 6, 3)
    assert (found.optimiser_steps, found.evaluations, found.untrained_passes) == (42, 4, 0)
    assert found.micro_batches == 3
    text = plan(asked, "flux_t2is", repository)
    assert f"{21 * 128 * 6} scored pairs" in text and "GB a process" in text and "min on two cores" in text
    with pytest.raises(DataError, match="there are: flux_t2is"):
        plan(asked, "flux_t2iss", repository)


@pytest.mark.parametrize(
    ("changes", "recipe", "passes"),
    [
        ({}, {"sampling_steps": 10, "noise_steps": [1, 3, 5], "num_noise_steps": 2}, (2, 0)),
        ({"old_log_prob": "recomputed", "kl": {"beta": 0.1}}, {}, (1, 2)),
        ({"loss": "nft"}, {"dynamics": "ode", "noise_steps": []}, (4, 4)),
        ({"loss": "nft"}, {"train_steps": [0, 2]}, (2, 2)),
    ],
)
def test_passes_by_loss(
    params: Params, changes: dict[str, Any], recipe: dict[str, Any], passes: tuple[int, int]
) -> None:
    found = Plan.of(changed(params, recipe, **changes), "flux_t2is")
    assert (found.trained_passes, found.untrained_passes) == tuple(found.images_an_epoch * n for n in passes)


@pytest.mark.parametrize(
    ("changes", "recipe", "message"),
    [
        ({}, {"train_size": 72}, "train_size: 72 px do not divide into 16 px tokens and 2x2 panels; choose 64 or 80"),
        ({}, {"eval_sizes": [64, 8]}, "eval_sizes: 8 px.*choose 16"),
        ({"prompts_per_epoch": 200, "updates_per_epoch": 2}, {}, "choose prompts_per_epoch up to 184"),
        ({}, {"rewards": {"terms": {"clipt": {"weight": 1}}, "aggregator": "rank", "advantage_std": "group"}},
         "reward 'clipt' is unknown"),
    ],
)  # fmt: skip
def test_impossible_numbers_name_their_neighbours(
    repository: Path, params: Params, changes: dict[str, Any], recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(DataError, match=message):
        plan(changed(params, recipe, **changes), "flux_t2is", repository)


def test_processes_must_share_the_batches(repository: Path, params: Params) -> None:
    asked = changed(params, prompts_per_epoch=6, updates_per_epoch=1, group_size=16, rollout_batch=16)
    assert "6 batches" in plan(asked, "flux_t2is", repository, processes=3)
    with pytest.raises(DataError, match=r"6 rollout batches.*4 processes.*\[1, 2, 3, 6\]"):
        plan(asked, "flux_t2is", repository, processes=4)


def test_all_problems_are_told_at_once(repository: Path, params: Params) -> None:
    with pytest.raises(DataError) as raised:
        plan(changed(params, {"train_size": 72, "eval_sizes": [65]}), "flux_t2is", repository, processes=5)
    assert len(str(raised.value).splitlines()) == 4


def test_the_papers_scale_is_estimated_without_its_weights(repository: Path) -> None:
    """FLUX.1-dev: 11.9 B parameters, of which 11.8 B lie in its blocks."""
    dev = KNOWN["black-forest-labs/FLUX.1-dev"]
    assert dev.parameters == pytest.approx(11.8e9, rel=0.02)
    paper = parse(profiles._plain(profiles.resolve(repository, "paper")))
    need = footprint(dev, paper.policies, paper.policies.recipes["flux_t2is"], (6720, 672))
    assert 23 < need.weights_gb < 25 and 30 < need.memory_gb < 45
    text = plan(paper, "flux_t2is", repository, processes=7)
    assert "GPU hours" in text and "h on 7" in text


def test_operations_are_those_that_torch_counts(tmp_path: Path) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    policy: Any = base.load("flux", str(tiny_flux(tmp_path / "flux")), "cpu", "float32")
    size = (192, 192)
    condition = base.Condition({"text": torch.zeros(1, 40, 16), "pooled": torch.zeros(1, 16)})
    noise = policy.noise(size, [base.NoiseKey("p", 0, 0)])
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        policy.velocity(noise, 0.5, condition, 3.5, size)
    found = architecture(tmp_path, "flux")
    assert found is not None
    embedders = 2 * 144 * 2 * 64 * found.hidden  # into and out of the width, next to nothing at full size
    attention = 4.0 * 184**2 * found.hidden * 2
    known = found.pass_flops(144, 40) + embedders
    assert (
        min(abs(counted.get_total_flops() / known - 1), abs(counted.get_total_flops() / (known - attention) - 1)) < 0.05
    )


def test_the_adapters_size_is_that_of_the_real_one(tmp_path: Path, params: Params) -> None:
    folder = tiny_flux(tmp_path / "flux")
    found = architecture(tmp_path, "flux")
    assert found is not None and found.hidden == 32 and found.patch == 16
    policy = base.load("flux", str(folder), "cpu", "float32")
    policy.add_adapter(params.policies.lora, 0)
    real = sum(p.numel() for p in policy.trainable().values())
    assert found.lora_parameters(params.policies.lora.rank, FluxPolicy.lora_targets) == real
    assert adapters.TRAINED == "default" and architecture(tmp_path, "somebody/unknown") is None


def test_an_optimiser_that_is_not_installed(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("paco_core.grpo.optimizers.find_spec", lambda _name: None)
    with pytest.raises(DataError, match="adamw_8bit needs bitsandbytes"):
        check_optimizer("adamw_8bit")
    check_optimizer("adamw")


def test_8_bit_moments_where_bitsandbytes_is_there(params: Params, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys
    from types import ModuleType

    import torch

    class AdamW8bit(torch.optim.AdamW):
        """Stands in for the GPU library: only the name and the arguments matter here."""

    library = ModuleType("bitsandbytes.optim")
    library.AdamW8bit = AdamW8bit  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "bitsandbytes", ModuleType("bitsandbytes"))
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", library)
    monkeypatch.setattr("paco_core.grpo.optimizers.find_spec", lambda _name: object())
    asked = changed(params, optimizer="adamw_8bit", learning_rate=0.125).policies
    built = build([torch.nn.Parameter(torch.zeros(2))], asked)
    assert isinstance(built, AdamW8bit) and built.defaults["lr"] == 0.125
