"""ConsistencyRank on the published benchmark's files, and with scores that a judge gave elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.benchmarks.consistency_rank import Instance, Judgement, choose, instances_of
from paco_core.exchange import rank_bench
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.rejected import Rejected

if TYPE_CHECKING:
    from paco_core.exchange.rank_bench import RankBench


def read_public(folder: Path, limit: int | None = None, seed: int = 0) -> tuple[list[Instance], RankBench]:
    """The rankings of a folder in the public layout, as :func:`read_instances` chooses them, and its pictures.

    Rankings that cannot be used are left out and counted (``rejected``).

    Raises:
        DataError: as :func:`paco_core.exchange.rank_bench.read`.
    """
    bench = rank_bench.read(folder)
    return choose(instances_of(bench.table, folder), limit, seed), bench


def judge_from_file(label: str, path: Path, instances: Sequence[Instance], rejected: Rejected) -> Judgement:
    """Scores that a judge gave elsewhere (DreamSim, a closed model): JSON Lines of reference, candidate, score.

    A pair without a row is a failure and counted; a distance must be turned into a similarity first.

    Args:
        rejected: takes rows that lack a field, whose score is not a finite number, or whose pair was scored before.

    Raises:
        DataError: when no row can be used.
    """
    known: dict[tuple[str, str], float] = {}
    for number, row in read_jsonl(path, rejected.lines_of(path)):
        try:
            pair, score = _scored(row)
            if pair in known:
                raise DataError(f"duplicate: {pair[0]} and {pair[1]} were scored on an earlier line")
        except DataError as error:
            rejected.add(f"{path}:{number}", str(error))
            continue
        known[pair] = score
    if not known:
        raise DataError(f"{path}: none of its rows can be used{rejected.example}")
    judged = Judgement(label, [], asked=len(known))
    for instance in instances:
        found = tuple(known.get((instance.reference, candidate), math.nan) for candidate in instance.candidates)
        judged.causes["not in the file"] += sum(map(math.isnan, found))
        judged.scores.append(found)
    judged.causes = +judged.causes
    return judged


def _scored(row: dict[str, Any]) -> tuple[tuple[str, str], float]:
    score = row.get("score")
    if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
        raise DataError(f"record: score {score!r} is not a finite number")
    return (_text(row, "reference"), _text(row, "candidate")), float(score)


def _text(row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise DataError(f"record: {name} is {value!r}, expected a string")
    return str(value)
