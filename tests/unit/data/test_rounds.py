"""Rounds: which rankings are asked for, by which judges' doubts, and how a round waits for people's answers."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from PIL import Image

from paco_core.config.params_rounds import AskParams, RoundsParams
from paco_core.data.annotation import answer_file
from paco_core.data.annotation.people import validate_answered
from paco_core.data.annotation.queue import AnnotationQueue
from paco_core.data.annotation.rankings import build_instances
from paco_core.data.annotation.rounds import (
    REASON,
    certainty,
    fully_answered_rounds,
    judge_agreement,
    randomly_selected_ids,
    select_instances,
    task_of_round,
)
from paco_core.data.annotation.store import AnswerStore
from paco_core.data.records import panels, records
from paco_core.io.files import DataError
from paco_core.io.shards import GRID_COLUMNS, ShardReader, encode_png, write_shard
from paco_core.reward_model import yes_probability
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.yes_probability import Score
from paco_core.stages import rankings

TABLE = pd.DataFrame({"instance_id": [f"i{n:02d}" for n in range(20)]})
# The later, the nearer to a coin's toss.
DOUBT = {name: (20 - n) / 40 for n, name in enumerate(TABLE["instance_id"])}


def doubts(table: pd.DataFrame) -> list[float]:
    return [DOUBT[name] for name in table["instance_id"]]


def never(_table: pd.DataFrame) -> list[float]:
    raise AssertionError("the judge decides nothing here")


@pytest.mark.parametrize("count", [None, 20])
def test_all_are_asked_for_where_nothing_limits_them(count: int | None) -> None:
    selected = select_instances(TABLE, AskParams(count=count, choose="uncertain"), never)
    assert list(selected["instance_id"]) == list(TABLE["instance_id"])
    assert set(selected[REASON]) == {"all"}


def test_a_random_choice_does_not_ask_the_judge_and_a_larger_one_holds_the_smaller() -> None:
    smaller, larger = (select_instances(TABLE, AskParams(count=n), never) for n in (5, 9))
    assert len(smaller) == 5
    assert set(smaller["instance_id"]) < set(larger["instance_id"])
    assert set(smaller[REASON]) == {"random"}


def test_the_judges_choice_is_what_it_doubts_most_and_a_share_is_drawn() -> None:
    rows = select_instances(TABLE, AskParams(count=10, choose="disagree", random_share=0.2), doubts)
    random_ids = set(rows["instance_id"][rows[REASON] == "random"])
    doubted = list(rows["instance_id"][rows[REASON] == "disagree"])
    assert (len(random_ids), len(doubted)) == (2, 8)
    assert doubted == [name for name in TABLE["instance_id"] if name not in random_ids][-8:]


def test_an_unknown_answer_of_the_judge_is_asked_for_last() -> None:
    selected = select_instances(
        TABLE, AskParams(count=19, choose="uncertain", random_share=0.0), lambda t: [float("nan"), *doubts(t)[1:]]
    )
    assert set(TABLE["instance_id"]) - set(selected["instance_id"]) == {"i00"}


def test_a_judge_is_examined_on_what_no_judge_chose_among_a_rounds_own() -> None:
    earlier = TABLE[:8].assign(asked="all")
    added = select_instances(TABLE[8:], AskParams(count=6, choose="uncertain", random_share=0.5), doubts)
    random_ids = randomly_selected_ids(pd.concat([earlier, added]), earlier)
    assert random_ids == set(added["instance_id"][added[REASON] == "random"])
    assert len(random_ids) == 3 and random_ids.isdisjoint(earlier["instance_id"])
    assert randomly_selected_ids(added.assign(asked="all"), TABLE[:0]) == set(added["instance_id"])


def test_judges_disagree_where_they_order_candidates_otherwise_not_where_one_is_more_lenient() -> None:
    probabilities = [[0.2, 0.4, 0.6], [0.2, 0.4, 0.6], [0.5, 0.5]]
    other = [[0.3, 0.5, 0.7], [0.6, 0.4, 0.2], [0.5, 0.5]]
    assert judge_agreement(probabilities, other) == pytest.approx([0.0, -0.8 / 3, 0.0])
    assert certainty(probabilities) == pytest.approx([0.5 / 3, 0.5 / 3, 0.0])


RANKINGS = pd.DataFrame({"prompt_id": ["p", "p"], "reference": ["r", "r"], "candidates": [["a", "b"], ["a", "c"]]})
ANSWERS = {
    "before": {"a": 0.5, "b": 0.6, "c": 1.0},
    "held_out": {"a": 0.9, "b": 0.2, "c": 1.0},
}


@pytest.mark.parametrize(("choose", "expected"), [("uncertain", [0.05, 0.25]), ("disagree", [-0.4, -0.2])])
def test_the_judge_before_is_asked_and_for_a_disagreement_the_held_out_one(
    monkeypatch: pytest.MonkeyPatch, choose: str, expected: list[float]
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
    monkeypatch.setattr("paco_core.reward_model.instructions.render_instruction", lambda _template, theme: f"{theme}?")
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
    assert rankings._doubts(context, RANKINGS) == pytest.approx(expected)


@pytest.fixture
def params() -> Any:
    rounds = RoundsParams.model_validate({"items": {"1": {"after": "data", "annotations": "people"}}})
    return SimpleNamespace(rounds=rounds, annotations=SimpleNamespace(source="recogniser"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two grids of one prompt, and two more that round 1 painted."""
    for shard, place, shade in (("shard-0", "data", 0), ("round-1", "data/rounds/1", 99)):
        rows = [{"id": f"{shard}{n}", "prompt_id": "p", "seed": n, "layout": "1x2"} for n in (0, 1)]
        images = {row["id"]: encode_png(Image.new("RGB", (16, 8), (shade, row["seed"], 7))) for row in rows}
        write_shard(tmp_path / place / "grids" / shard, rows, images, columns=GRID_COLUMNS)
        index = ShardReader.below(tmp_path / place / "grids", require=GRID_COLUMNS).index
        (tmp_path / place / "rankings").mkdir()
        earlier = [] if place == "data" else [pd.read_parquet(tmp_path / "data/rankings/instances.parquet")]
        table = pd.concat([*earlier, build_instances(index)], ignore_index=True)
        table.to_parquet(tmp_path / place / "rankings/instances.parquet", index=False)
    return tmp_path


def answer(root: Path, task: Any, count: int) -> None:
    with AnswerStore(root / "answers/people.sqlite", create=True) as store:
        store.recruit(1)
        queue = AnnotationQueue(store, task.instances, task.panels, 1)
        for _ in range(count):
            view = queue.view(queue.annotators[0])
            assert view.instance is not None
            queue.answer(queue.annotators[0], view.instance, view.revision, "ranked", [0, 1], 1.0)
        answer_file.save_answers(root, store)


def test_only_what_the_round_adds_is_asked_for(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    assert len(task.instances) == 4
    assert task.instances["reference"].str.startswith("round-1").all()


def test_it_waits_and_says_for_what_until_all_is_answered(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    with pytest.raises(DataError, match="waits for people: 0 of 4 .* --round 1`.* `dvc repro x@1`"):
        validate_answered(task, "1", "x@1")
    answer(root, task, 3)
    with pytest.raises(DataError, match="3 of 4 rankings are answered"):
        validate_answered(task, "1", "x@1")
    assert fully_answered_rounds(root, params) == []
    answer(root, task, 1)
    validate_answered(task, "1", "x@1")
    assert fully_answered_rounds(root, params) == ["1"]
    (root / "data/rounds/1/annotations").mkdir()
    assert fully_answered_rounds(root, params) == [], "it has gone on"


def test_answers_of_another_study_do_not_count_on_the_page(root: Path, params: Any) -> None:
    task = task_of_round(root, params, "1")
    first = task.instances.iloc[:1]
    answer(root, SimpleNamespace(instances=first, panels=task.panels), 1)
    with AnswerStore(root / "answers/people.sqlite") as store:
        queue = AnnotationQueue(store, task.instances.iloc[1:], task.panels, 1)
        assert queue.progress() == {"annotator-1": (0, 3)}
        assert queue.view(queue.annotators[0]).last is None
