"""Votes: where they come from, how they become one ranking, and how well annotators agree."""

from __future__ import annotations

import json
import math
import random
import re
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import friedmanchisquare, kendalltau

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation.agreement import agreement, kendall_tau, kendall_w
from paco_core.data.annotation.imported import read_rankings
from paco_core.data.annotation.rankings import instances
from paco_core.data.annotation.recogniser import rank
from paco_core.data.annotation.sources import SOURCES, annotate
from paco_core.data.annotation.votes import Annotation, RankingTask, adjudicate, from_table, to_table, unscored
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from tests.support.dataset_world import quick

ORDERS = [list(order) for order in permutations(range(4))]


def grid_table(prompts: int = 1, seeds: int = 2) -> object:
    import pandas as pd

    rows = [(f"g{p}-{s}", f"p{p}", s, "2x2") for p in range(prompts) for s in range(seeds)]
    return pd.DataFrame(rows, columns=["id", "prompt_id", "seed", "layout"])


def imported(tmp_path: Path, rows: list[dict[str, object]]) -> list[Annotation]:
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    params = AnnotationsParams(source="import", file="a.jsonl")
    return annotate(RankingTask(instances(grid_table()), None, params, tmp_path)).rankings  # type: ignore[arg-type]


def read(tmp_path: Path, rows: list[dict[str, object]]) -> tuple[list[Annotation], Rejected]:
    """The rankings that can be used, and the others."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    sizes = dict.fromkeys(instances(grid_table())["instance_id"], 4)  # type: ignore[arg-type]
    return list(read_rankings(tmp_path / "a.jsonl", sizes, rejected := Rejected())), rejected


def test_rank_orders_by_agreeing_traits_and_tells_ties() -> None:
    def reading(probability: float, **words: str) -> SimpleNamespace:
        traits = {"species": "cat", "colour": "red", "accessory": "hat", "style": "flat"} | words
        return SimpleNamespace(word=traits.get, probability=dict.fromkeys(traits, probability))

    candidates = [reading(0.9, colour="blue"), reading(0.8), reading(0.9), reading(0.9, colour="blue", species="bear")]
    order, shares, tied = rank(reading(1.0), candidates)  # type: ignore[arg-type]
    assert order == [2, 1, 0, 3] and shares == [0.75, 1.0, 1.0, 0.5] and tied


def test_every_source_of_the_parameters_is_known() -> None:
    assert {*SOURCES, "none"} == set(AnnotationsParams.model_fields["source"].annotation.__args__)  # type: ignore[union-attr]


def test_imported_rankings_are_checked_line_by_line(tmp_path: Path) -> None:
    ids = list(instances(grid_table())["instance_id"])  # type: ignore[arg-type]
    good = {"instance_id": ids[0], "annotator": "ann", "ranking": [2, 0, 1, 3]}
    votes = imported(
        tmp_path, [good, {**good, "annotator": "bob", "ranking": [2, 1, 0, 3], "scores": [0.5, None, 1, 0]}]
    )
    assert [vote.annotator for vote in votes] == ["ann", "bob"] and all(math.isnan(s) for s in votes[0].scores)
    assert not adjudicate(votes[:1])[ids[0]].all_tied
    assert adjudicate(votes)[ids[0]].ranking == [2, 0, 1, 3]
    assert agreement(votes).kendall_tau == pytest.approx(4 / 6)
    assert math.isnan(agreement(votes[:1]).kendall_tau)
    for wrong, message in (
        ({**good, "annotator": "bob", "ranking": [0, 0, 1, 2]}, r"a.jsonl:2: ranking: \[0, 0, 1, 2\]"),
        ({**good, "annotator": "bob", "ranking": [0, 1, 2]}, r"a.jsonl:2: ranking: \[0, 1, 2\] .* 0 to 3, each once"),
        ({**good, "annotator": "bob", "ranking": [False, True, 2, 3]}, "a.jsonl:2: ranking"),
        ({**good, "instance_id": "x"}, "a.jsonl:2: instance: there is no instance x"),
        (good, r"a.jsonl:2: duplicate: annotator ann ranks .* a second time \(first on line 1\)"),
        ({"annotator": "ann"}, "a.jsonl:2: record: key 'instance_id' is missing"),
        ({**good, "annotator": "c", "scores": [1]}, "a.jsonl:2: scores"),
    ):
        votes, (left_out,) = read(tmp_path, [good, wrong])
        assert len(votes) == 1 and re.search(message, ": ".join(left_out))


def test_several_votes_become_one_ranking() -> None:
    votes = [unscored("i", name, order) for name, order in (("a", [0, 1, 2]), ("b", [0, 2, 1]), ("c", [2, 0, 1]))]
    settled = adjudicate(votes)["i"]
    assert settled.ranking == [0, 2, 1] and settled.annotator == "adjudicated" and not settled.tied
    assert adjudicate(votes[:2])["i"].tied  # 1 and 2 have the same mean rank
    assert adjudicate(votes, {"i": 3}) and not adjudicate(votes, {"i": 4})
    with pytest.raises(DataError, match="instance i: its annotators rank different numbers"):
        adjudicate([*votes, unscored("i", "d", [0, 1])])


def test_votes_survive_a_table() -> None:
    votes = [Annotation("i", "a", [1, 0], [0.5, 1.0], True), unscored("j", "b", [0, 1])]
    back = from_table(to_table(votes))
    assert back[0] == votes[0] and back[1].ranking == [0, 1] and all(math.isnan(s) for s in back[1].scores)


@quick
@given(st.lists(st.permutations(range(5)), min_size=3, max_size=6))
def test_agreement_is_that_of_scipy(rankings: list[list[int]]) -> None:
    ranks = [[ranking.index(candidate) for candidate in range(5)] for ranking in rankings]
    chi_squared = friedmanchisquare(*zip(*ranks, strict=True)).statistic
    assert kendall_w(rankings) == pytest.approx(chi_squared / (len(rankings) * 4))
    assert kendall_tau(rankings[0], rankings[1]) == pytest.approx(kendalltau(ranks[0], ranks[1]).statistic)


def noisy(truth: list[int], rng: random.Random, swaps: int) -> list[int]:
    order = list(truth)
    for _ in range(swaps):
        n = rng.randrange(3)
        order[n], order[n + 1] = order[n + 1], order[n]
    return order


def test_a_guesser_and_a_contrarian_are_named_and_the_careful_are_not() -> None:
    rng = random.Random(5)
    votes = []
    for n in range(60):
        truth = rng.choice(ORDERS)
        votes += [unscored(f"i{n}", name, noisy(truth, rng, 1)) for name in ("ann", "bob", "cid")]
        votes += [unscored(f"i{n}", "guess", rng.choice(ORDERS)), unscored(f"i{n}", "upside-down", truth[::-1])]
    found = agreement(votes)
    assert [one.name for one in found.doubtful] == ["guess", "upside-down"]
    assert "no better than chance over 60 shared instances" in found.text()
    careful = agreement([vote for vote in votes if vote.annotator in ("ann", "bob", "cid")])
    assert not careful.doubtful and careful.kendall_w > 0.7 > found.kendall_w
    assert careful.pairwise == pytest.approx((1 + careful.kendall_tau) / 2)


def test_half_hearted_work_is_told_from_the_others() -> None:
    rng = random.Random(6)
    votes = []
    for n in range(200):
        truth = rng.choice(ORDERS)
        votes += [unscored(f"i{n}", name, truth) for name in ("ann", "bob")]
        votes.append(unscored(f"i{n}", "lazy", truth if rng.random() < 0.25 else rng.choice(ORDERS)))
    doubtful = agreement(votes).doubtful
    assert [one.name for one in doubtful] == ["lazy"] and "less than half as much" in doubtful[0].doubts[0]


def test_nobody_is_judged_on_little() -> None:
    votes = [unscored(f"i{n}", name, ORDERS[n if name == "a" else -n - 1]) for n in range(19) for name in "ab"]
    assert not agreement(votes).doubtful


def test_the_same_keys_over_and_over_are_no_better_than_chance() -> None:
    """Candidates stand in random places, so that a fixed order of places is a random order of candidates."""
    rng = random.Random(7)
    votes = []
    for n in range(100):
        truth = rng.choice(ORDERS)
        votes += [unscored(f"i{n}", name, truth) for name in ("ann", "bob")]
        votes.append(unscored(f"i{n}", "clicker", rng.sample(range(4), 4)))
    found = agreement(votes)
    assert [one.name for one in found.doubtful] == ["clicker"]
    alone = agreement([unscored("i", "clicker", [0, 1, 2, 3])])
    assert json.loads(json.dumps(alone.as_json(), allow_nan=False))["kendall_w"] is None
