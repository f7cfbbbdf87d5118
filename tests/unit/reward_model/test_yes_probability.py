"""The score in an API's answer against a plain reference: nothing else becomes a score."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from paco_core.reward_model.yes_probability import (
    NO_VARIANTS,
    YES_VARIANTS,
    Score,
    Unscorable,
    from_top_logits,
    from_top_logprobs,
)
from tests.support.dataset_world import quick

HUGE = -(10**400)


def pair(yes: Any, no: Any) -> list[Any]:
    return [{"token": "Yes", "logprob": yes}, {"token": "No", "logprob": no}]


def reference(entries: Any, variants: bool) -> float | str:
    """The score by probabilities; where there is none, the word that its cause names, or nothing."""
    yes_words, no_words = (YES_VARIANTS, NO_VARIANTS) if variants else ({"Yes"}, {"No"})
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        return ""
    if not all(isinstance(entry.get("token"), str) for entry in entries):
        return ""
    logprobs = [(entry["token"], entry.get("logprob")) for entry in entries]
    numbers = [(token, value) for token, value in logprobs if type(value) in (int, float)]
    for words in (yes_words, no_words):
        for token, value in logprobs:
            is_logprob = type(value) in (int, float) and value <= 0 and value not in (HUGE, -math.inf)
            if token in words and not is_logprob:
                return token
    if not all(value <= 0 for _, value in numbers):
        return ""
    yes, no, total = (
        sum(math.exp(max(value, -2000)) for token, value in numbers if words is None or token in words)
        for words in (yes_words, no_words, None)
    )
    return "" if yes + no == 0 or total > 1.02 else yes / (yes + no)


NUMBERS = st.floats(-600, -1) | st.sampled_from([0, 0.0, -0.1, -1, -0.6, -9999.0, -800, -1e308])
FAULTY = st.sampled_from([math.nan, math.inf, -math.inf, 0.2, 1e-300, True, False, None, "-0.1", [], HUGE])
TOKENS = st.sampled_from([*sorted(YES_VARIANTS | NO_VARIANTS), "Maybe", "YES"])
ENTRIES = st.fixed_dictionaries({"token": TOKENS, "logprob": NUMBERS | NUMBERS | FAULTY})


@settings(quick, max_examples=150)
@given(st.lists(ENTRIES, max_size=5), st.booleans())
@example([None, *pair(-1, -1)], False)
@example([{"token": "Yes"}, {"token": "No", "logprob": -1.0}], False)
@example([{"logprob": -0.1}, {"token": "No", "logprob": -1.0}], False)
@example([{"token": ["Yes"], "logprob": -0.1}, {"token": "No", "logprob": -1.0}], False)
@example([*pair(-1.0, -1.0), {"token": "Maybe", "logprob": None}], False)
@example([*pair(-1.0, -2.0), {"token": "Maybe", "logprob": 0.1}], False)
@example(pair(-0.1, -0.2)[:1], False)
@example(pair(math.log(0.5), math.log(0.519)), False)
@example(pair(math.log(0.5), math.log(0.521)), False)
def test_a_score_is_that_of_the_probabilities_and_of_nothing_else(entries: Any, variants: bool) -> None:
    expected = reference(entries, variants)
    if isinstance(expected, str):
        with pytest.raises(Unscorable, match=f"'{expected}'" if expected else "") as raised:
            from_top_logprobs(entries, variants=variants)
        assert not set(str(raised.value)) & set("23456789"), "causes are counted, so they name no number"
    else:
        assert from_top_logprobs(entries, variants=variants) == pytest.approx(expected, rel=1e-9, abs=1e-250)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_what_half_precision_rounds_is_a_score(dtype: str) -> None:
    logits = torch.randn(200, 20, generator=torch.Generator().manual_seed(0)) * 3
    for row in [*torch.log_softmax(logits, -1).to(getattr(torch, dtype)).tolist(), [math.log(0.5) + 0.002] * 2]:
        tokens = ["Yes", "No", *(f"t{n}" for n in range(len(row) - 2))]
        score = from_top_logprobs([{"token": t, "logprob": v} for t, v in zip(tokens, row, strict=True)])
        assert score == pytest.approx(1 / (1 + math.exp(row[1] - row[0])))


def test_a_score_is_in_its_range_or_has_a_cause() -> None:
    for value, cause in ((math.nan, None), (0.5, "lost"), (1.5, None), (-0.1, None), (math.inf, "lost")):
        with pytest.raises(ValueError, match="a score is in"):
            Score(value, cause)


def test_any_case_sums_the_words_among_the_top_20() -> None:
    logits = torch.linspace(0, 4, 40)  # token 39 is the likeliest, 20 the last of the top 20
    p = torch.softmax(logits.double(), -1)
    yes, no = [39, 25, 3], [30, 7]
    expected = (p[39] + p[25]) / (p[39] + p[25] + p[30])
    assert float(from_top_logits(logits, [39], [3])) == 1.0
    assert math.isnan(float(from_top_logits(logits, [1, 2], [3])))
    last = float(p[20] / (p[20] + p[39]))  # the last of the top 20 counts, and the next one does not
    assert float(from_top_logits(logits, [20, 19], [39])) == pytest.approx(last)
    assert float(from_top_logits(logits, [19], [39])) == 0.0
    scores = from_top_logits(torch.stack([logits, logits.flip(0)]), yes, no)
    assert scores.shape == (2,) and float(scores[0]) == pytest.approx(float(expected))
