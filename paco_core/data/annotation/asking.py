"""Which rankings of a round are asked for: people's answers are the dearest thing that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from paco_core.data.annotation.assignment import sample

if TYPE_CHECKING:
    import pandas as pd

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
