"""Rankings made elsewhere: JSON Lines, checked line by line, or an export of Label Studio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.votes import Annotation, Task, Votes, orders
from paco_core.io.files import DataError, read_jsonl


def votes(task: Task) -> Votes:
    """The rankings of ``annotations.file``: ``.json`` is an export of Label Studio, all else JSON Lines.

    Raises:
        DataError: when the parameters name no file, or a row is invalid (with file and line).
    """
    if task.params.file is None:
        raise DataError("annotations.source 'import' needs annotations.file, a file of rankings")
    file = task.root / task.params.file
    if file.suffix == ".json":
        return read_export(file, task.sizes())
    return Votes(list(read_rankings(file, task.sizes())))


def read_rankings(file: Path, sizes: Mapping[str, int]) -> Iterator[Annotation]:
    """Rows of a JSON Lines file: instance_id, annotator, ranking and, if known, scores.

    Args:
        sizes: number of candidates of each known instance.

    Raises:
        DataError: naming file and line of a row with a missing key, an unknown instance, a ranking that does
            not name each candidate once, or a second ranking of one instance by one annotator.
    """
    seen: dict[tuple[str, str], int] = {}
    for number, row in read_jsonl(file):
        place = f"{file}:{number}"
        if missing := [key for key in ("instance_id", "annotator", "ranking") if key not in row]:
            raise DataError(f"{place}: key {missing[0]!r} is missing")
        key = (str(row["instance_id"]), str(row["annotator"]))
        if key[0] not in sizes:
            raise DataError(f"{place}: there is no instance {key[0]}; run `dvc repro rankings`")
        if key in seen:
            raise DataError(
                f"{place}: annotator {key[1]} ranks instance {key[0]} a second time (first on line {seen[key]})"
            )
        seen[key] = number
        count, ranking = sizes[key[0]], row["ranking"]
        if not orders(ranking, count):
            raise DataError(f"{place}: ranking {ranking!r} does not order candidates 0 to {count - 1}, each once")
        scores = _scores(row.get("scores"), count, place)
        known = [score for score in scores if not math.isnan(score)]
        yield Annotation(*key, ranking, scores, len(set(known)) < len(known))


def _scores(given: object, count: int, place: str) -> list[float]:
    if given is None:
        return [math.nan] * count
    numbers = given if isinstance(given, list) else []
    if len(numbers) != count or not all(score is None or _is_score(score) for score in numbers):
        raise DataError(
            f"{place}: scores {given!r} are not one number from 0 to 1, or null, for each of {count} candidates"
        )
    return [math.nan if score is None else float(score) for score in numbers]


def _is_score(given: object) -> bool:
    return isinstance(given, int | float) and not isinstance(given, bool) and 0 <= given <= 1
