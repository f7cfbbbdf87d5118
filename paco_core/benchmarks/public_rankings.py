"""ConsistencyRank on the published benchmark's files, and with scores that a judge gave elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.benchmarks.consistency_rank import HeldOutRanking, Judgement, choose, instances_of
from paco_core.exchange import rank_bench
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.io.tables import number, read_rows, text

if TYPE_CHECKING:
    from paco_core.exchange.rank_bench import RankBench

KEYS = ("reference", "candidate", "score")


def read_public(folder: Path, limit: int | None = None, seed: int = 0) -> tuple[list[HeldOutRanking], RankBench]:
    """The rankings of a folder in the public layout, as :func:`read_instances` chooses them, and its pictures.

    Rankings that cannot be used are left out and counted (``rejected``).

    Raises:
        DataError: as :func:`paco_core.exchange.rank_bench.read`.
    """
    bench = rank_bench.read(folder)
    return choose(instances_of(bench.table, folder), limit, seed), bench


def judge_from_file(label: str, path: Path, instances: Sequence[HeldOutRanking], rejected: Rejected) -> Judgement:
    """Scores that a judge gave elsewhere (DreamSim, a closed model): a table of reference, candidate, score.

    A pair without a row is a failure and counted; a distance must be turned into a similarity first.

    Args:
        rejected: takes rows that lack a field, whose score is not a finite number, or whose pair was scored before.

    Raises:
        DataError: when no row can be used, or none is about a pair of the rankings.
    """
    known: dict[tuple[str, str], float] = {}
    for place, row in read_rows(path, rejected, KEYS):
        try:
            pair, score = _scored(row)
            if pair in known:
                raise DataError(f"duplicate: {pair[0]} and {pair[1]} were scored on an earlier line")
        except DataError as error:
            rejected.add(place, str(error))
            continue
        known[pair] = score
    if not known:
        raise DataError(f"{path}: none of its rows can be used{rejected.example}")
    judged = Judgement(label, [], asked=len(known))
    for instance in instances:
        found = tuple(known.get((instance.reference, candidate), math.nan) for candidate in instance.candidates)
        judged.causes["not in the file"] += sum(map(math.isnan, found))
        judged.scores.append(found)
    if all(math.isnan(score) for scores in judged.scores for score in scores):
        named = " and ".join(next(iter(known)))
        raise DataError(f"{path}: none of its {len(known)} pairs is one of the rankings', e.g. {named}")
    judged.causes = +judged.causes
    return judged


def _scored(row: dict[str, Any]) -> tuple[tuple[str, str], float]:
    try:
        reference, candidate = (text(row.get(name), name) for name in ("reference", "candidate"))
        if not reference or not candidate:
            raise DataError(f"{'candidate' if reference else 'reference'} is empty, expected a string")
        return (reference, candidate), number(row.get("score"), "score")
    except DataError as error:
        raise DataError(f"record: {error}") from None
