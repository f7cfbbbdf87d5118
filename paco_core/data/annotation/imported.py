"""Rankings made elsewhere: JSON Lines, checked line by line, or an export of Label Studio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.votes import Annotation, Task, Votes, orders
from paco_core.io.files import DataError, read_jsonl
from paco_core.io.rejected import Rejected


def votes(task: Task) -> Votes:
    """The rankings of ``annotations.file``: ``.json`` is an export of Label Studio, all else JSON Lines.

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
    """Rows of a JSON Lines file: instance_id, annotator, ranking and, if known, scores.

    Args:
        sizes: number of candidates of each known instance.
        rejected: takes rows with a missing key, an unknown instance, a ranking that does not name each candidate once,
            or a second ranking of one instance by one annotator.
    """
    seen: dict[tuple[str, str], int] = {}
    for number, row in read_jsonl(file, rejected.lines_of(file)):
        try:
            found = _annotation(row, sizes)
            key = found.instance_id, found.annotator
            if key in seen:
                raise DataError(
                    f"duplicate: annotator {key[1]} ranks instance {key[0]} a second time (first on line {seen[key]})"
                )
        except DataError as error:
            rejected.add(f"{file}:{number}", str(error))
            continue
        seen[key] = number
        yield found


def _annotation(row: Mapping[str, Any], sizes: Mapping[str, int]) -> Annotation:
    if missing := [key for key in ("instance_id", "annotator", "ranking") if key not in row]:
        raise DataError(f"record: key {missing[0]!r} is missing")
    instance_id, ranking = str(row["instance_id"]), row["ranking"]
    if instance_id not in sizes:
        raise DataError(f"instance: there is no instance {instance_id}; run `dvc repro rankings`")
    count = sizes[instance_id]
    if not orders(ranking, count):
        raise DataError(f"ranking: {ranking!r} does not order candidates 0 to {count - 1}, each once")
    scores = _scores(row.get("scores"), count)
    known = [score for score in scores if not math.isnan(score)]
    return Annotation(instance_id, str(row["annotator"]), ranking, scores, len(set(known)) < len(known))


def _scores(given: object, count: int) -> list[float]:
    if given is None:
        return [math.nan] * count
    numbers = given if isinstance(given, list) else []
    if len(numbers) != count or not all(score is None or _is_score(score) for score in numbers):
        raise DataError(f"scores: {given!r} are not one number from 0 to 1, or null, for each of {count} candidates")
    return [math.nan if score is None else float(score) for score in numbers]


def _is_score(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1
