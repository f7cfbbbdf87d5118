"""Hours on a GPU: measured with this model at this size, or estimated from the published throughput."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from paco_core.config import profiles
from paco_core.config.params import parse
from paco_core.io.files import read_json
from paco_core.planning import gpu_hours
from paco_core.planning.costs import stage_costs, training_hours
from paco_core.planning.gpu_hours import (
    GpuHours,
    PassWork,
    describe_hours,
    hours_by_gpu,
    hours_on,
    image_work,
    pass_flops,
    published_gpu,
    published_gpus,
    reached_shares,
)
from paco_core.planning.gpu_speed import RECORD, GpuSpeed
from paco_core.planning.models import PUBLIC
from paco_core.planning.plan import plan
from paco_core.policies.families import FAMILIES
from paco_core.stages import declared

FLUX = "flux_t2is"
SPEED = GpuSpeed("NVIDIA H200", "2026-11-26", "m", 512, sampled=10.0, trained=2.0)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Product names of the GPUs of this machine; a test may add some."""
    names = list[str]()
    monkeypatch.setattr(gpu_hours, "product_names", lambda: names)
    return names


def by_gpu(hours: list[GpuHours]) -> dict[str, GpuHours]:
    return {row.gpu: row for row in hours}


@pytest.mark.parametrize(
    ("product", "gpu"),
    [
        ("NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 4090"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100"),
        ("NVIDIA A100 80GB PCIe", "NVIDIA A100"),
        ("NVIDIA A100-PCIE-40GB", "NVIDIA A100"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100"),
        ("NVIDIA H100 PCIe", "NVIDIA H100 PCIe"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None),
        ("NVIDIA GeForce RTX 3090 Ti", None),
        ("NVIDIA GeForce RTX 4090 D", None),
        ("NVIDIA H200 NVL", None),
        ("NVIDIA L4", None),
    ],
)
def test_a_product_name_is_of_one_gpu_or_of_none(product: str, gpu: str | None) -> None:
    """Another product, such as a laptop's, has another throughput."""
    match = published_gpu(product)
    assert (None if match is None else match.gpu) == gpu


def test_each_throughput_names_its_source() -> None:
    gpus = published_gpus()
    assert all(gpu.source.startswith("NVIDIA ") and gpu.tflops > 0 and gpu.memory_gb > 0 for gpu in gpus)
    assert len({gpu.gpu for gpu in gpus}) == len(gpus)
    assert {row["gpu"] for row in read_json(RECORD)} <= {gpu.gpu for gpu in gpus}


def test_the_estimate_meets_each_measurement(repository: Path, machine: list[str]) -> None:
    """As if the H200 had not been measured: the estimate is within a quarter of what was measured."""
    machine.append("NVIDIA H200")

    def hours(**changes: object) -> GpuHours:
        tree = profiles.resolve(repository, "paper")
        tree["policies"]["recipes"][FLUX] |= changes
        (row,) = training_hours(parse(tree), FLUX, repository)
        return row

    measured, estimated = hours(), hours(base="fp8")
    assert measured.measured == "2026-11-26" and estimated.measured is None
    assert estimated.hours == pytest.approx(measured.hours, rel=0.25)
    assert hours(train_size=768).measured is None, "this size was not measured"
    sampled, trained = reached_shares()
    assert f"reached {sampled:.0%}" in (repository / "docs/reference/gpu-memory.md").read_text()
    assert 0.25 < sampled < 0.45 and 3.5 < sampled / trained < 4.5, "forward, forward again, backward"


def test_hours_follow_the_throughput_and_the_measurement() -> None:
    slow, fast = (published_gpu(name) for name in ("NVIDIA A100", "NVIDIA H100"))
    assert slow is not None and fast is not None
    work = [PassWork(1e13, 3600.0, 360.0, {"NVIDIA H200": SPEED})]
    a100, h100 = hours_on(work, slow), hours_on(work, fast)
    assert a100.hours / h100.hours == pytest.approx(fast.tflops / slow.tflops)
    h200 = published_gpu("NVIDIA H200")
    assert h200 is not None
    assert hours_on(work, h200) == GpuHours("NVIDIA H200", (360 + 180) / 3600, "2026-11-26")
    assert hours_on([*work, PassWork(1e13, 1, 0, {})], h200).measured is None, "one size of two was measured"


def test_reused_keys_and_values_are_not_counted_again(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = profiles.read(repository, "klein").policies.recipe(FLUX)
    update = {"family": "qwen_image_21", "model": "Qwen/Qwen-Image-2.1", "eval_sizes": [512], "guidance": 1.0}
    recipe = recipe.model_copy(update={**update, "panels": "together"})
    (reusing,) = image_work(recipe, [], 100, 40, repository)
    family = replace(FAMILIES["qwen_image_21"], reuses_conditions=False)
    monkeypatch.setitem(FAMILIES, "qwen_image_21", family)
    (full,) = image_work(recipe, [], 100, 40, repository)
    assert full.sampled == 100 * 40 and reusing.flops == full.flops
    image, text = (2 * 512 // 32) ** 2, recipe.max_sequence_length
    later = pass_flops(PUBLIC["Qwen/Qwen-Image-2.1"], image + text, reused=text) / full.flops
    assert reusing.sampled == pytest.approx(100 * (1 + 39 * later)) and later < image / (image + text) + 0.01


def test_hours_are_of_the_gpu_at_hand_or_of_those_with_enough_memory(machine: list[str]) -> None:
    work = [PassWork(1e13, 3600.0, 360.0, {})]
    assert min(gpu.memory_gb for gpu in published_gpus() if gpu.gpu in by_gpu(hours_by_gpu(work, 30.0))) == 48
    assert len(hours_by_gpu(work, 0.0)) == len(published_gpus()) and hours_by_gpu([], 0.0) == []
    machine += ["NVIDIA T4", "NVIDIA GeForce RTX 3090", "NVIDIA GeForce RTX 3090"]
    (row,) = hours_by_gpu(work, 30.0)
    assert row.gpu == "NVIDIA GeForce RTX 3090" and row.measured is None
    (line,) = describe_hours([row], processes=2)
    assert "on 2 x RTX 3090" in line and "estimated" in line and "measured" not in line


def test_check_and_plan_tell_the_hours_of_klein_on_the_gpu_at_hand(repository: Path, machine: list[str]) -> None:
    """Not those of FLUX on eight H100."""
    params, stages = profiles.read(repository, "klein"), declared(repository)
    cost = stage_costs(stages, params, repository)[f"policies@{FLUX}"]
    assert cost.seconds is None and "RTX 3090" in cost.note and "RTX 4090" in cost.note and "H100" not in cost.note
    machine.append("NVIDIA GeForce RTX 4090")
    costs = stage_costs(stages, params, repository)
    hours = plan(params, FLUX, repository).figures["estimates"]["gpu_hours"]
    assert list(hours) == ["NVIDIA GeForce RTX 4090"] and 10 < hours["NVIDIA GeForce RTX 4090"] < 100
    assert costs[f"policies@{FLUX}"].seconds == pytest.approx(hours["NVIDIA GeForce RTX 4090"] * 3600)
    assert "RTX 4090, estimated" in costs[f"policies@{FLUX}"].note
    assert costs["t2is"].seconds is not None and "RTX 4090, estimated" in costs["t2is"].note
