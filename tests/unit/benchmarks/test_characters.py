"""ROC-AUC of held-out characters: by brute force, per kind and number of images, with paired differences."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from itertools import product

import numpy as np
import pytest
from PIL import Image

from paco_core.benchmarks.characters import (
    CaseScores,
    count_case_queries,
    evaluate_cases,
    score_case_embeddings,
    score_cases,
    win_matrix,
)
from paco_core.data.pairs.characters import NEGATIVES, POSITIVE, HeldOutCase
from paco_core.reward_model.yes_probability import PairQuery, Score

NAN = math.nan


def made_up(count: int = 200, seed: int = 0) -> tuple[list[HeldOutCase], list[float]]:
    rng = random.Random(seed)
    cases, scores = [], []
    for number in range(count):
        kind = rng.choice([POSITIVE, POSITIVE, *NEGATIVES])
        references = [f"r{number}-{n}#0" for n in range(rng.randint(1, 3))]
        cases.append(HeldOutCase(f"c{number}", f"u{rng.randrange(40)}", "Mia", references, f"p{number}#0", kind))
        scores.append(round(rng.random() + 0.3 * (kind == POSITIVE), 1))  # with ties
    return cases, scores


def brute(cases: Sequence[HeldOutCase], scores: Sequence[float], kind: str, references: int | None) -> float:
    sides = [
        [s for c, s in zip(cases, scores, strict=True)
         if c.kind == name and (references is None or len(c.references) == references) and not math.isnan(s)]
        for name in (POSITIVE, kind)
    ]  # fmt: skip
    return float(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(*sides)]))


def test_each_auc_is_that_of_all_pairs() -> None:
    cases, scores = made_up()
    other = made_up(seed=1)[1]
    result = evaluate_cases(
        cases, {"reward": CaseScores("R", scores), "clip": CaseScores("C", other)}, resamples=200, seed=0
    )
    assert [(row.kind, row.references) for row in result.rows] == [
        (kind, number) for kind in NEGATIVES for number in ("1", "2", "3", "all")
    ]
    for row in result.rows:
        references = None if row.references == "all" else int(row.references)
        expected = [brute(cases, column, row.kind, references) for column in (scores, other)]
        assert [row.auc[name].mean for name in ("reward", "clip")] == pytest.approx(expected)
        assert row.differences["reward - clip"].mean == pytest.approx(expected[0] - expected[1])
        assert row.auc["reward"].low <= row.auc["reward"].mean <= row.auc["reward"].high
    metrics = result.metrics()
    assert metrics["characters.copy.2.reward"] == pytest.approx(brute(cases, scores, "copy", 2))
    assert metrics["characters.absent.all.reward_minus_clip_low"] < metrics["characters.absent.all.reward_minus_clip"]
    table = result.table()
    assert len(table.rows) == 16 and all(len(row) == len(table.head) for row in table.rows)


def test_the_interval_draws_characters() -> None:
    """Bootstrap by hand with the same draws: a character is drawn with all its cases."""
    cases, scores = made_up(80)
    (row,) = [r for r in evaluate_cases(cases, {"reward": CaseScores("R", scores)}, resamples=300, seed=5).rows
              if r.kind == "copy" and r.references == "all"]  # fmt: skip
    used = [(c.prompt_id, c.kind, s) for c, s in zip(cases, scores, strict=True) if c.kind in (POSITIVE, "copy")]
    every = sorted({case.prompt_id for case in cases})
    units = sorted({unit for unit, _, _ in used}, key=every.index)
    draws = np.random.default_rng(5).multinomial(len(units), np.full(len(units), 1 / len(units)), size=300)
    means = []
    for draw in draws:
        sides: dict[str, list[float]] = {POSITIVE: [], "copy": []}
        for unit, kind, score in used:
            sides[kind] += [score] * draw[units.index(unit)]
        if all(sides.values()):
            means.append(np.mean([(a > b) + 0.5 * (a == b) for a, b in product(sides[POSITIVE], sides["copy"])]))
    low, high = np.quantile(means, [0.025, 0.975])
    assert (row.auc["reward"].low, row.auc["reward"].high) == pytest.approx((low, high))


def test_a_case_without_a_score_is_missing() -> None:
    cases, scores = made_up(100)
    failed = next(n for n, case in enumerate(cases) if case.kind == "copy")
    scores[failed] = NAN
    result = evaluate_cases(cases, {"reward": CaseScores("R", scores)}, resamples=50)
    row = next(r for r in result.rows if r.kind == "copy" and r.references == "all")
    assert row.auc["reward"].missing == 1 and row.auc["reward"].mean == pytest.approx(
        brute(cases, scores, "copy", None)
    )
    nothing = evaluate_cases(cases, {"reward": CaseScores("R", [NAN] * len(cases))}, resamples=50)
    assert all(math.isnan(r.auc["reward"].mean) for r in nothing.rows)


def test_few_characters_have_no_interval() -> None:
    cases = [HeldOutCase(f"c{n}", "u", "Mia", ["r#0"], "p#0", kind) for n, kind in enumerate([POSITIVE, "copy"])]
    (first, total) = evaluate_cases(cases, {"reward": CaseScores("R", [0.9, 0.1])}).rows
    assert first.auc["reward"].mean == total.auc["reward"].mean == 1.0 and math.isnan(first.auc["reward"].low)


def test_ties_count_half() -> None:
    wins = win_matrix(np.array([0.5, 0.9]), np.array([0.5, NAN]))
    assert wins[:, 0].tolist() == [0.5, 1.0] and np.isnan(wins[:, 1]).all()


class Panels:
    def panel(self, ref: str) -> Image.Image:
        return Image.new("RGB", (4, 4), (int(ref), 0, 0))


class Judge:
    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        assert all('"Mia"' in query.instruction for query in queries)
        reds = [[image.getpixel((0, 0))[0] for image in query.pictures] for query in queries]  # type: ignore[index]
        return [Score(NAN, "unclear") if b == 9 else Score(a / 10) for a, b in reds]


class Embedder:
    def embed(self, images: Sequence[Image.Image]) -> np.ndarray:
        angles = np.array([image.getpixel((0, 0))[0] for image in images]) / 10  # type: ignore[index]
        return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_a_case_has_the_mean_over_the_images_of_its_character() -> None:
    cases = [HeldOutCase("a", "u", "Mia", ["2", "6"], "4", POSITIVE), HeldOutCase("b", "u", "Mia", ["1"], "9", "copy")]
    counts: list[int] = []
    scored = score_cases("R", Judge(), cases, Panels(), counts.append)
    assert scored.scores[0] == pytest.approx(0.4) and math.isnan(scored.scores[1]) and scored.causes == {"unclear": 1}
    assert sum(counts) == count_case_queries(cases) == 3
    embedded = score_case_embeddings("C", Embedder(), cases, Panels())
    assert embedded.scores == pytest.approx([math.cos(0.2), math.cos(0.8)])


def test_an_image_of_a_character_has_at_most_the_pixels_of_the_panel_as_in_the_reward() -> None:
    """A large photo takes no more tokens than in the training of the policy."""
    sides = {"photo": (64, 36), "small": (3, 2), "panel": (16, 9)}
    sizes: list[tuple[int, int]] = []

    class Sized:
        def panel(self, ref: str) -> Image.Image:
            return Image.new("RGB", sides[ref])

    class Recorder:
        def score(self, queries: Sequence[PairQuery]) -> list[Score]:
            sizes.extend(image.size for query in queries for image in query.pictures)
            return [Score(1.0)] * len(queries)

    case = HeldOutCase("a", "u", "Mia", ["photo", "small"], "panel", POSITIVE)
    assert score_cases("R", Recorder(), [case], Sized()).scores == [1.0]
    assert sizes == [(16, 9), (16, 9), (3, 2), (16, 9)]
