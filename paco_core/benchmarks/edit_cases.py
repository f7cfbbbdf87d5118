"""Where the cases of EditReward-Bench come from: the public data set, or the embedded world."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyarrow import parquet

from paco_core.benchmarks.edit_reward import DIMENSIONS, Case
from paco_core.io.files import DataError, digest, inside
from paco_core.io.pictures import decode_image, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.tables import text
from paco_core.io.text import not_blank, validate_marks
from paco_core.storybook.edit_comparisons import EditComparison, edit_comparisons

if TYPE_CHECKING:
    from PIL.Image import Image

COLUMNS = ("key", "instruction", "input_image", "output_images", "task_type", "dimension")


def drawn_cases(count: int, size: int, seed: int) -> list[Case]:
    """Cases of the embedded world, drawn at ``size`` x ``size`` pixels."""

    def pictures(edit: EditComparison) -> Callable[[], tuple[Image, Image, Image]]:
        return lambda: (
            edit.picture(edit.before, size),
            edit.picture(edit.better, size),
            edit.picture(edit.worse, size),
        )

    return [
        Case(e.id, e.task_type, e.dimension, e.instruction, digest([str(e.before), e.instruction]), pictures(e))
        for e in edit_comparisons(count, seed)
    ]


def read_public(source: Path) -> tuple[list[Case], Rejected]:
    """Cases of a folder in the layout of the public data set, and the rows that cannot be used: Parquet at any depth.

    Columns: ``key`` (two), ``instruction``, ``input_image``, ``output_images`` (two, the better first),
    ``task_type``, ``dimension``; pictures are stored as {bytes, path}. They are decoded once to see that they are
    whole, and again when a case is asked.

    Raises:
        DataError: when there is no Parquet file, one is damaged or lacks a column, or no row can be used.
    """
    files = sorted(source.rglob("*.parquet"))
    if not files:
        raise DataError(f"{source}: no Parquet file there; expected the folder of EditReward-Bench")
    cases, seen, rejected = [], set[tuple[str, str]](), Rejected()
    for file in files:
        reader = _Pictures(file)
        for row, entry in enumerate(reader.entries()):
            try:
                case = _case(entry, reader.pictures(row))
                if (case.id, case.dimension) in seen:
                    raise DataError(f"duplicate: {case.id} was compared by {case.dimension} in an earlier row")
                case.pictures()
            except DataError as error:
                rejected.add(f"{file}: row {row}", str(error))
                continue
            seen.add((case.id, case.dimension))
            cases.append(case)
    if not cases:
        names = ", ".join(str(file) for file in files[:3]) + (" and others" if len(files) > 3 else "")
        raise DataError(f"{names}: none of the {len(rejected)} rows can be used{rejected.example}")
    return cases, rejected


def _case(entry: Mapping[str, Any], pictures: Callable[[], tuple[Image, Image, Image]]) -> Case:
    keys, dimension = entry["key"], entry["dimension"]
    if not isinstance(keys, list) or len(keys) != 2:
        raise DataError(f"record: key is {keys!r}, expected two")
    if dimension not in DIMENSIONS:
        raise DataError(f"record: dimension {dimension!r} is not one of {', '.join(DIMENSIONS)}")
    if not isinstance(entry["instruction"], str):
        raise DataError("record: the instruction is not a string")
    try:
        validate_marks(not_blank(entry["instruction"]))
        names, task_type = [text(key, "key") for key in keys], text(entry["task_type"], "task_type")
    except DataError as error:
        raise DataError(f"record: {error}") from None
    except ValueError as error:
        raise DataError(f"record: instruction {error}") from None
    return Case(
        id=" > ".join(names),
        task_type=task_type,
        dimension=str(dimension),
        instruction=str(entry["instruction"]),
        group=digest(entry["instruction"]),
        pictures=pictures,
    )


class _Pictures:
    """Pictures of one Parquet file, one row group in memory at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._whole():
            self.file = parquet.ParquetFile(path)
        names = self.file.schema_arrow.names
        if missing := [name for name in COLUMNS if name not in names]:
            raise DataError(f"{path}: column {', '.join(missing)} is missing; it has {', '.join(names)}")
        self._group = -1
        self._rows: Sequence[dict[str, Any]] = ()

    @contextmanager
    def _whole(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # pyarrow raises several types
            cause = " ".join(str(error).split())
            raise DataError(
                f"{self.path}: not a readable Parquet file ({cause}); replace it with a complete copy"
            ) from None

    def entries(self) -> list[dict[str, Any]]:
        """All rows without their pictures."""
        columns = [name for name in COLUMNS if not name.endswith(("_image", "_images"))]
        with self._whole():
            rows: list[dict[str, Any]] = self.file.read(columns=columns).to_pylist()
        return rows

    def pictures(self, row: int) -> Callable[[], tuple[Image, Image, Image]]:
        def read() -> tuple[Image, Image, Image]:
            entry = self._row(row)
            edited = entry["output_images"] if isinstance(entry["output_images"], list) else []
            if len(edited) != 2:
                raise DataError(f"picture: {len(edited)} edited pictures, expected two")
            stored = [entry["input_image"], *edited]
            source, better, worse = (self._decode(picture) for picture in stored)
            return source, better, worse

        return read

    def _decode(self, stored: object) -> Image:
        """A picture from its bytes; where there are none, from the file of its name beside the table."""
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
                    with self._whole():
                        self._rows, self._group = self.file.read_row_group(group, columns=columns).to_pylist(), group
                return self._rows[row - start]
            start += size
        raise DataError(f"{self.path}: no row {row}")
