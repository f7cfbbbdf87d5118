"""Votes: rankings by annotators, and their aggregation to one ranking per instance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.params import AnnotationsParams
from paco_core.io.files import DataError

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.data.records.panels import PanelStore

COLUMNS = ("instance_id", "annotator", "ranking", "scores", "tied")
ADJUDICATED = "adjudicated"


@dataclass(frozen=True)
class Annotation:
    """One annotator's order of one instance's candidates.

    ``ranking`` contains candidate positions, best first. ``scores`` contains one number per candidate from 0 to 1,
    where 1 means completely consistent (NaN if the source has no scores). ``tied`` is true if only a tie rule
    separates some candidates.
    """

    instance_id: str
    annotator: str
    ranking: list[int]
    scores: list[float]
    tied: bool

    @property
    def all_tied(self) -> bool:
        """Whether the annotator is known to see no difference between any two candidates."""
        return all(score == self.scores[0] for score in self.scores)  # never with NaN


@dataclass(frozen=True)
class RankingTask:
    """The instances that a source ranks.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``.
        root: the folder that relative paths of the parameters start from.
        advance: called with the number of finished units of work.
        log: called with a line of text for the log.
    """

    instances: pd.DataFrame
    panels: PanelStore
    params: AnnotationsParams
    root: Path = Path()
    advance: Callable[[int], object] = lambda _count: None
    log: Callable[[str], object] = lambda _line: None

    def sizes(self) -> dict[str, int]:
        """Number of candidates of each instance."""
        return {name: len(candidates) for name, _, candidates in instance_rows(self.instances)}


@dataclass
class Votes:
    """The votes of a source.

    ``undecided`` is the number of annotators per instance who could not tell. ``counts`` contains further metrics of
    the source.
    """

    rankings: list[Annotation]
    undecided: Counter[str] = field(default_factory=Counter)
    counts: dict[str, float] = field(default_factory=dict)


InstanceRow = tuple[str, str, list[str]]


def instance_rows(instances: pd.DataFrame) -> list[InstanceRow]:
    """(instance id, reference, candidates) of each row."""
    columns = instances[["instance_id", "reference", "candidates"]]
    return [(str(name), str(ref), list(refs)) for name, ref, refs in columns.itertuples(index=False)]


def is_permutation(ranking: object, count: int) -> bool:
    """Whether a value is a list that contains each position of ``count`` candidates once."""
    if not isinstance(ranking, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in ranking):
        return False
    return sorted(ranking) == list(range(count))


def unscored(instance_id: str, annotator: str, ranking: Sequence[int]) -> Annotation:
    """A ranking from a source without scores, for example people."""
    return Annotation(instance_id, annotator, list(ranking), [math.nan] * len(ranking), False)


def to_table(rankings: Iterable[Annotation]) -> pd.DataFrame:
    """One row per ranking (columns :data:`COLUMNS`)."""
    import pandas as pd

    return pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in rankings], columns=list(COLUMNS))


def from_table(table: pd.DataFrame) -> list[Annotation]:
    """Inverse of :func:`to_table`.

    Raises:
        DataError: if a row contains other values than :func:`to_table` writes; it names the instance.
    """
    return [_annotation(row) for row in table[list(COLUMNS)].to_dict("records")]


def _annotation(row: Mapping[Hashable, Any]) -> Annotation:
    try:
        ranking, scores = [index(position) for position in row["ranking"]], [float(score) for score in row["scores"]]
        if not is_permutation(ranking, len(scores)):
            raise ValueError(f"the ranking {ranking} does not name each of {len(scores)} candidates once")
        return Annotation(
            instance_id=str(row["instance_id"]),
            annotator=str(row["annotator"]),
            ranking=ranking,
            scores=scores,
            tied=bool(row["tied"]),
        )
    except (TypeError, ValueError) as error:
        name = row["instance_id"]
        raise DataError(
            f"rankings: instance {name}: not a row as `dvc repro annotations` writes it ({error}); run it"
        ) from None


def adjudicate(rankings: Iterable[Annotation], undecided: Mapping[str, int] | None = None) -> dict[str, Annotation]:
    """One ranking per instance: candidates by mean rank over its annotators (Borda count), then by position.

    Scores are means. ``tied`` is true if an annotator tied candidates, or if two candidates have the same mean rank.
    An instance has no ranking if more annotators could not tell than ranked it.

    Args:
        undecided: number of annotators per instance who could not tell.

    Raises:
        DataError: if two annotators rank different numbers of candidates of one instance.
    """
    votes: dict[str, list[Annotation]] = {}
    for vote in rankings:
        votes.setdefault(vote.instance_id, []).append(vote)
    unsure = undecided or {}
    return {
        name: _vote(name, instance_votes)
        for name, instance_votes in votes.items()
        if len(instance_votes) >= unsure.get(name, 0)
    }


def _vote(instance_id: str, instance_votes: list[Annotation]) -> Annotation:
    if len(instance_votes) == 1:
        return instance_votes[0]
    count = len(instance_votes[0].ranking)
    if any(len(vote.ranking) != count for vote in instance_votes):
        raise DataError(f"instance {instance_id}: its annotators rank different numbers of candidates")
    ranks = [sum(vote.ranking.index(n) for vote in instance_votes) / len(instance_votes) for n in range(count)]
    scores = [sum(vote.scores[n] for vote in instance_votes) / len(instance_votes) for n in range(count)]
    order = sorted(range(count), key=lambda n: (ranks[n], n))
    tied = len(set(ranks)) < count or any(vote.tied for vote in instance_votes)
    return Annotation(instance_id, ADJUDICATED, order, scores, tied)
