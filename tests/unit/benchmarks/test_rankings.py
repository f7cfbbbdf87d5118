"""ConsistencyRank and EditReward-Bench: equal pairs scored once, metrics by hand, tables."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
from PIL import Image

from paco_core.benchmarks import edit_rankings, rankings
from paco_core.benchmarks.ranking_metrics import chance_metrics
from paco_core.benchmarks.rankings import HeldOutRanking
from paco_core.io.files import DataError
from paco_core.reward_model.yes_probability import PairQuery, Score

ORDERS = [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)]
DIMENSIONS = ("prompt_following", "consistency", "overall")


CANDIDATES = ("c#0", "c#1", "c#2", "c#3")


def instance(number: int, prompt: str, reference: str, ranking: tuple[int, ...]) -> HeldOutRanking:
    return HeldOutRanking(f"i{number}", prompt, "a theme", reference, CANDIDATES, ranking, (math.nan,) * 4)


class Greys:
    """Panels whose shade is their number."""

    def panel(self, ref: str) -> Image.Image:
        return Image.new("RGB", (4, 4), (10 * int(ref[-1]),) * 3)


class Counting:
    """Prefers dark second pictures; remembers what it was asked."""

    def __init__(self, broken_shade: int | None = None) -> None:
        self.calls: list[tuple[int, int, str]] = []
        self.broken_shade = broken_shade

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        scores = []
        for query in queries:
            first, second = (image.getpixel((0, 0))[0] for image in (query.first, query.second))
            self.calls.append((first, second, query.instruction))
            broken = second == self.broken_shade
            scores.append(Score(math.nan, "no answer") if broken else Score(1 - second / 100))
        return scores


def test_the_best_above_the_worst_counts_ties_as_wrong_and_leaves_out_what_the_annotator_ties() -> None:
    scored = [
        dataclasses.replace(instance(n, f"p{n}", "r#9", (1, 0, 2, 3)), scores=scores)
        for n, scores in enumerate([(1.0, 3.0, 0.0, 0.0), (1.0, 3.0, 0.0, 0.0), (1.0,) * 4, (1.0, 3.0, 0.0, 0.0)] * 3)
    ]
    candidate_scores = [(0.0, 0.9, 0.0, 0.1), (0.0, 0.5, 0.0, 0.5), (0.0, 0.9, 0.0, 0.1), (math.nan,) * 4] * 3
    accuracy = rankings.best_above_worst(rankings.CandidateScores("x", candidate_scores), scored)
    assert (accuracy.mean, accuracy.count, accuracy.missing, accuracy.method) == (0.5, 6, 3, "wilson")


def test_a_pair_is_asked_once_however_many_instances_share_it() -> None:
    scorer = Counting()
    instances = [instance(n, "p", "r#9", order) for n, order in enumerate(ORDERS)]
    judged = rankings.score_rankings("x", scorer, instances, Greys(), template="theme")
    assert len(scorer.calls) == len(set(scorer.calls)) == 4 == rankings.count_distinct_pairs(instances)
    assert judged.scores == [(1.0, 0.9, 0.8, 0.7)] * 3
    assert all("a theme" in text for _, _, text in scorer.calls)


def test_failed_scores_are_counted_and_never_zero() -> None:
    instances = [instance(n, f"p{n}", "r#9", (0, 1, 2, 3)) for n in range(3)]
    good = rankings.score_rankings("good", Counting(), instances, Greys(), template="plain")
    bad = rankings.score_rankings("bad", Counting(20), instances, Greys(), template="plain")
    assert bad.causes == {"no answer": 1} and math.isnan(bad.scores[0][2])
    result = rankings.evaluate_rankings(instances, {"good": good, "bad": bad}, [("good", "bad")], resamples=50)
    assert result.estimates["good"]["accuracy"].mean == 1.0
    assert bad.num_failed() == 3 and math.isnan(result.estimates["bad"]["accuracy"].mean)
    assert result.metrics()["bad.unscorable_share"] == 1.0


def test_means_and_differences_by_hand() -> None:
    instances = [instance(0, "p0", "r#9", (0, 1, 2, 3)), instance(1, "p1", "r#9", (3, 2, 1, 0))]
    judged = {
        "reward": rankings.CandidateScores("r", [(4.0, 3.0, 2.0, 1.0), (1.0, 2.0, 3.0, 4.0)]),
        "base": rankings.CandidateScores("b", [(4.0, 3.0, 2.0, 1.0)] * 2),
    }
    result = rankings.evaluate_rankings(instances, judged, [("reward", "base")], resamples=50)
    figures = result.metrics()
    assert figures["reward.accuracy"] == 1.0 and figures["base.accuracy"] == 0.5
    assert figures["reward_minus_base.accuracy"] == 0.5 and figures["reward_minus_base.tau"] == pytest.approx(1.0)


def test_chance_is_the_mean_over_all_orders() -> None:
    untied, tied = instance(0, "p", "r#9", (0, 1, 2, 3)), instance(1, "q", "r#9", (2, 0, 1, 3))
    tied = dataclasses.replace(tied, scores=(0.5, 0.5, 0.9, 0.1))
    judged = {"random": rankings.random_order("r", [untied, tied])}
    result = rankings.evaluate_rankings([untied, tied], judged, [], resamples=20)
    assert result.per_ranking["random"] == [chance_metrics(ranked.ranking, ranked.scores) for ranked in (untied, tied)]
    assert result.estimates["random"]["accuracy"].mean == pytest.approx((1 / 4 + 3 / 8) / 2)


def benchmark_file(path: Path, **changes: object) -> Path:
    rows = [
        {"instance_id": f"i{n}", "prompt_id": f"p{n % 4}", "theme": "t", "reference": "r#0"}
        | {"candidates": ["a#0", "a#1", "a#2", "a#3"], "ranking": [0, 1, 2, 3], "scores": [math.nan] * 4}
        | changes
        for n in range(20)
    ]
    pd.DataFrame(rows).to_parquet(path)
    return path


def test_held_out_rankings_are_read_and_sampled_repeatably(tmp_path: Path) -> None:
    path = benchmark_file(tmp_path / "benchmark.parquet")
    assert len(rankings.read_rankings(path)) == 20
    some = rankings.read_rankings(path, 5, seed=1)
    assert some == rankings.read_rankings(path, 5, seed=1) and len(some) == 5
    assert some != rankings.read_rankings(path, 5, seed=2)


def test_bad_rankings_are_named(tmp_path: Path) -> None:
    path = tmp_path / "data/pairs/benchmark.parquet"
    path.parent.mkdir(parents=True)
    with pytest.raises(DataError, match="dvc repro pairs"):
        rankings.read_rankings(path)
    with pytest.raises(DataError, match="i0"):
        rankings.read_rankings(benchmark_file(path, ranking=[0, 1, 1, 3]))
    table = pd.read_parquet(benchmark_file(path))
    for damaged, cause in ((table.drop(columns="theme"), "'theme'"), (table.iloc[:0], "benchmark_share")):
        damaged.to_parquet(path)
        with pytest.raises(DataError, match=cause):
            rankings.read_rankings(path)


def grey(shade: int) -> Image.Image:
    return Image.new("RGB", (4, 4), (shade,) * 3)


def case(number: int, task: str, dimension: str, better: int, worse: int) -> edit_rankings.EditCase:
    pictures = (grey(0), grey(better), grey(worse))
    return edit_rankings.EditCase(str(number), task, dimension, f"do {number}", f"g{number}", lambda: pictures)


class Shades:
    """P(Yes) = shade / 100 when asked for following, 1 - shade / 100 for consistency; shade 77 fails."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        scores = []
        for query in queries:
            self.calls.append(query.instruction)
            shade = query.second.getpixel((0, 0))[0] / 100  # type: ignore[index]
            value = shade if "accurately follow" in query.instruction else 1 - shade
            scores.append(Score(math.nan, "no answer") if shade == 0.77 else Score(value))
        return scores


def test_each_dimension_asks_its_own_questions_and_overall_their_product() -> None:
    cases = [case(n, "t", dimension, 64, 36) for n, dimension in enumerate(DIMENSIONS)]
    scorer = Shades()
    judged = edit_rankings.score_edits("x", scorer, cases)
    assert judged.scores[0] == pytest.approx((0.64, 0.36))
    assert judged.scores[1] == pytest.approx((0.36, 0.64))
    assert judged.scores[2] == pytest.approx((math.sqrt(0.64 * 0.36),) * 2)  # the product is the same
    assert len(scorer.calls) == 8 == edit_rankings.count_edit_queries(cases)
    result = edit_rankings.evaluate_edits(cases, {"x": judged}, [], resamples=20)
    strict = {d: result.estimates["x"][d].mean for d in DIMENSIONS}
    loose = {d: result.estimates["x"][f"{d}_geq"].mean for d in DIMENSIONS}
    assert strict == {"prompt_following": 1.0, "consistency": 0.0, "overall": 0.0}
    assert loose == {"prompt_following": 1.0, "consistency": 0.0, "overall": 1.0}
    scorer = Shades()
    edit_rankings.score_edits("x", scorer, [case(1, "t", "prompt_following", 60, 40)] * 3)
    assert len(scorer.calls) == 2, "equal questions of a batch are asked once"


def test_the_mean_is_over_task_types_and_failures_are_counted() -> None:
    right, wrong, failing = (60, 40), (40, 60), (77, 40)
    rows = [("a", right), ("a", right), ("a", wrong), ("b", wrong), ("b", failing)]
    cases = [case(n, task, "prompt_following", *shades) for n, (task, shades) in enumerate(rows)]
    judged = edit_rankings.score_edits("x", Shades(), cases)
    result = edit_rankings.evaluate_edits(
        cases, {"x": judged, "y": rankings.random_order("y", cases)}, [("x", "y")], resamples=50
    )
    following = result.estimates["x"]["prompt_following"]
    assert following.mean == pytest.approx((2 / 3 + 0) / 2) and following.missing == 1
    assert judged.num_failed() == 1 and judged.causes == {"no answer": 1}
    assert result.by_task("x")["a"]["prompt_following"] == pytest.approx(2 / 3)
    assert "overall" not in result.estimates["x"], "no case has this dimension"
    assert result.metrics()["x.prompt_following_geq"] == following.mean


def test_the_published_wording_is_asked_to_the_letter() -> None:
    edit_case, scorer = case(0, "a", "overall", 60, 40), Shades()
    edit_rankings.score_edits("x", scorer, [edit_case], wording="published")
    head = f"<img1>: <image><img2>: <image>Given two images after an edit with instruction '{edit_case.instruction}', "
    assert set(scorer.calls) == {
        f"{head}do they maintain consistency in terms of style, logic and identity? Answer 'Yes' or 'No' only.",
        f"{head}is the edit following the instruction well? Answer 'Yes' or 'No' only.",
    }
