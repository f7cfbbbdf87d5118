"""Whom a round asks before it chooses rankings."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest

from paco_core.data.records import panels, records
from paco_core.reward_model import yes_probability
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import Score
from paco_core.stages import rankings

TABLE = pd.DataFrame({"prompt_id": ["p", "p"], "reference": ["r", "r"], "candidates": [["a", "b"], ["a", "c"]]})
ANSWERS = {
    "before": {"a": 0.5, "b": 0.6, "c": 1.0},
    "held_out": {"a": 0.9, "b": 0.2, "c": 1.0},
}


@pytest.mark.parametrize(("choose", "found"), [("uncertain", [0.05, 0.25]), ("disagree", [-0.4, -0.2])])
def test_the_judge_before_is_asked_and_for_a_disagreement_the_held_out_one(
    monkeypatch: pytest.MonkeyPatch, choose: str, found: list[float]
) -> None:
    def configured(model: str, _reward: object) -> SimpleNamespace:
        def score(queries: list[tuple[str, str, str]], _advance: object) -> list[Score]:
            assert {instruction for *_, instruction in queries} == {"a theme?"}
            return [Score(ANSWERS[Path(model).name][second]) for _, second, _ in queries]

        return SimpleNamespace(score=score)

    monkeypatch.setattr(Scorer, "configured", configured)
    monkeypatch.setattr(yes_probability, "PairQuery", lambda *query: query)
    monkeypatch.setattr(records, "read_prompts", lambda _path: [SimpleNamespace(idx="p", theme="a theme")])
    monkeypatch.setattr(panels.PanelStore, "below", lambda _path: SimpleNamespace(panel=str))
    monkeypatch.setattr("paco_core.reward_model.instructions.render", lambda _template, theme: f"{theme}?")
    context = SimpleNamespace(
        params=SimpleNamespace(
            reward=SimpleNamespace(template="plain"),
            rounds=SimpleNamespace(ask=SimpleNamespace(choose=choose), recipe="flux_t2is"),
            policies=SimpleNamespace(recipe=lambda _name: SimpleNamespace(held_out_judge="held_out")),
        ),
        read=Path,
        read_before=lambda _path: Path("before"),
        model=Path,
        progress=lambda *_args: nullcontext(SimpleNamespace(advance=print)),
    )
    assert rankings._doubts(context, TABLE) == pytest.approx(found)
