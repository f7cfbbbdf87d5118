"""What `paco check` estimates for the demo is what the documentation asks for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from paco_core.config import profiles
from paco_core.planning.costs import stage_costs
from paco_core.planning.footprint import KNOWN, architecture
from paco_core.stages import declared


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial/five-minutes.md"])
def test_the_demo_fits_the_memory_that_a_page_names(repository: Path, page: str) -> None:
    named = re.search(r"([\d.]+) GB of memory; no GPU", (repository / page).read_text())
    assert named is not None
    costs = stage_costs(declared(repository), profiles.read(repository, "storybook"), repository)
    assert 2 * max(cost.memory_gb for cost in costs.values() if cost.device == "cpu") <= float(named[1])


def test_a_small_decoder_takes_as_much_less_as_it_is_narrower(repository: Path) -> None:
    small, public = architecture(repository, "data/zoo/qwen_image_edit"), KNOWN["Qwen/Qwen-Image-Edit"]
    assert small is not None
    assert small.decoding_gb(128, 64, 4) == pytest.approx(public.decoding_gb(128, 64, 4) * 12 / 96)
