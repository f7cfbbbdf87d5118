"""Votes, and how several of one instance become one ranking."""

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

    ``ranking`` holds candidate positions, best first; ``scores`` one number a candidate, 0 to 1, where 1
    means wholly consistent (NaN where the source has none); ``tied`` tells that some candidates were told
    apart by a tie rule only.
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
    """What a source is asked to rank.

    Args:
        instances: columns ``instance_id``, ``reference``, ``candidates``.
        root: where relative paths of the parameters begin.
        advance: called with how many units (of the source's own choice) are done.
        say: receives a plain line for the log.
    """

    instances: pd.DataFrame
    panels: PanelStore
    params: AnnotationsParams
    root: Path = Path()
    advance: Callable[[int], object] = lambda _count: None
    say: Callable[[str], object] = lambda _line: None

    def sizes(self) -> dict[str, int]:
        """Number of candidates of each instance."""
        return {name: len(candidates) for name, _, candidates in instance_rows(self.instances)}


@dataclass
class Votes:
    """What a source gave.

    ``undecided`` counts, by instance, those who looked and could not tell; ``counts`` what else the source has to
    report.
    """

    rankings: list[Annotation]
    undecided: Counter[str] = field(default_factory=Counter)
    counts: dict[str, float] = field(default_factory=dict)


InstanceRow = tuple[str, str, list[str]]


def instance_rows(instances: pd.DataFrame) -> list[InstanceRow]:
    """(instance id, reference, candidates) of each row."""
    columns = instances[["instance_id", "reference", "candidates"]]
    return [(str(name), str(ref), list(refs)) for name, ref, refs in columns.itertuples(index=False)]


def orders(ranking: object, count: int) -> bool:
    """Whether a value names each of ``count`` candidates once."""
    if not isinstance(ranking, list) or not all(isinstance(n, int) and not isinstance(n, bool) for n in ranking):
        return False
    return sorted(ranking) == list(range(count))


def unscored(instance_id: str, annotator: str, ranking: Sequence[int]) -> Annotation:
    """A ranking from a source that gives no scores, as people do."""
    return Annotation(instance_id, annotator, list(ranking), [math.nan] * len(ranking), False)


def to_table(rankings: Iterable[Annotation]) -> pd.DataFrame:
    """A row a ranking (columns :data:`COLUMNS`)."""
    import pandas as pd

    return pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in rankings], columns=list(COLUMNS))


def from_table(table: pd.DataFrame) -> list[Annotation]:
    """Inverse of :func:`to_table`.

    Raises:
        DataError: naming the instance of a row that holds other values than :func:`to_table` writes.
    """
    return [_annotation(row) for row in table[list(COLUMNS)].to_dict("records")]


def _annotation(row: Mapping[Hashable, Any]) -> Annotation:
    try:
        ranking, scores = [index(position) for position in row["ranking"]], [float(score) for score in row["scores"]]
        if not orders(ranking, len(scores)):
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
    """One order an instance: candidates by mean rank over its annotators (Borda count), then by position.

    Scores are means; ``tied`` holds when an annotator tied candidates or two have the same mean rank. An
    instance that more annotators found undecidable than ranked gets none.

    Raises:
        DataError: when two annotators rank different numbers of candidates of one instance.
    """
    votes: dict[str, list[Annotation]] = {}
    for vote in rankings:
        votes.setdefault(vote.instance_id, []).append(vote)
    unsure = undecided or {}
    return {name: _vote(name, given) for name, given in votes.items() if len(given) >= unsure.get(name, 0)}


def _vote(instance_id: str, given: list[Annotation]) -> Annotation:
    if len(given) == 1:
        return given[0]
    count = len(given[0].ranking)
    if any(len(vote.ranking) != count for vote in given):
        raise DataError(f"instance {instance_id}: its annotators rank different numbers of candidates")
    ranks = [sum(vote.ranking.index(n) for vote in given) / len(given) for n in range(count)]
    scores = [sum(vote.scores[n] for vote in given) / len(given) for n in range(count)]
    order = sorted(range(count), key=lambda n: (ranks[n], n))
    tied = len(set(ranks)) < count or any(vote.tied for vote in given)
    return Annotation(instance_id, ADJUDICATED, order, scores, tied)
