"""Which rankings are asked for."""

from __future__ import annotations

import pandas as pd
import pytest

from paco_core.config.params_rounds import AskParams
from paco_core.data.annotation.rounds import ASKED, agreement, certainty, chosen, drawn_at_random

TABLE = pd.DataFrame({"instance_id": [f"i{n:02d}" for n in range(20)]})
# The later, the nearer to a coin's toss.
DOUBT = {name: (20 - n) / 40 for n, name in enumerate(TABLE["instance_id"])}


def doubts(table: pd.DataFrame) -> list[float]:
    return [DOUBT[name] for name in table["instance_id"]]


def never(_table: pd.DataFrame) -> list[float]:
    raise AssertionError("the judge decides nothing here")


@pytest.mark.parametrize("count", [None, 20, 50])
def test_all_are_asked_for_where_nothing_limits_them(count: int | None) -> None:
    found = chosen(TABLE, AskParams(count=count, choose="uncertain"), never)
    assert list(found["instance_id"]) == list(TABLE["instance_id"])
    assert set(found[ASKED]) == {"all"}


def test_a_random_choice_does_not_ask_the_judge_and_a_larger_one_holds_the_smaller() -> None:
    few, more = (chosen(TABLE, AskParams(count=n), never) for n in (5, 9))
    assert len(few) == 5
    assert set(few["instance_id"]) < set(more["instance_id"])
    assert set(few[ASKED]) == {"random"}


def test_the_judges_choice_is_what_it_doubts_most_and_a_share_is_drawn() -> None:
    found = chosen(TABLE, AskParams(count=10, choose="uncertain", random_share=0.2), doubts)
    drawn = set(found["instance_id"][found[ASKED] == "random"])
    doubted = list(found["instance_id"][found[ASKED] == "uncertain"])
    assert (len(drawn), len(doubted)) == (2, 8)
    assert doubted == [name for name in TABLE["instance_id"] if name not in drawn][-8:]


def test_an_unknown_answer_of_the_judge_is_asked_for_last() -> None:
    found = chosen(
        TABLE, AskParams(count=19, choose="uncertain", random_share=0.0), lambda t: [float("nan"), *doubts(t)[1:]]
    )
    assert set(TABLE["instance_id"]) - set(found["instance_id"]) == {"i00"}


def test_a_judge_is_examined_on_what_no_judge_chose_among_a_rounds_own() -> None:
    earlier = TABLE[:8].assign(asked="all")
    own = chosen(TABLE[8:], AskParams(count=6, choose="uncertain", random_share=0.5), doubts)
    found = drawn_at_random(pd.concat([earlier, own]), earlier)
    assert found == set(own["instance_id"][own[ASKED] == "random"])
    assert len(found) == 3 and found.isdisjoint(earlier["instance_id"])
    assert drawn_at_random(own.assign(asked="all"), TABLE[:0]) == set(own["instance_id"])


def test_judges_disagree_where_they_order_candidates_otherwise_not_where_one_is_more_lenient() -> None:
    one = [[0.2, 0.4, 0.6], [0.2, 0.4, 0.6], [0.5, 0.5]]
    other = [[0.3, 0.5, 0.7], [0.6, 0.4, 0.2], [0.5, 0.5]]
    assert agreement(one, other) == pytest.approx([0.0, -0.8 / 3, 0.0])
    assert certainty(one) == pytest.approx([0.5 / 3, 0.5 / 3, 0.0])


def test_what_judges_disagree_on_is_asked_for_as_such() -> None:
    found = chosen(TABLE, AskParams(count=10, choose="disagree", random_share=0.2), doubts)
    assert found[ASKED].value_counts().to_dict() == {"disagree": 8, "random": 2}
