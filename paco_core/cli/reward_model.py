"""`paco score`: two picture files, or a table of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.records.records import parse_ref
from paco_core.io import paths, tables
from paco_core.io.answer import Answer
from paco_core.io.files import DataError
from paco_core.io.pictures import read_image
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.reward_model.instructions import pair_question
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.runtime import launchers

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.panels import PanelStore
    from paco_core.reward_model.scorer import Scorer

BATCH = 256  # pairs whose pictures are in memory at once
Row = tuple[int, str, str, str | None]  # number, first, second, theme


def score_pair(
    root: Path, first: str | Path, second: str | Path, theme: str | None, model: str | Path | None, reasons: bool
) -> Answer:
    """The score of two picture files, followed by the model's reasons where they are asked for.

    Args:
        theme: asks with the template ``theme``; without it the template ``plain`` is used.
        model: a model folder; the merged reward of this project when None.

    Raises:
        DataError: when a picture or the model is missing.
    """
    pictures = [read_image(Path(path)) for path in (first, second)]
    query = PairQuery(pictures[0], pictures[1], question(theme))
    scorer = _scorer(root, model)
    (score,) = scorer.score([query])
    why = scorer.generate_reasons([query])[0] if reasons else None
    return Answer(
        f"{score.value:.4f}" + (f"\n{why}" if reasons else ""),
        {"score": score.value, "cause": score.cause, "reasons": why},
    )


def score_table(
    root: Path,
    table: Path,
    model: str | Path | None,
    reasons: bool,
    out: Path | None = None,
    *,
    theme: str | None = None,
    say: Callable[[str], None] | None = None,
) -> Answer:
    """Score every pair of a table and write it again with the columns ``score``, ``cause`` and ``reasons``.

    Args:
        table: Parquet, CSV, TSV or JSON Lines with the columns ``first`` and ``second`` (picture files relative to
            the table's folder, or panels of this project as ``<grid>#<number>``) and, where it has one, ``theme``.
            All three are texts (:mod:`paco_core.io.tables`); what else stands in the table is written back as it is.
        out: where the result goes, in the table's format; beside the table as ``NAME.scored.EXT`` when None.
        theme: for all rows, where the table has no such column.

    Returns:
        One line on what was done.

    Raises:
        DataError: naming file and row, when a column, a picture or the model is missing, or ``out`` cannot be written.
            Nothing is scored then.
    """
    target = checked(
        out or table.with_name(f"{table.stem}.scored{table.suffix}"), "file", suffixes=[table.suffix], inputs=[table]
    )
    given = tables.read(table, ("first", "second"))
    if not len(given):
        raise DataError(f"{table}: holds no pair")
    pictures = _Pictures(root, table)
    firsts, seconds = (tables.texts(given, side, table) for side in ("first", "second"))
    themes = tables.texts(given, "theme", table) if "theme" in given.columns else [theme] * len(given)
    rows: list[Row] = []
    for row, (first, second, words) in enumerate(zip(firsts, seconds, themes, strict=True)):
        rows.append((row, pictures.checked(first, row), pictures.checked(second, row), words))
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    place, made = _Place.of(root), dict[int, dict[str, list[Any]]]()
    with Progress(len(rows), table.name, "pairs", say) as progress:
        here = launchers.chosen() != "ray"
        make = partial(_Scoring, root, table, model, reasons, progress.advance if here else None)
        gpu = place.device.startswith("cuda")
        for number, found in launchers.spread(parts, make, gpu=gpu, threads=place.threads or 1):
            made[number] = found
            if not here:
                progress.advance(len(parts[number]))
    columns = {name: [value for n in range(len(parts)) for value in made[n][name]] for name in made[0]}
    given.write(target, columns)
    values = [value for value in columns["score"] if not math.isnan(value)]
    mean = sum(values) / len(values) if values else None
    unscored = len(rows) - len(values)
    told = "no score" if mean is None else f"mean score {mean:.4f}"
    figures = {"table": target, "pairs": len(rows), "without_score": unscored, "mean": mean}
    return Answer(f"{target}: {len(rows)} pairs, {unscored} without a score, {told}", figures)


class _Scoring:
    """Scores parts of a table, here or in a worker elsewhere; its model loads once.

    ``advance`` is called with the number of pairs just done, where somebody listens.
    """

    def __init__(
        self,
        root: Path,
        table: Path,
        model: str | Path | None,
        reasons: bool,
        advance: Callable[[int], None] | None,
        _: int,
    ) -> None:
        self._pictures, self._scorer = _Pictures(root, table), _scorer(root, model)
        self._reasons, self._advance = reasons, advance

    def __call__(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        show = self._pictures.picture
        queries = [PairQuery(show(a, n), show(b, n), question(theme)) for n, a, b, theme in rows]
        scores = self._scorer.score(queries, None if self._reasons else self._advance)
        found: dict[str, list[Any]] = {
            "score": [score.value for score in scores],
            "cause": [score.cause for score in scores],
        }
        if self._reasons:
            found["reasons"] = self._scorer.generate_reasons(queries)
            if self._advance is not None:
                self._advance(len(queries))
        return found


def question(theme: str | None) -> str:
    """The instruction for a pair with or without a theme."""
    return pair_question("theme", theme)


@dataclass(frozen=True)
class _Place:
    """Where a model scores."""

    device: str
    dtype: str
    threads: int | None

    @classmethod
    def of(cls, root: Path) -> _Place:
        """As params.yaml says; outside a project on a GPU, where there is one."""
        if (root / PARAMS_FILE).is_file():
            params = load(root / PARAMS_FILE)
            device, dtype, threads = params.serving.device, params.serving.dtype, params.threads
        else:
            import torch

            device, dtype, threads = "cuda" if torch.cuda.is_available() else "cpu", "auto", None
        if dtype == "auto":
            dtype = "bfloat16" if device.startswith("cuda") else "float32"
        return cls(device, dtype, threads)


def _scorer(root: Path, model: str | Path | None) -> Scorer:
    from paco_core.reward_model.golden import ask_golden
    from paco_core.reward_model.scorer import Scorer

    folder = root / (model or paths.REWARD_MERGED)
    if not folder.is_dir():
        raise DataError(f"{folder}: no reward model there; run `dvc repro reward_merged`, or name one with --model")
    place = _Place.of(root)
    scorer = Scorer(folder, device=place.device, dtype=place.dtype, threads=place.threads)
    ask_golden(folder, scorer, place.dtype)
    return scorer


class _Pictures:
    """The pictures that the cells of a table name."""

    def __init__(self, root: Path, table: Path) -> None:
        self._root, self._table = root, table
        self._store: PanelStore | None = None  # opened by the first panel that is named

    def checked(self, name: str | None, row: int) -> str:
        """The name, if there is such a picture.

        Raises:
            DataError: naming the row, when there is none.
        """
        place = f"{self._table}: row {row}: {name}"
        if not name:
            raise DataError(f"{place}: no picture is named")
        if not self._is_file(name):
            if "#" not in name:
                raise DataError(f"{place}: no such picture (looked for {self._table.parent / name})")
            try:
                if parse_ref(name)[0] not in self._panels().grids.index.index:
                    raise DataError("no such grid in data/grids")
            except DataError as error:
                raise DataError(f"{place}: {error}") from None
        return name

    def picture(self, name: str, row: int) -> Image:
        """The picture of a checked name.

        Raises:
            DataError: naming the row, when it is damaged.
        """
        place = f"{self._table}: row {row}: {name}"
        if self._is_file(name):
            return read_image(self._table.parent / name, place)
        try:
            return self._panels().panel(name)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None

    def _is_file(self, name: str) -> bool:
        try:
            return (self._table.parent / name).is_file()
        except OSError:  # a name that is too long
            return False

    def _panels(self) -> PanelStore:
        from paco_core.data.records.panels import PanelStore

        self._store = self._store or PanelStore.below(self._root / paths.GRIDS)
        return self._store
