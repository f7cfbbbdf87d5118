"""Which rankings of a round are asked for: people's answers are the dearest thing that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paco_core.data.annotation.assignment import sample

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params_rounds import AskParams

ASKED = "asked"  # column: why an instance is asked for
Doubts = Callable[["pd.DataFrame"], Sequence[float]]


def chosen(instances: pd.DataFrame, ask: AskParams, doubts: Doubts) -> pd.DataFrame:
    """The instances to rank, in their order, with a column ``asked``: ``all``, ``random`` or ``uncertain``.

    ``ask.random_share`` of ``ask.count`` are drawn at random, whatever chooses the others: on these the judge can be
    examined without the bias of a choice that it made itself.

    Args:
        doubts: of each instance how sure the judge is, 0 for a coin's toss and 0.5 for a certain answer; called only
            where it decides.
    """
    if ask.count is None or ask.count >= len(instances):
        return instances.assign(**{ASKED: "all"})
    uncertain = ask.choose == "uncertain"
    drawn = set(sample(instances["instance_id"], round(ask.count * ask.random_share) if uncertain else ask.count))
    rest = instances[~instances["instance_id"].isin(drawn)]
    doubted: set[str] = set()
    if uncertain:
        order = rest.assign(doubt=list(doubts(rest))).sort_values(["doubt", "instance_id"], kind="stable")
        doubted = set(order["instance_id"][: ask.count - len(drawn)])
    kept = instances[instances["instance_id"].isin(drawn | doubted)]
    return kept.assign(**{ASKED: ["random" if name in drawn else "uncertain" for name in kept["instance_id"]]})


def drawn_at_random(instances: pd.DataFrame, earlier: pd.DataFrame) -> set[str]:
    """Ids of the instances that a round added to ``earlier`` ones without a judge's choice: all, or drawn."""
    own = instances[~instances["instance_id"].isin(earlier["instance_id"])]
    return set(own["instance_id"][own[ASKED].isin(["all", "random"])])
