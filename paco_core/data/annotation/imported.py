"""Rankings made elsewhere: a table, checked line by line, or an export of Label Studio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.votes import Annotation, RankingTask, Votes, orders
from paco_core.data.tables import numbers, read_rows, text
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected

KEYS = ("instance_id", "annotator", "ranking")


def votes(task: RankingTask) -> Votes:
    """The rankings of ``annotations.file``: ``.json`` is an export of Label Studio, all else a table.

    Rows that cannot be used are left out and counted.

    Raises:
        DataError: when the parameters name no file, or nothing of it can be used.
    """
    if task.params.file is None:
        raise DataError("annotations.source 'import' needs annotations.file, a file of rankings")
    file = task.root / task.params.file
    rejected = Rejected()
    if file.suffix == ".json":
        found = read_export(file, task.sizes(), rejected)
    else:
        found = Votes(list(read_rankings(file, task.sizes(), rejected)))
    if rejected and not found.rankings:
        raise DataError(f"{file}: none of its rankings can be used{rejected.example}")
    rejected.print(task.say)
    found.counts |= rejected.figures()
    return found


def read_rankings(file: Path, sizes: Mapping[str, int], rejected: Rejected) -> Iterator[Annotation]:
    """Rows of a table (CSV, TSV, JSON Lines, Parquet): instance_id, annotator, ranking and, if known, scores.

    A cell of CSV spells a list as ``[2, 0, 1]`` or ``2 0 1``.

    Args:
        sizes: number of candidates of each known instance.
        rejected: takes rows with a missing key, an unknown instance, a ranking that does not name each candidate once,
            or a second ranking of one instance by one annotator.
    """
    seen: dict[tuple[str, str], str] = {}
    for place, row in read_rows(file, rejected, KEYS):
        try:
            found = _annotation(row, sizes)
            key = found.instance_id, found.annotator
            if key in seen:
                first = f"line {seen[key]}" if seen[key].isdecimal() else seen[key]
                raise DataError(
                    f"duplicate: annotator {key[1]} ranks instance {key[0]} a second time (first on {first})"
                )
        except DataError as error:
            rejected.add(place, str(error))
            continue
        seen[key] = place.rpartition(":")[2].strip()
        yield found


def _annotation(row: Mapping[str, Any], sizes: Mapping[str, int]) -> Annotation:
    if missing := [key for key in KEYS if row.get(key) in (None, "")]:
        raise DataError(f"record: key {missing[0]!r} is missing")
    try:
        instance_id, annotator = (text(row[key], key) for key in ("instance_id", "annotator"))
    except DataError as error:
        raise DataError(f"record: {error}") from None
    if instance_id not in sizes:
        raise DataError(f"instance: there is no instance {instance_id}; run `dvc repro rankings`")
    count, ranking = sizes[instance_id], numbers(row["ranking"])
    if not isinstance(ranking, list) or not orders(ranking, count):
        raise DataError(f"ranking: {row['ranking']!r} does not order candidates 0 to {count - 1}, each once")
    scores = _scores(row.get("scores"), count)
    known = [score for score in scores if not math.isnan(score)]
    return Annotation(instance_id, annotator, ranking, scores, len(set(known)) < len(known))


def _scores(given: object, count: int) -> list[float]:
    if given is None:
        return [math.nan] * count
    found = numbers(given)
    listed = found if isinstance(found, list) else []
    if len(listed) != count or not all(score is None or _is_score(score) for score in listed):
        raise DataError(f"scores: {given!r} are not one number from 0 to 1, or null, for each of {count} candidates")
    return [math.nan if score is None else float(score) for score in listed]


def _is_score(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1
