"""`paco score --table`: scores of each pair or set of a table. After a kill, finished rows are not scored again."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.api.judge import Judge
from paco_core.api.judge_model import judge_model
from paco_core.cli.score import ScoreOptions
from paco_core.config.params import PARAMS_FILE, load
from paco_core.data import tables
from paco_core.data.llm.journal import Journal
from paco_core.data.records.records import parse_ref
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import list_pictures, read_image
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.io.text import validate_marks
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.panels import PanelStore

PAIRS = 64  # scored between two times that results are kept; their pictures are in memory at once
PAIR, SET = ("first", "second"), "pictures"
SEPARATOR = ";"  # between the pictures of a set in a cell of CSV
UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class ScoreRow:
    """A row of the table: number, location, names of its images (two for a pair), and theme."""

    number: int
    place: str
    names: tuple[str, ...]
    theme: str | None

    @property
    def pairs(self) -> int:
        return len(self.names) * (len(self.names) - 1) // 2


def score_table(
    root: Path | None,
    table: Path,
    options: ScoreOptions,
    out: Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Answer:
    """Score each row of a table, and write the table with the columns ``score``, ``cause`` and ``reasons``.

    Finished rows are stored next to the result, in a file that is removed at the end. After a kill, the same command
    skips a finished row if the model, the row's images (by size and time) and its theme are unchanged.

    Args:
        root: root of the project; None outside of a project.
        table: Parquet, CSV, TSV or JSON Lines. Pairs have the columns ``first`` and ``second``. Sets have the column
            ``pictures``: a list of names, a folder, or (in CSV and TSV) names separated by semicolons. A name is a file
            relative to the table's folder, or a panel of this project, ``<grid>#<number>``. The column ``theme`` is
            optional. Other columns are written unchanged.
        options: ``theme`` applies to all rows if the table has no such column.
        out: the result, in the table's format; None writes ``NAME.scored.EXT`` next to the table.

    Returns:
        A one-line summary.

    Raises:
        DataError: with file and line, if a column, an image or the model is missing, or ``out`` cannot be written.
            Nothing is scored then.
    """
    target = checked(
        out or table.with_name(f"{table.stem}.scored{table.suffix}"), "file", suffixes=[table.suffix], inputs=[table]
    )
    source = tables.open_table(table, ())
    rows = _rows(source, table, _Pictures(root, table), options.theme)
    sets = SET in source.columns
    if sets and options.reasons:
        raise DataError("--reasons goes with pairs; a set of pictures has a score, and no answer in words")
    device, threads = _place(root)
    judge = judge_model(options.model, project=root)
    with _journal(target) as journal:
        keys = _keys(rows, judge.identity, options.reasons, _Pictures(root, table))
        stored = {entry["key"]: entry["found"] for entry in journal.rows}
        results = {row.number: stored[key] for row, key in zip(rows, keys, strict=True) if key in stored}
        left = [row for row in rows if row.number not in results]
        if results and log is not None:
            log(f"{table.name}: {len(results)} of {len(rows)} rows were scored before, and are not scored again")
        parts = _parts(left)
        make = partial(_Scoring, root, table, options)
        total = sum(row.pairs for row in left)
        with Progress(total, table.name, "pairs", log) as progress:
            for number, part_results in launchers.map_pieces(
                parts, make, gpu=device.startswith("cuda"), threads=threads
            ):
                for row, result in zip(parts[number], part_results, strict=True):
                    results[row.number] = result
                    if result["cause"] is None:  # a failure may be temporary, so it is not stored
                        journal.append({"key": keys[row.number], "found": result})
                progress.advance(sum(row.pairs for row in parts[number]))
        names = ["score", "cause", *(["reasons"] if options.reasons else [])]
        columns = {name: [results[row.number][name] for row in rows] for name in names}
        columns["score"] = [math.nan if value is None else value for value in columns["score"]]
        source.write(target, columns)
    return _answer(target, columns["score"], "sets" if sets else "pairs")


def _answer(target: Path, scores: Sequence[float], noun: str) -> Answer:
    values = [value for value in scores if not math.isnan(value)]
    mean = sum(values) / len(values) if values else None
    unscored = len(scores) - len(values)
    mean_text = "no score" if mean is None else f"mean score {mean:.4f}"
    figures = {"table": target, noun: len(scores), "without_score": unscored, "mean": mean}
    return Answer(f"{target}: {len(scores)} {noun}, {unscored} without a score, {mean_text}", figures)


@contextmanager
def _journal(target: Path) -> Iterator[Journal]:
    """Finished rows of a table, stored next to its result. The file is removed if the block succeeds."""
    place = target.with_name(f"{target.name}{UNFINISHED}")
    with Journal(checked(place, "file")) as journal:
        yield journal
        place.unlink()


def _rows(source: tables.ReadTable, table: Path, pictures: _Pictures, theme: str | None) -> list[ScoreRow]:
    """The rows of the table. Each image must exist.

    Raises:
        DataError: as :func:`score_table`.
    """
    if missing := [name for name in PAIR if name not in source.columns and SET not in source.columns]:
        has = ", ".join(source.columns)
        raise DataError(
            f"{table}: column {', '.join(missing)} is missing; a table of pairs has first and second, one of sets has "
            f"pictures, this one has {has}"
        )
    if SET in source.columns and (pair_columns := [name for name in PAIR if name in source.columns]):
        raise DataError(f"{table}: has the columns {SET} and {pair_columns[0]}; pairs and sets are two tables")
    if not len(source):
        raise DataError(f"{table}: holds no row")
    if SET in source.columns:
        names_by_row = [pictures.of_set(value, source.place(row)) for row, value in enumerate(source.values(SET))]
    else:
        columns = [tables.text_column(source, side, table) for side in PAIR]
        names_by_row = [list(names) for names in zip(*columns, strict=True)]
    themes = tables.text_column(source, "theme", table) if "theme" in source.columns else [theme] * len(source)
    rows = []
    for number, (names, words) in enumerate(zip(names_by_row, themes, strict=True)):
        place = source.place(number)
        try:
            validate_marks(words or "")
        except ValueError as error:
            raise DataError(f"{place}: theme {error}") from None
        rows.append(ScoreRow(number, place, tuple(pictures.checked(name, place) for name in names), words))
    return rows


def _keys(rows: Sequence[ScoreRow], judge: str, reasons: bool, pictures: _Pictures) -> list[str]:
    """Keys of the rows' results: everything that a score depends on."""
    states = {name: pictures.state(name) for name in {name for row in rows for name in row.names}}
    return [digest([judge, reasons, row.theme, [states[name] for name in row.names]], 32) for row in rows]


def _parts(rows: Sequence[ScoreRow]) -> list[list[ScoreRow]]:
    """Batches of rows with about :data:`PAIRS` pairs. A larger set is a separate batch."""
    parts: list[list[ScoreRow]] = []
    room = 0
    for row in rows:
        if not parts or row.pairs > room:
            parts.append([])
            room = PAIRS
        parts[-1].append(row)
        room -= row.pairs
    return parts


def _place(root: Path | None) -> tuple[str, int]:
    """Device and threads of a worker on a cluster."""
    if root is None or not (root / PARAMS_FILE).is_file():
        return "cpu", 1
    params = load(root / PARAMS_FILE)
    return params.reward.device, params.threads


class _Scoring:
    """Scores batches of a table, in this process or in a worker. It loads its judge once."""

    def __init__(self, root: Path | None, table: Path, options: ScoreOptions, _: int) -> None:
        self._pictures, self._reasons = _Pictures(root, table), options.reasons
        self._judge = Judge(options.model, project=root)

    def __call__(self, rows: Sequence[ScoreRow]) -> list[dict[str, Any]]:
        """``score``, ``cause`` and, if requested, ``reasons`` of each row. A set's score is the mean of its pairs."""
        places = {name: row.place for row in rows for name in row.names}
        images = {name: self._pictures.picture(name, place) for name, place in places.items()}
        pairs = [(images[first], images[second]) for row in rows for first, second in combinations(row.names, 2)]
        themes = [row.theme for row in rows for _ in range(row.pairs)]
        scores = iter(self._judge.scores(pairs, theme=themes))
        why = self._judge.reasons(pairs, theme=themes) if self._reasons else None
        results: list[dict[str, Any]] = []
        for number, row in enumerate(rows):
            mine = [next(scores) for _ in range(row.pairs)]
            cause = next((score.cause for score in mine if score.failed), None)
            mean = None if cause is not None else sum(score.value for score in mine) / len(mine)
            results.append({"score": mean, "cause": cause, **({} if why is None else {"reasons": why[number]})})
        return results


class _Pictures:
    """The images of the cells of a table."""

    def __init__(self, root: Path | None, table: Path) -> None:
        self._root, self._table = root, table
        self._store: PanelStore | None = None  # opened by the first panel that is named

    def of_set(self, value: object, place: str) -> list[str]:
        """The image names in a cell of a set.

        Raises:
            DataError: with the row, if there are fewer than two names, or the cell has another type.
        """
        if isinstance(value, str):
            folder = self._table.parent / value
            if folder.is_dir():
                names = [str(file.relative_to(self._table.parent)) for file in list_pictures(folder)]
            else:
                names = [name.strip() for name in value.split(SEPARATOR) if name.strip()]
        elif isinstance(value, list) and all(isinstance(name, str) for name in value):
            names = value
        else:
            raise DataError(f"{place}: {SET} is {str(value)[:60]!r}, expected names of pictures, or of a folder")
        if len(names) < 2:
            raise DataError(f"{place}: {SET} names {len(names)} picture, a set has two or more")
        return names

    def checked(self, name: str | None, row: str) -> str:
        """The name, if its image exists.

        Raises:
            DataError: with the row, if the image does not exist.
        """
        place = f"{row}: {name}"
        if not name:
            raise DataError(f"{place}: no picture is named")
        if not self._is_file(name):
            if "#" not in name or self._root is None:
                raise DataError(f"{place}: no such picture (looked for {self._table.parent / name})")
            try:
                if parse_ref(name)[0] not in self._panels().grids.index.index:
                    raise DataError("no such grid in data/grids")
            except DataError as error:
                raise DataError(f"{place}: {error}") from None
        return name

    def picture(self, name: str, row: str) -> Image:
        """Read the image of a checked name.

        Raises:
            DataError: with the row, if the image is damaged.
        """
        place = f"{row}: {name}"
        if self._is_file(name):
            return read_image(self._table.parent / name, place)
        try:
            return self._panels().panel(name)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None

    def state(self, name: str) -> list[Any]:
        """Values that change if an image file changes, without reading it. For a panel, they are those of its shard."""
        file = self._table.parent / name
        if not self._is_file(name):
            file = Path(str(self._panels().grids.index.loc[parse_ref(name)[0], "folder"]))
        stat = file.stat()
        return [name, stat.st_size, stat.st_mtime_ns]

    def _is_file(self, name: str) -> bool:
        try:
            return (self._table.parent / name).is_file()
        except OSError:  # a name that is too long
            return False

    def _panels(self) -> PanelStore:
        from paco_core.data.records.panels import PanelStore

        assert self._root is not None
        self._store = self._store or PanelStore.below(self._root / paths.GRIDS)
        return self._store
