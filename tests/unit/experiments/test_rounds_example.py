"""The arms of examples/rounds.py: equal epochs and equal answers, and a table of what was measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from examples.rounds import ARMS, CHOOSE, GRIDS, MEASURES, Size, laid_over, rankings, table
from paco_core.config.params import parse
from paco_core.planning import amounts

SIZE = Size(rounds=3, epochs=4, prompts=6)


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_has_as_many_epochs_and_rankings(repository: Path, arm: str) -> None:
    tree = yaml.safe_load((repository / "params.yaml").read_text())
    params = parse(laid_over(tree, SIZE.changes(arm, seed=5)))
    recipe, rounds = params.policies.recipes["flux_t2is"], params.rounds
    assert (recipe.seed, params.reward.seed, recipe.loss) == (5, 5, "dpo" if arm == "dpo" else "ppo")
    assert recipe.epochs * (1 + len(rounds.items)) == 4 * 4
    asked = (rounds.ask.count or 0) * len(rounds.items)
    assert len(rounds.items) == (3 if arm in CHOOSE else 0)
    assert amounts.instances(params, repository) + asked == rankings(6, GRIDS + 1)


def measured(gain: float) -> pd.DataFrame:
    """Eight prompts at one size; gold consistency and the judge's score rise, the held-out judge's does not."""
    rng = np.random.default_rng(0)
    base = {name: rng.uniform(0.3, 0.5, 8) for name in MEASURES}
    rows = []
    for when, rise in (("before", 0.0), ("after", gain)):
        own = {"gold_consistency": rise, "judge": 2 * rise}
        found = {name: values + own.get(name, 0.0) for name, values in base.items()}
        found["drift"] = found["judge"] - found["held_out"]
        rows.append(
            pd.DataFrame({**found, "size": 64, "when": when, "prompt_id": list("abcdefgh"), "seed": 0, "seconds": 60.0})
        )
    return pd.concat(rows)


def test_the_table_has_changes_and_gold_less_that_of_one_judge() -> None:
    found = table({"one_judge": {0: measured(0.1), 1: measured(0.1)}, "fresh": {0: measured(0.15)}}).splitlines()
    head, _, one, fresh = [[cell.strip() for cell in line.split("|")[1:-1]] for line in found[:4]]
    assert head[:3] == ["at 64 px", "seeds", "gold_consistency"] and one[:2] == ["one_judge", "2"]
    assert one[2].startswith("+0.100") and one[4].startswith("+0.200") and one[5].startswith("+0.000")
    assert one[6].startswith("+0.200"), "drift: the judge's gain less the held-out one's"
    assert one[7] == "" and fresh[7].startswith("+0.050") and fresh[8] == "60"
