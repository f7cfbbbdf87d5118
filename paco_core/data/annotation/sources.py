"""Sources of votes, by their name in ``annotations.source``."""

from __future__ import annotations

from collections.abc import Callable, Set
from importlib import import_module
from typing import TYPE_CHECKING

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation.judge import count_judge_queries
from paco_core.data.annotation.votes import RankingTask, Votes
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import pandas as pd

#: Name -> module with a function ``votes(task) -> Votes``. To add a source, write such a module and add a line here.
SOURCES = {
    "recogniser": "paco_core.data.annotation.recogniser",
    "people": "paco_core.data.annotation.people",
    "judge": "paco_core.data.annotation.judge",
    "import": "paco_core.data.annotation.imported",
}


def validate_excluded(excluded: Set[str], annotators: Set[str]) -> None:
    """Raise DataError if an excluded annotator has no vote, because the name is probably misspelled."""
    if unknown := excluded - annotators:
        raise DataError(
            f"annotations.exclude lists {', '.join(sorted(unknown))}, but there is no vote by that name; "
            f"the annotators are: {', '.join(sorted(annotators)) or 'none'}"
        )


def workload(instances: pd.DataFrame, params: AnnotationsParams) -> tuple[int, str]:
    """The amount of work of the source, and the unit in which it reports its progress."""
    if params.source == "recogniser":
        return len(set(instances["reference"]).union(*instances["candidates"])), "panels"
    if params.source == "judge":
        return count_judge_queries(instances, params.judge), "questions"
    return len(instances), "instances"


def collect_votes(task: RankingTask) -> Votes:
    """Collect the votes of ``annotations.source``; empty if it is ``none`` or there are no instances.

    Raises:
        DataError: if the source lacks a model, file or server, or gives invalid or no rankings.
    """
    if task.params.source == "none" or task.instances.empty:
        return Votes([])
    source: Callable[[RankingTask], Votes] = import_module(SOURCES[task.params.source]).votes
    collected = source(task)
    if excluded := set(task.params.exclude):
        validate_excluded(excluded, {vote.annotator for vote in collected.rankings})
        before = len(collected.rankings)
        collected.rankings = [vote for vote in collected.rankings if vote.annotator not in excluded]
        collected.counts["excluded_votes"] = before - len(collected.rankings)
    if not collected.rankings:
        raise DataError(f"annotations.source {task.params.source!r} gave no ranking; expected at least one")
    return collected
