"""Votes: read from tables of every format, how they become one ranking, and how well annotators agree."""

from __future__ import annotations

import json
import math
import random
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import friedmanchisquare, kendalltau

from paco_core.benchmarks.public_files import read_scores
from paco_core.benchmarks.rankings import HeldOutRanking
from paco_core.data.annotation.agreement import kendall_tau, kendall_w, measure_agreement
from paco_core.data.annotation.imported import read_imported_rankings
from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.recogniser import rank
from paco_core.data.annotation.votes import Annotation, adjudicate, from_table, to_table, unscored
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from tests.support.dataset_world import quick

ORDERS = [list(order) for order in permutations(range(4))]


def read(tmp_path: Path, rows: list[dict[str, object]]) -> tuple[list[Annotation], Rejected]:
    """The rankings that can be used, and the others."""
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    return list(read_imported_rankings(tmp_path / "a.jsonl", {"i": 4, "j": 4}, rejected := Rejected())), rejected


def test_rank_orders_by_agreeing_traits_and_tells_ties() -> None:
    def reading(probability: float, **words: str) -> SimpleNamespace:
        traits = {"species": "cat", "colour": "red", "accessory": "hat", "style": "flat"} | words
        return SimpleNamespace(word=traits.get, probability=dict.fromkeys(traits, probability))

    candidates = [reading(0.9, colour="blue"), reading(0.8), reading(0.9), reading(0.9, colour="blue", species="bear")]
    order, shares, tied = rank(reading(1.0), candidates)  # type: ignore[arg-type]
    assert order == [2, 1, 0, 3] and shares == [0.75, 1.0, 1.0, 0.5] and tied


def test_imported_rankings_are_checked_line_by_line(tmp_path: Path) -> None:
    good = {"instance_id": "i", "annotator": "ann", "ranking": [2, 0, 1, 3]}
    other = {**good, "annotator": "bob", "ranking": [2, 1, 0, 3], "scores": [0.5, None, 1, 0]}
    votes, _ = read(tmp_path, [good, other])
    assert [vote.annotator for vote in votes] == ["ann", "bob"] and all(math.isnan(s) for s in votes[0].scores)
    assert not adjudicate(votes[:1])["i"].all_tied
    assert adjudicate(votes)["i"].ranking == [2, 0, 1, 3]
    assert measure_agreement(votes).kendall_tau == pytest.approx(4 / 6)
    assert math.isnan(measure_agreement(votes[:1]).kendall_tau)
    for wrong, cause in (
        ({**good, "annotator": "bob", "ranking": [0, 0, 1, 2]}, "ranking"),
        ({**good, "annotator": "bob", "ranking": [0, 1, 2]}, "ranking"),
        ({**good, "annotator": "bob", "ranking": [False, True, 2, 3]}, "ranking"),
        ({**good, "instance_id": "x"}, "instance"),
        (good, "duplicate"),
        ({"annotator": "ann"}, "record"),
        ({**good, "annotator": "c", "scores": [1]}, "scores"),
    ):
        votes, ((place, message),) = read(tmp_path, [good, wrong])
        assert len(votes) == 1 and place.endswith("a.jsonl:2") and message.startswith(f"{cause}: ")


def test_several_votes_become_one_ranking() -> None:
    votes = [unscored("i", name, order) for name, order in (("a", [0, 1, 2]), ("b", [0, 2, 1]), ("c", [2, 0, 1]))]
    settled = adjudicate(votes)["i"]
    assert settled.ranking == [0, 2, 1] and settled.annotator == "adjudicated" and not settled.tied
    assert adjudicate(votes[:2])["i"].tied  # 1 and 2 have the same mean rank
    assert adjudicate(votes, {"i": 3}) and not adjudicate(votes, {"i": 4})
    with pytest.raises(DataError, match="instance i"):
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
    everybody = measure_agreement(votes)
    assert [annotator.name for annotator in everybody.doubtful] == ["guess", "upside-down"]
    careful = measure_agreement([vote for vote in votes if vote.annotator in ("ann", "bob", "cid")])
    assert not careful.doubtful and careful.kendall_w > 0.7 > everybody.kendall_w
    assert careful.pairwise == pytest.approx((1 + careful.kendall_tau) / 2)


def test_half_hearted_work_is_told_from_the_others() -> None:
    rng = random.Random(6)
    votes = []
    for n in range(200):
        truth = rng.choice(ORDERS)
        votes += [unscored(f"i{n}", name, truth) for name in ("ann", "bob")]
        votes.append(unscored(f"i{n}", "lazy", truth if rng.random() < 0.25 else rng.choice(ORDERS)))
    assert [annotator.name for annotator in measure_agreement(votes).doubtful] == ["lazy"]


def test_nobody_is_judged_on_little() -> None:
    votes = [unscored(f"i{n}", name, ORDERS[n if name == "a" else -n - 1]) for n in range(19) for name in "ab"]
    assert not measure_agreement(votes).doubtful
    single = measure_agreement([unscored("i", "a", [0, 1, 2, 3])])
    assert json.loads(json.dumps(single.as_json(), allow_nan=False))["kendall_w"] is None


SIZES = {"0017": 3, "17": 3, "i": 3}


def read_text(file: Path, text: str) -> tuple[list[Any], list[str]]:
    file.write_text(text)
    annotations = list(read_imported_rankings(file, SIZES, rejected := Rejected()))
    rankings = [(vote.instance_id, vote.annotator, vote.ranking, vote.scores) for vote in annotations]
    return rankings, [f"{place.removeprefix(f'{file}')} {cause}" for place, cause in rejected]


@pytest.mark.parametrize("spelled", ["[2, 0, 1]", "2 0 1", "2;0;1"])
def test_rankings_are_read_from_csv(tmp_path: Path, spelled: str) -> None:
    head = "instance_id,annotator,ranking,scores\n"
    rankings, left_out = read_text(
        tmp_path / "r.csv",
        f'{head}0017,01,"{spelled}","0.5 null 1"\n17,01,"{spelled}",\n'
        "i,None,1 0,\ni,,0 1 2,\ni,b,best,\n17,01,0 1 2,\n",
    )
    assert [(name, annotator, order) for name, annotator, order, _ in rankings] == [
        ("0017", "01", [2, 0, 1]), ("17", "01", [2, 0, 1]),
    ]  # fmt: skip
    assert rankings[0][3][0] == 0.5 and rankings[0][3][2] == 1 and all(map(math.isnan, rankings[1][3]))
    assert [line.partition(": ")[0] for line in left_out] == [":4 ranking", ":5 record", ":6 ranking", ":7 duplicate"]


def test_ids_are_texts_and_integers_their_digits(tmp_path: Path) -> None:
    rows = [
        {"instance_id": 17, "annotator": 1, "ranking": ["2", "0", "1"]},
        {"instance_id": "17", "annotator": "1", "ranking": [0, 1, 2]},
        {"instance_id": "i", "annotator": None, "ranking": [0, 1, 2]},
        {"instance_id": 17.0, "annotator": "b", "ranking": [0, 1, 2]},
    ]
    rankings, left_out = read_text(tmp_path / "r.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    assert [(name, annotator) for name, annotator, _, _ in rankings] == [("17", "1")]
    assert [line.partition(" ")[2].partition(":")[0] for line in left_out] == ["duplicate", "record", "record"]
    pd.DataFrame(rows[:1]).to_parquet(tmp_path / "r.parquet")
    assert [v.instance_id for v in read_imported_rankings(tmp_path / "r.parquet", SIZES, Rejected())] == ["17"]


def test_a_person_is_one_person_however_an_export_writes_the_id(tmp_path: Path) -> None:
    def annotation(completed_by: object, order: list[object]) -> dict[str, Any]:
        return {"completed_by": completed_by, "result": [{"value": {"ranker": {"ranking": order}}}]}

    tasks = [
        {"data": {"instance_id": 17}, "annotations": [annotation(5, ["2", "0", "1"]), annotation("5", [0, 1, 2])]},
        {"data": {"instance_id": "17"}, "annotations": [annotation({"id": "5"}, ["1", "0", "2"])]},
        {"data": {"instance_id": ["17"]}, "annotations": []},
    ]
    (tmp_path / "e.json").write_text("\ufeff" + json.dumps(tasks), encoding="utf-8")
    result = read_export(tmp_path / "e.json", SIZES, rejected := Rejected())
    assert [(v.instance_id, v.annotator, v.ranking) for v in result.rankings] == [("17", "user-5", [1, 0, 2])]
    assert result.counts["superseded_answers"] == 2
    assert [cause.partition(":")[0] for _, cause in rejected] == ["instance"]


def test_scores_given_elsewhere_are_read_from_csv(tmp_path: Path) -> None:
    instances = [HeldOutRanking("i", "p", "a bear", "0017", ("1", "2"), (0, 1), (1.0, 0.0))]
    file = tmp_path / "s.csv"
    file.write_text("reference;candidate;score\n0017;1;0.75\n0017;2;0,5\n0017;2;\n17;2;1\n")
    judged = read_scores("x", file, instances, rejected := Rejected())
    assert judged.scores[0][0] == 0.75 and math.isnan(judged.scores[0][1])
    assert judged.causes == {"not in the file": 1}
    assert [cause.partition(":")[0] for _, cause in rejected] == ["record", "record"]
    file.write_text("reference,candidate,score\n17,1,0.75\n")
    with pytest.raises(DataError, match="none of its 1 pairs"):
        read_scores("x", file, instances, Rejected())
