"""Rounds: which rankings of a round people are asked for, and which of its rankings are answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.annotation.assignment import sample
from paco_core.data.annotation.people import answered
from paco_core.data.annotation.rankings import COLUMNS
from paco_core.data.annotation.votes import RankingTask
from paco_core.data.records.panels import PanelStore
from paco_core.io import paths
from paco_core.io.files import DataError, read_table

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import Params
    from paco_core.config.params_rounds import AskParams


ASKED = "asked"  # column: why an instance is asked for
Doubts = Callable[["pd.DataFrame"], Sequence[float]]
Answers = Sequence[Sequence[float]]  # P(Yes) of each candidate of each instance


def chosen(instances: pd.DataFrame, ask: AskParams, doubts: Doubts) -> pd.DataFrame:
    """The instances to rank, in their order, with a column ``asked``: ``all``, ``random`` or ``ask.choose``.

    ``ask.random_share`` of ``ask.count`` are drawn at random, whatever chooses the others: on these the judge can be
    examined without the bias of a choice that it made itself.

    Args:
        doubts: a number for each instance, the lowest of which are asked for: :func:`certainty` or :func:`agreement`;
            called only where it decides.
    """
    if ask.count is None or ask.count >= len(instances):
        return instances.assign(**{ASKED: "all"})
    judged = ask.choose != "random"
    drawn = set(sample(instances["instance_id"], round(ask.count * ask.random_share) if judged else ask.count))
    rest = instances[~instances["instance_id"].isin(drawn)]
    doubted: set[str] = set()
    if judged:
        order = rest.assign(doubt=list(doubts(rest))).sort_values(["doubt", "instance_id"], kind="stable")
        doubted = set(order["instance_id"][: ask.count - len(drawn)])
    kept = instances[instances["instance_id"].isin(drawn | doubted)]
    return kept.assign(**{ASKED: ["random" if name in drawn else ask.choose for name in kept["instance_id"]]})


def certainty(answers: Answers) -> list[float]:
    """How far P(Yes) is from 0.5, as a mean over the candidates of each instance: 0 for a coin's toss, to 0.5."""
    return [float(np.mean(np.abs(np.array(one) - 0.5))) for one in answers]


def agreement(answers: Answers, others: Answers) -> list[float]:
    """How alike two judges are, as minus the mean absolute difference over the candidates of each instance: -1 to 0.

    Of each judge its mean over the candidates is taken off first: one that says Yes more often to all of them ranks
    them alike.
    """
    pairs = zip(*([np.array(one) - np.mean(one) for one in judge] for judge in (answers, others)), strict=True)
    return [-float(np.mean(np.abs(first - second))) for first, second in pairs]


def drawn_at_random(instances: pd.DataFrame, earlier: pd.DataFrame) -> set[str]:
    """Ids of the instances that a round added to ``earlier`` ones without a judge's choice: all, or drawn."""
    own = instances[~instances["instance_id"].isin(earlier["instance_id"])]
    return set(own["instance_id"][own[ASKED].isin(["all", "random"])])


TABLE = "instances.parquet"


def task_of_round(root: Path, params: Params, number: str) -> RankingTask:
    """The instances that a round adds to those before it, with their pictures.

    Raises:
        DataError: when there is no such round, or its rankings are not made yet.
    """
    rounds = params.rounds.items
    if number not in rounds:
        raise DataError(f"round {number}: not in rounds.items; there are: {', '.join(rounds) or 'none'}")
    place = root / paths.ROUNDS / number
    made = place / paths.RANKINGS.name / TABLE
    if not made.is_file():
        raise DataError(f"{made}: missing; run `dvc repro {paths.ROUND}{paths.RANKINGS.name}@{number}`")
    known = read_table(root / rounds[number].after / paths.RANKINGS.name / TABLE, require=COLUMNS)["instance_id"]
    asked = read_table(made, require=COLUMNS)
    panels = PanelStore.below(place / paths.GRIDS.name)
    return RankingTask(asked[~asked["instance_id"].isin(known)], panels, params.annotations, root)


def annotation_source(params: Params, number: str | None) -> str:
    """Who ranks the pictures of a round; None: those of the graph itself."""
    of_round = params.rounds.items[number].annotations if number is not None else None
    return of_round or params.annotations.source


def ready(root: Path, params: Params) -> list[str]:
    """The rounds that waited for people, and have all answers now."""
    found = []
    for number in params.rounds.items:
        place = root / paths.ROUNDS / number
        if annotation_source(params, number) != "people":
            continue
        if (place / paths.RANKINGS.name / TABLE).is_file() and not (place / paths.ANNOTATIONS.name).exists():
            task = task_of_round(root, params, number)
            found += [number] if answered(task) == len(task.instances) else []
    return found
