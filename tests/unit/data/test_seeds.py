"""Pictures that were painted before are painted again: the rule of seeds never changes."""

from __future__ import annotations

from paco_core.data.grids.grids import noise_seed
from paco_core.data.seeds import seed_of
from paco_core.policies.base import NoiseKey


def test_seeds_are_those_of_every_release() -> None:
    assert noise_seed("a", 0) == seed_of("a", 0) == 8248403736293150640
    assert NoiseKey("a", 0, 1).generator_seed == 6162722053782007845
