"""Cases of the ranking benchmarks: files in the layouts of the public data sets, scores of other tools, drawn edits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from paco_core.benchmarks.edit_rankings import DIMENSIONS, EditCase
from paco_core.benchmarks.published import EDIT_BENCHMARKS, EDIT_REWARD_BENCH
from paco_core.benchmarks.rankings import CandidateScores, HeldOutRanking, parse_rankings, sample_rankings
from paco_core.data.tables import parse_number, parse_text, read_rows
from paco_core.exchange import rank_bench
from paco_core.exchange.mmrb2 import BENCHMARK_KEY
from paco_core.io.files import DataError, digest, inside
from paco_core.io.pictures import decode_image, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.text import not_blank, validate_marks
from paco_core.storybook.drawn_cases import EditComparison, edit_comparisons

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.exchange.rank_bench import RankBench

SCORE_KEYS = ("reference", "candidate", "score")
#: Columns of EditReward-Bench.
EDIT_COLUMNS = ("key", "instruction", "input_image", "output_images", "task_type", "dimension")


def read_rank_bench_rankings(
    folder: Path, limit: int | None = None, seed: int = 0
) -> tuple[list[HeldOutRanking], RankBench]:
    """The rankings of a folder in ConsistencyRank-Bench's layout, as :func:`sample_rankings` chooses, and its images.

    Rankings that cannot be used are left out and counted (``rejected``).

    Raises:
        DataError: as :func:`paco_core.exchange.rank_bench.read_rank_bench`.
    """
    bench = rank_bench.read_rank_bench(folder)
    return sample_rankings(parse_rankings(bench.table, folder), limit, seed), bench


def read_scores(label: str, path: Path, rankings: Sequence[HeldOutRanking], rejected: Rejected) -> CandidateScores:
    """Scores of another tool (DreamSim, a closed model): a table of reference, candidate, score.

    A pair without a row is a failure and counted. A distance must be turned into a similarity first.

    Args:
        rejected: collects rows that lack a field, whose score is not a finite number, or whose pair has a score.

    Raises:
        DataError: when no row can be used, or none is about a pair of the rankings.
    """
    scores: dict[tuple[str, str], float] = {}
    for place, row in read_rows(path, rejected, SCORE_KEYS):
        try:
            pair, score = _parse_score(row)
            if pair in scores:
                raise DataError(f"duplicate: {pair[0]} and {pair[1]} were scored on an earlier line")
        except DataError as error:
            rejected.add(place, str(error))
            continue
        scores[pair] = score
    if not scores:
        raise DataError(f"{path}: none of its rows can be used{rejected.example}")
    pairs = [[(ranking.reference, candidate) for candidate in ranking.candidates] for ranking in rankings]
    result = CandidateScores(label, [tuple(scores.get(pair, math.nan) for pair in row) for row in pairs])
    missing = sum(pair not in scores for row in pairs for pair in row)
    if missing == sum(map(len, pairs)):
        example = " and ".join(next(iter(scores)))
        raise DataError(f"{path}: none of its {len(scores)} pairs is one of the rankings', e.g. {example}")
    if missing:
        result.causes["not in the file"] = missing
    return result


def _parse_score(row: dict[str, Any]) -> tuple[tuple[str, str], float]:
    try:
        reference, candidate = (parse_text(row.get(name), name) for name in ("reference", "candidate"))
        if not reference or not candidate:
            raise DataError(f"{'candidate' if reference else 'reference'} is empty, expected a string")
        return (reference, candidate), parse_number(row.get("score"), "score")
    except DataError as error:
        raise DataError(f"record: {error}") from None


def draw_edit_cases(count: int, size: int, seed: int) -> list[EditCase]:
    """Cases of the embedded world, drawn at ``size`` x ``size`` pixels."""

    def images(edit: EditComparison) -> Callable[[], tuple[Image, Image, Image]]:
        return lambda: (
            edit.picture(edit.before, size),
            edit.picture(edit.better, size),
            edit.picture(edit.worse, size),
        )

    return [
        EditCase(e.id, e.task_type, e.dimension, e.instruction, digest([str(e.before), e.instruction]), images(e))
        for e in edit_comparisons(count, seed)
    ]


def read_edit_bench(source: Path) -> tuple[list[EditCase], Rejected]:
    """Cases of a folder in EditReward-Bench's layout, and the rows that cannot be used: Parquet at any depth.

    Columns: ``key`` (two), ``instruction``, ``input_image``, ``output_images`` (two, the better first),
    ``task_type``, ``dimension``; images are stored as {bytes, path}. They are decoded once to see that they are
    complete, and again when the case is scored.

    Raises:
        DataError: when there is no Parquet file, one is damaged or lacks a column, or no row can be used.
    """
    files = sorted(source.rglob("*.parquet"))
    if not files:
        raise DataError(f"{source}: no Parquet file there; expected the folder of EditReward-Bench")
    cases, keys, rejected = [], set[tuple[str, str]](), Rejected()
    for file in files:
        reader = _EditImages(file)
        for row, entry in enumerate(reader.entries()):
            try:
                case = _parse_case(entry, reader.loader(row))
                if (case.id, case.dimension) in keys:
                    raise DataError(f"duplicate: {case.id} was compared by {case.dimension} in an earlier row")
                case.images()
            except DataError as error:
                rejected.add(f"{file}: row {row}", str(error))
                continue
            keys.add((case.id, case.dimension))
            cases.append(case)
    if not cases:
        names = ", ".join(str(file) for file in files[:3]) + (" and others" if len(files) > 3 else "")
        raise DataError(f"{names}: none of the {len(rejected)} rows can be used{rejected.example}")
    return cases, rejected


def edit_benchmark_name(source: Path) -> str:
    """The name of the benchmark in a folder that :func:`read_edit_bench` reads.

    An import from another benchmark writes its name to the metadata of its Parquet file.

    Raises:
        DataError: if the name is unknown.
    """
    metadata = parquet.read_schema(min(source.rglob("*.parquet"))).metadata or {}
    name = metadata.get(BENCHMARK_KEY, EDIT_REWARD_BENCH.encode()).decode()
    if name not in EDIT_BENCHMARKS:
        raise DataError(f"{source}: benchmark {name!r} is unknown; expected one of {', '.join(EDIT_BENCHMARKS)}")
    return name


def _parse_case(entry: Mapping[str, Any], images: Callable[[], tuple[Image, Image, Image]]) -> EditCase:
    keys, dimension = entry["key"], entry["dimension"]
    if not isinstance(keys, list) or len(keys) != 2:
        raise DataError(f"record: key is {keys!r}, expected two")
    if dimension not in DIMENSIONS:
        raise DataError(f"record: dimension {dimension!r} is not one of {', '.join(DIMENSIONS)}")
    if not isinstance(entry["instruction"], str):
        raise DataError("record: the instruction is not a string")
    try:
        validate_marks(not_blank(entry["instruction"]))
        names, task_type = [parse_text(key, "key") for key in keys], parse_text(entry["task_type"], "task_type")
    except DataError as error:
        raise DataError(f"record: {error}") from None
    except ValueError as error:
        raise DataError(f"record: instruction {error}") from None
    return EditCase(
        id=" > ".join(names),
        task_type=task_type,
        dimension=str(dimension),
        instruction=str(entry["instruction"]),
        group=digest(entry["instruction"]),
        images=images,
    )


class _EditImages:
    """Images of one Parquet file, one row group in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._explain_errors():
            self.file = parquet.ParquetFile(path)
        names = self.file.schema_arrow.names
        if missing := [name for name in EDIT_COLUMNS if name not in names]:
            raise DataError(f"{path}: column {', '.join(missing)} is missing; it has {', '.join(names)}")
        self._group = -1
        self._rows: Sequence[dict[str, Any]] = ()

    @contextmanager
    def _explain_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # pyarrow raises several types  # noqa: BLE001
            cause = " ".join(str(error).split())
            raise DataError(
                f"{self.path}: not a readable Parquet file ({cause}); replace it with a complete copy"
            ) from None

    def entries(self) -> list[dict[str, Any]]:
        """All rows without their images."""
        columns = [name for name in EDIT_COLUMNS if not name.endswith(("_image", "_images"))]
        with self._explain_errors():
            rows: list[dict[str, Any]] = self.file.read(columns=columns).to_pylist()
        return rows

    def loader(self, row: int) -> Callable[[], tuple[Image, Image, Image]]:
        def load() -> tuple[Image, Image, Image]:
            entry = self._row(row)
            edited = entry["output_images"] if isinstance(entry["output_images"], list) else []
            if len(edited) != 2:
                raise DataError(f"picture: {len(edited)} edited pictures, expected two")
            stored = [entry["input_image"], *edited]
            source, better, worse = (self._decode(picture) for picture in stored)
            return source, better, worse

        return load

    def _decode(self, stored: object) -> Image:
        """An image from its bytes, or from the file of its name next to the table."""
        picture = stored if isinstance(stored, dict) else {}
        data = picture.get("bytes")
        name = picture.get("path")
        try:
            if isinstance(data, bytes):
                return decode_image(data, "embedded")
            if isinstance(name, str):
                return read_image(inside(self.path.parent, Path(name).name))
        except DataError as error:
            raise DataError(f"picture: {error}") from None
        raise DataError("picture: one is missing, expected {bytes, path}")

    def _row(self, row: int) -> dict[str, Any]:
        start = 0
        for group in range(self.file.num_row_groups):
            size = self.file.metadata.row_group(group).num_rows
            if row < start + size:
                if group != self._group:
                    columns = ["input_image", "output_images"]
                    with self._explain_errors():
                        self._rows, self._group = self.file.read_row_group(group, columns=columns).to_pylist(), group
                return self._rows[row - start]
            start += size
        raise DataError(f"{self.path}: no row {row}")
