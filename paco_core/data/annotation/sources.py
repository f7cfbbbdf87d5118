"""Who ranks: the sources of votes, by the name that ``annotations.source`` gives."""

from __future__ import annotations

from collections.abc import Callable, Set
from importlib import import_module
from typing import TYPE_CHECKING

from paco_core.config.params import AnnotationsParams
from paco_core.data.annotation.judge import questions
from paco_core.data.annotation.votes import RankingTask, Votes
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import pandas as pd

#: Name -> module with a function ``votes(task) -> Votes``; a further source is a module and a line here.
SOURCES = {
    "recogniser": "paco_core.data.annotation.recogniser",
    "people": "paco_core.data.annotation.people",
    "judge": "paco_core.data.annotation.judge",
    "import": "paco_core.data.annotation.imported",
}


def refuse_strangers(excluded: Set[str], known: Set[str]) -> None:
    """Raise DataError when an annotator who is excluded gave no vote."""
    if unknown := excluded - known:
        raise DataError(
            f"annotations.exclude names {', '.join(sorted(unknown))}, who gave no vote; "
            f"known: {', '.join(sorted(known)) or 'nobody'}"
        )


def workload(instances: pd.DataFrame, params: AnnotationsParams) -> tuple[int, str]:
    """How much a source has to do, and in what unit it reports its progress."""
    if params.source == "recogniser":
        return len(set(instances["reference"]).union(*instances["candidates"])), "panels"
    if params.source == "judge":
        return questions(instances, params.judge), "questions"
    return len(instances), "instances"


def annotate(task: RankingTask) -> Votes:
    """The votes of the source that the parameters name; none where it is ``none``, or there is nothing to rank.

    Raises:
        DataError: when the source lacks a model, file or server, or what it gave is invalid.
    """
    if task.params.source == "none" or task.instances.empty:
        return Votes([])
    source: Callable[[RankingTask], Votes] = import_module(SOURCES[task.params.source]).votes
    found = source(task)
    if excluded := set(task.params.exclude):
        refuse_strangers(excluded, {vote.annotator for vote in found.rankings})
        before = len(found.rankings)
        found.rankings = [vote for vote in found.rankings if vote.annotator not in excluded]
        found.counts["excluded_votes"] = before - len(found.rankings)
    if not found.rankings:
        raise DataError(f"annotations.source {task.params.source!r} gave no ranking at all")
    return found
