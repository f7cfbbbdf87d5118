"""Imported rankings: a table that is validated line by line, or an export of Label Studio."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from paco_core.data.annotation.label_studio import read_export
from paco_core.data.annotation.preference_files import is_pair_file, read_pairs
from paco_core.data.annotation.votes import Annotation, RankingTask, Votes, is_permutation
from paco_core.data.tables import parse_numbers, parse_text, read_rows
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected

KEYS = ("instance_id", "annotator", "ranking")


def votes(task: RankingTask) -> Votes:
    """The rankings of ``annotations.file``: ``.json`` is an export of Label Studio. Any other format is a
    table of rankings, or of pairs as :mod:`.preference_files` writes them.

    Rows that cannot be used are skipped and counted.

    Raises:
        DataError: if ``annotations.file`` is not set, or no row of the file can be used.
    """
    if task.params.file is None:
        raise DataError("annotations.source 'import' needs a file of rankings; set annotations.file")
    file = task.root / task.params.file
    rejected = Rejected()
    if file.suffix == ".json":
        votes_read = read_export(file, task.sizes(), rejected)
    elif is_pair_file(file):
        votes_read = Votes(read_pairs(file, task.instances, rejected))
    else:
        votes_read = Votes(list(read_imported_rankings(file, task.sizes(), rejected)))
    if rejected and not votes_read.rankings:
        raise DataError(f"{file}: none of its rankings can be used{rejected.example}")
    rejected.print(task.log)
    votes_read.counts |= rejected.figures()
    return votes_read


def read_imported_rankings(file: Path, sizes: Mapping[str, int], rejected: Rejected) -> Iterator[Annotation]:
    """Read a table (CSV, TSV, JSON Lines, Parquet) with instance_id, annotator, ranking and, if known, scores.

    In CSV, a list is written as ``[2, 0, 1]`` or ``2 0 1``.

    Args:
        sizes: number of candidates of each known instance.
        rejected: collects rows with a missing key, an unknown instance, a ranking that does not contain each candidate
            once, or a second ranking of one instance by one annotator.
    """
    first_places: dict[tuple[str, str], str] = {}
    for place, row in read_rows(file, rejected, KEYS):
        try:
            annotation = _annotation(row, sizes)
            key = annotation.instance_id, annotation.annotator
            if key in first_places:
                first = f"line {first_places[key]}" if first_places[key].isdecimal() else first_places[key]
                raise DataError(
                    f"duplicate: annotator {key[1]} ranks instance {key[0]} a second time (the first time on {first})"
                )
        except DataError as error:
            rejected.add(place, str(error))
            continue
        first_places[key] = place.rpartition(":")[2].strip()
        yield annotation


def _annotation(row: Mapping[str, Any], sizes: Mapping[str, int]) -> Annotation:
    if missing := [key for key in KEYS if row.get(key) in (None, "")]:
        raise DataError(f"record: key {missing[0]!r} is missing")
    try:
        instance_id, annotator = (parse_text(row[key], key) for key in ("instance_id", "annotator"))
    except DataError as error:
        raise DataError(f"record: {error}") from None
    if instance_id not in sizes:
        raise DataError(f"instance: there is no instance {instance_id}; run `dvc repro rankings`")
    count, ranking = sizes[instance_id], parse_numbers(row["ranking"])
    if not isinstance(ranking, list) or not is_permutation(ranking, count):
        raise DataError(f"ranking: {row['ranking']!r} does not order candidates 0 to {count - 1}, each once")
    scores = _scores(row.get("scores"), count)
    known_scores = [score for score in scores if not math.isnan(score)]
    return Annotation(instance_id, annotator, ranking, scores, len(set(known_scores)) < len(known_scores))


def _scores(value: object, count: int) -> list[float]:
    if value is None:
        return [math.nan] * count
    parsed = parse_numbers(value)
    scores = parsed if isinstance(parsed, list) else []
    if len(scores) != count or not all(score is None or _is_score(score) for score in scores):
        raise DataError(f"scores: {value!r} are not one number from 0 to 1, or null, for each of {count} candidates")
    return [math.nan if score is None else float(score) for score in scores]


def _is_score(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= 1
