"""Candidates ranked by consistency with their reference: by the embedded world's annotator, or from a file.

Every source gives the same rows: ``instance_id, annotator, ranking`` (candidate positions, best first),
``scores`` (one a candidate, 0 to 1, where 1 means wholly consistent; NaN where the source has none) and
``tied`` (some candidates were told apart by the tie rule only).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.dataset.panels import PanelStore
from paco_core.files import DataError, read_jsonl
from paco_core.params import AnnotationsParams

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.storybook.recogniser import Reading

COLUMNS = ("instance_id", "annotator", "ranking", "scores", "tied")
READ_BATCH = 256


@dataclass(frozen=True)
class Annotation:
    """One annotator's order of one instance's candidates."""

    instance_id: str
    annotator: str
    ranking: list[int]
    scores: list[float]
    tied: bool

    @property
    def all_tied(self) -> bool:
        """Whether the annotator is known to see no difference between any two candidates."""
        return all(score == self.scores[0] for score in self.scores)  # never with NaN


def annotate(
    instances: pd.DataFrame,
    panels: PanelStore,
    params: AnnotationsParams,
    root: Path = Path(),
    advance: Callable[[int], object] = lambda _count: None,
) -> pd.DataFrame:
    """Rankings of all instances (columns :data:`COLUMNS`).

    Args:
        root: where relative paths of the parameters begin.
        advance: is told how many panels were read.

    Raises:
        DataError: when the source has no model or file, or a row of the file is invalid (with its line).
    """
    import pandas as pd

    if params.source == "recogniser":
        if params.model is None:
            raise DataError("annotations.source 'recogniser' needs annotations.model, the recogniser's folder")
        rows = list(_recognised(instances, read_panels(instances, panels, root / params.model, advance)))
    else:
        if params.file is None:
            raise DataError("annotations.source 'import' needs annotations.file, a JSON Lines file of rankings")
        rows = list(_imported(instances, root / params.file))
    return pd.DataFrame([{name: getattr(row, name) for name in COLUMNS} for row in rows], columns=list(COLUMNS))


def read_panels(
    table: pd.DataFrame, panels: PanelStore, model: Path, advance: Callable[[int], object] = lambda _count: None
) -> dict[str, Reading]:
    """What the recogniser reads in every panel that a table names, each read once.

    The table names panels in ``reference`` and ``candidates``, or in ``first`` and ``second``.
    """
    from paco_core.storybook.recogniser import Recogniser

    if "candidates" in table:
        refs = set(table["reference"]).union(*table["candidates"])
    else:
        refs = set(table["first"]) | set(table["second"])
    recogniser = Recogniser.from_pretrained(model)
    ordered = sorted(refs)
    found: dict[str, Reading] = {}
    for start in range(0, len(ordered), READ_BATCH):
        part = ordered[start : start + READ_BATCH]
        found.update(zip(part, recogniser.read([panels.panel(ref) for ref in part]), strict=True))
        advance(len(part))
    return found


def rank(reference: Reading, candidates: Sequence[Reading]) -> tuple[list[int], list[float], bool]:
    """Order by the share of shared traits that agree with the reference, as read.

    Candidates with equal shares are ordered by how sure the reading is (sum over agreeing traits of the
    product of both probabilities, less that of the differing ones), then by position.

    Returns:
        Positions best first, the shares, and whether two candidates have the same share.
    """
    from paco_core.storybook.world import SHARED_TRAITS

    shares, sureness = [], []
    for candidate in candidates:
        agreeing = [trait for trait in SHARED_TRAITS if reference.word(trait) == candidate.word(trait)]
        signed = [
            reference.probability[trait] * candidate.probability[trait] * (1 if trait in agreeing else -1)
            for trait in SHARED_TRAITS
        ]
        shares.append(len(agreeing) / len(SHARED_TRAITS))
        sureness.append(sum(signed))
    order = sorted(range(len(candidates)), key=lambda n: (-shares[n], -sureness[n], n))
    return order, shares, len(set(shares)) < len(shares)


def _recognised(instances: pd.DataFrame, readings: dict[str, Reading]) -> Iterator[Annotation]:
    columns = instances[["instance_id", "reference", "candidates"]]
    for instance_id, reference, candidates in columns.itertuples(index=False):
        order, shares, tied = rank(readings[reference], [readings[ref] for ref in candidates])
        yield Annotation(str(instance_id), "recogniser", order, shares, tied)


def _imported(instances: pd.DataFrame, file: Path) -> Iterator[Annotation]:
    """Rows of a JSON Lines file: instance_id, annotator, ranking and, if known, scores."""
    sizes = {
        str(instance_id): len(candidates)
        for instance_id, candidates in zip(instances["instance_id"], instances["candidates"], strict=True)
    }
    seen: set[tuple[str, str]] = set()
    for number, row in read_jsonl(file):
        place = f"{file}:{number}"
        if missing := [key for key in ("instance_id", "annotator", "ranking") if key not in row]:
            raise DataError(f"{place}: key {missing[0]!r} is missing")
        key = (str(row["instance_id"]), str(row["annotator"]))
        if key[0] not in sizes:
            raise DataError(f"{place}: there is no instance {key[0]}; run `dvc repro rankings`")
        if key in seen:
            raise DataError(f"{place}: annotator {key[1]} ranks instance {key[0]} a second time")
        seen.add(key)
        count, ranking = sizes[key[0]], row["ranking"]
        if not _orders(ranking, count):
            raise DataError(f"{place}: ranking {ranking!r} does not order candidates 0 to {count - 1}")
        scores = _scores(row.get("scores"), count, place)
        known = [score for score in scores if not math.isnan(score)]
        yield Annotation(*key, ranking, scores, len(set(known)) < len(known))


def _scores(given: object, count: int, place: str) -> list[float]:
    if given is None:
        return [math.nan] * count
    numbers = given if isinstance(given, list) else []
    if len(numbers) != count or not all(score is None or isinstance(score, int | float) for score in numbers):
        raise DataError(f"{place}: scores {given!r} are not one number or null for each of {count} candidates")
    return [math.nan if score is None else float(score) for score in numbers]


def _orders(ranking: object, count: int) -> bool:
    if not isinstance(ranking, list) or not all(isinstance(n, int) for n in ranking):
        return False
    return sorted(ranking) == list(range(count))


def adjudicate(rankings: pd.DataFrame) -> dict[str, Annotation]:
    """One order an instance: candidates by mean rank over its annotators, then by position (Borda count).

    Scores are means; ``tied`` holds when an annotator tied candidates or two have the same mean rank.

    Raises:
        DataError: when two annotators rank different numbers of candidates of one instance.
    """
    votes: dict[str, list[Annotation]] = {}
    for row in rankings[list(COLUMNS)].to_dict("records"):
        vote = Annotation(
            instance_id=str(row["instance_id"]),
            annotator=str(row["annotator"]),
            ranking=[int(position) for position in row["ranking"]],
            scores=[float(score) for score in row["scores"]],
            tied=bool(row["tied"]),
        )
        votes.setdefault(vote.instance_id, []).append(vote)
    return {instance_id: _vote(instance_id, given) for instance_id, given in votes.items()}


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
    return Annotation(instance_id, "adjudicated", order, scores, tied)


def agreement(rankings: pd.DataFrame) -> float:
    """Mean Kendall tau over pairs of annotators of one instance; NaN when no instance has two."""
    taus = []
    for _, group in rankings.groupby("instance_id", sort=True):
        taus += [_kendall(list(a), list(b)) for a, b in combinations(group["ranking"], 2)]
    return sum(taus) / len(taus) if taus else math.nan


def _kendall(first: list[int], second: list[int]) -> float:
    """Kendall's tau of two orders of the same candidates, without ties."""
    pairs = list(combinations(first, 2))
    agreeing = sum(second.index(a) < second.index(b) for a, b in pairs)
    return 2 * agreeing / len(pairs) - 1
