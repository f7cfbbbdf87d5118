"""Names of the built-in measures: no reward term has one, and an evaluation reports no other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paco_core.config.measures import BUILT_IN, ENDS
from paco_core.config.params import ParamsError, load
from tests.support.grpo_toys import Brightness, recipe, trainer

TERM = {"weight": 1.0, "reward": "own:reward"}


def params(repository: Path, folder: Path, **terms: Any) -> Path:
    text = (repository / "params.yaml").read_text()
    before = "          consistency: {weight: 1.0}\n"
    assert before in text
    (folder / "params.yaml").write_text(
        text.replace(before, before + "".join(f"          {k}: {v}\n" for k, v in terms.items()))
    )
    return folder / "params.yaml"


def test_a_term_has_the_name_of_no_other_measure(repository: Path, tmp_path: Path) -> None:
    for name in (*sorted(BUILT_IN), "consistency_low", "drift_high", "consistency/2x2", "clip_score"):
        with pytest.raises(ParamsError, match=r"flux_t2is\.rewards") as error:
            load(params(repository, tmp_path, **{name: "{weight: 1.0, reward: 'own:reward'}"}))
        assert name in str(error.value)
    for name in ("diversity", "other_judge", "low"):
        file = params(repository, tmp_path, **{name: "{weight: 1.0, reward: consistency}"})
        assert name in load(file).policies.recipes["flux_t2is"].rewards.terms


def test_an_evaluation_reports_terms_and_built_in_measures_alone(tmp_path: Path) -> None:
    """A measure that is missing among the built-in names could be the name of a term."""
    terms = {"brightness": TERM, "diversity": {**TERM, "weight": 0.0}}
    rewards = {"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"}
    meter = {"trained": "brightness", "held_out": "diversity"}
    rule = recipe(epochs=1, rewards=rewards, test_rewards=rewards, hack_meter=meter)
    rewards_by_term = {"brightness": Brightness(), "diversity": Brightness()}

    def gold(_panels: list[Any], records: list[Any]) -> dict[str, np.ndarray]:
        return {"gold_consistency": np.zeros(len(records))}

    built = trainer(recipe=rule, rewards=rewards_by_term, test_rewards=dict(rewards_by_term), gold=gold)
    names = {name.partition("/")[2] for name in built.run(tmp_path, tmp_path / "checkpoint").after}
    plain = {next((name.removesuffix(end) for end in ENDS if name.endswith(end)), name) for name in names}
    assert {"brightness", "diversity", "score", "drift", "grid_score"} <= plain <= {*terms, *BUILT_IN}
