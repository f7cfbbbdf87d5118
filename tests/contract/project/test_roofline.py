"""The roofline of the passes, which `paco plan` prints beside what a GPU measured."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
import torch

from paco_core.config import profiles
from paco_core.planning.footprint import KNOWN
from paco_core.planning.reached import H100_FLOPS, ROOFLINE


@pytest.fixture
def roofline(repository: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(repository))
    return importlib.import_module("speed.roofline")


def test_an_operation_takes_the_longer_of_its_two_times(roofline: ModuleType) -> None:
    large, thin = torch.zeros(8192, 8192, dtype=torch.bfloat16), torch.zeros(8192, 1, dtype=torch.bfloat16)
    with torch.device("meta"), roofline.Roofline() as line:
        large.to("meta").t()
    moved, line = line.seconds, roofline.Roofline()
    assert moved <= 2 * large.nbytes / roofline.H100_BYTES, "a view moves nothing"
    given, column = large.to("meta"), thin.to("meta")
    with line:
        given @ given
    assert line.seconds == line.products == pytest.approx(2 * 8192**3 / (H100_FLOPS * roofline.REACHED))
    with roofline.Roofline() as line:
        given @ column
    assert line.seconds == pytest.approx((large.nbytes + 2 * thin.nbytes) / roofline.H100_BYTES)
    with roofline.Roofline() as line:
        given + given
    assert line.products == 0 and line.seconds == pytest.approx(3 * large.nbytes / roofline.H100_BYTES)


def test_fused_is_read_and_written_once_between_two_products(roofline: ModuleType) -> None:
    given = torch.zeros(8192, 8192, dtype=torch.bfloat16, device="meta")
    once = given.nbytes / roofline.H100_BYTES
    with roofline.Roofline() as line:
        torch.relu(given @ given).mul_(2) @ given
    assert line.seconds == pytest.approx(line.products + 4 * once)
    assert line.fused == pytest.approx(line.products + 2 * once)


def test_a_product_of_batches_is_viewed_and_not_copied(roofline: ModuleType) -> None:
    given, weight = (torch.zeros(size, dtype=torch.bfloat16, device="meta") for size in ((4, 2048, 512), (512, 512)))
    with roofline.Roofline() as line:
        torch.nn.functional.linear(given, weight)
    assert line.products > 0 and line.seconds == line.products


@pytest.mark.parametrize("name", ["flux_t2is", "qwen_edit"])
def test_the_share_at_best_is_the_rooflines(
    roofline: ModuleType, repository: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """At the real width and number of tokens, with few of the blocks: each takes what the others take."""
    recipe = profiles.read(repository, "paper").policies.recipes[name]
    known = KNOWN[recipe.model]
    single = min(known.single_blocks, 2)
    few = replace(known, double_blocks=1, single_blocks=single)
    own, vae = importlib.import_module("speed.policy_models").PUBLISHED[known.kind]
    layers = own | {"num_layers": 1} | ({"num_single_layers": single} if single else {})
    monkeypatch.setitem(importlib.import_module("speed.policy_models").PUBLISHED, known.kind, (layers, vae))
    rows = {row.phase: row for row in roofline.passes(name, recipe, few, repository)}
    assert rows["sampling"].utilisation == pytest.approx(ROOFLINE[known.kind].sampling, rel=0.07)
    if single:  # the first block passes no gradient on, which one of a single block shows
        assert rows["training"].utilisation == pytest.approx(ROOFLINE[known.kind].training, rel=0.07)
    merged, sampled, exact = (rows[phase].seconds for phase in (roofline.MERGED, "sampling", roofline.EXACT))
    assert merged < sampled < exact
    epoch = roofline.epoch(recipe, rows.values())
    assert epoch["fused"] < epoch["plain"] < epoch["before"]
    kept, batches = len(recipe.noise_steps), 96 / recipe.rollout_batch
    assert epoch["before"] - epoch["plain"] == pytest.approx(
        batches * (recipe.sampling_steps - kept) * (exact - sampled)
    )
