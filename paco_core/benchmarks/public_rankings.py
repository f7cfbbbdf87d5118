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


def judge_from_file(label: str, path: Path, instances: Sequence[Instance]) -> Judgement:
    """Scores that a judge gave elsewhere (DreamSim, a closed model): JSON Lines of reference, candidate, score.

    A pair without a row is a failure and counted; a distance must be turned into a similarity first.

    Raises:
        DataError: naming file and line, when a row lacks a field, or its score is not a finite number.
    """
    known: dict[tuple[str, str], float] = {}
    for number, row in read_jsonl(path):
        pair = (_text(path, number, row, "reference"), _text(path, number, row, "candidate"))
        score = row.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float) or not abs(score) <= sys.float_info.max:
            raise DataError(f"{path}:{number}: score {score!r} is not a finite number")
        known[pair] = float(score)
    judged = Judgement(label, [], asked=len(known))
    for instance in instances:
        found = tuple(known.get((instance.reference, candidate), math.nan) for candidate in instance.candidates)
        judged.causes["not in the file"] += sum(map(math.isnan, found))
        judged.scores.append(found)
    judged.causes = +judged.causes
    return judged


def _text(path: Path, number: int, row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise DataError(f"{path}:{number}: {name} is {value!r}, expected a string")
    return str(value)
