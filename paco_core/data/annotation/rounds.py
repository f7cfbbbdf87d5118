"""Rounds: selection of the instances that people rank, and the progress of their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.annotation.assignment import sample
from paco_core.data.annotation.people import count_answered
from paco_core.data.annotation.rankings import COLUMNS
from paco_core.data.annotation.votes import RankingTask
from paco_core.data.records.panels import PanelStore
from paco_core.io import paths
from paco_core.io.files import DataError, read_table

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import Params
    from paco_core.config.params_rounds import AskParams


REASON = "asked"  # column: the reason for which an instance was selected
Doubts = Callable[["pd.DataFrame"], Sequence[float]]
Answers = Sequence[Sequence[float]]  # P(Yes) of each candidate of each instance


def select_instances(instances: pd.DataFrame, params: AskParams, doubts: Doubts) -> pd.DataFrame:
    """Select the instances to rank, in their order, with a column ``asked``: ``all``, ``random`` or ``params.choose``.

    ``params.random_share`` of ``params.count`` are always sampled at random. These instances evaluate the reward model
    without the bias of its own selection.

    Args:
        params: ``ask`` of the round.
        doubts: returns one number per instance, for example :func:`certainty` or :func:`judge_agreement`. The instances
            with the lowest numbers are selected. It is not called if all instances are selected at random.
    """
    if params.count is None or params.count >= len(instances):
        return instances.assign(**{REASON: "all"})
    by_judge = params.choose != "random"
    random_ids = set(
        sample(instances["instance_id"], round(params.count * params.random_share) if by_judge else params.count)
    )
    remaining = instances[~instances["instance_id"].isin(random_ids)]
    doubtful_ids: set[str] = set()
    if by_judge:
        order = remaining.assign(doubt=list(doubts(remaining))).sort_values(["doubt", "instance_id"], kind="stable")
        doubtful_ids = set(order["instance_id"][: params.count - len(random_ids)])
    selected = instances[instances["instance_id"].isin(random_ids | doubtful_ids)]
    return selected.assign(
        **{REASON: ["random" if name in random_ids else params.choose for name in selected["instance_id"]]}
    )


def certainty(answers: Answers) -> list[float]:
    """Mean distance of P(Yes) from 0.5 over the candidates of each instance: 0 (a guess) to 0.5 (certain)."""
    return [float(np.mean(np.abs(np.array(probabilities) - 0.5))) for probabilities in answers]


def judge_agreement(answers: Answers, other_answers: Answers) -> list[float]:
    """Minus the mean absolute difference of two reward models over the candidates of each instance: -1 to 0.

    The mean over the candidates is subtracted from each reward model first, because a constant offset does not change
    the ranking.
    """
    pairs = zip(
        *(
            [np.array(probabilities) - np.mean(probabilities) for probabilities in judge]
            for judge in (answers, other_answers)
        ),
        strict=True,
    )
    return [-float(np.mean(np.abs(first - second))) for first, second in pairs]


def randomly_selected_ids(instances: pd.DataFrame, earlier: pd.DataFrame) -> set[str]:
    """Ids of the instances that a round added to the ``earlier`` ones and that no reward model selected."""
    added = instances[~instances["instance_id"].isin(earlier["instance_id"])]
    return set(added["instance_id"][added[REASON].isin(["all", "random"])])


TABLE = "instances.parquet"


def task_of_round(root: Path, params: Params, number: str) -> RankingTask:
    """The instances that a round adds to the earlier ones, with their pictures.

    Raises:
        DataError: if the round does not exist, or its stage ``rankings`` has not run.
    """
    rounds = params.rounds.items
    if number not in rounds:
        raise DataError(f"round {number} is not in rounds.items; the rounds are: {', '.join(rounds) or 'none'}")
    place = root / paths.ROUNDS / number
    table = place / paths.RANKINGS.name / TABLE
    if not table.is_file():
        raise DataError(f"{table} is missing; run `dvc repro {paths.ROUND}{paths.RANKINGS.name}@{number}`")
    earlier_ids = read_table(root / rounds[number].after / paths.RANKINGS.name / TABLE, require=COLUMNS)["instance_id"]
    instances = read_table(table, require=COLUMNS)
    panels = PanelStore.below(place / paths.GRIDS.name)
    return RankingTask(instances[~instances["instance_id"].isin(earlier_ids)], panels, params.annotations, root)


def annotation_source(params: Params, number: str | None) -> str:
    """The source of the rankings of a round; ``number`` None means the main graph."""
    of_round = params.rounds.items[number].annotations if number is not None else None
    return of_round or params.annotations.source


def fully_answered_rounds(root: Path, params: Params) -> list[str]:
    """The rounds that waited for people and whose instances are now all answered."""
    numbers = []
    for number in params.rounds.items:
        place = root / paths.ROUNDS / number
        if annotation_source(params, number) != "people":
            continue
        if (place / paths.RANKINGS.name / TABLE).is_file() and not (place / paths.ANNOTATIONS.name).exists():
            task = task_of_round(root, params, number)
            numbers += [number] if count_answered(task) == len(task.instances) else []
    return numbers
