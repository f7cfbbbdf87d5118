"""`paco score`: two picture files, or a table of pairs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.config.params import PARAMS_FILE, load
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.progress import Progress
from paco_core.io.shards import decode_image
from paco_core.io.targets import checked
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery
from paco_core.runtime import launchers

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.reward_model.scorer import Scorer

BATCH = 256  # pairs whose pictures are in memory at once
Row = tuple[int, str, str, str | None]  # number, first, second, theme
READERS = {".parquet": "read_parquet", ".csv": "read_csv", ".jsonl": "read_json"}


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
    pictures = [_picture(Path(path), str(path)) for path in (first, second)]
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
        table: Parquet, CSV or JSON Lines with the columns ``first`` and ``second`` (picture files relative to
            the table's folder, or panels of this project as ``<grid>#<number>``) and, where it has one, ``theme``.
        out: where the result goes, in the table's format; beside the table as ``NAME.scored.EXT`` when None.
        theme: for all rows, where the table has no such column.

    Returns:
        One line on what was done.

    Raises:
        DataError: naming file and row, when a column, a picture or the model is missing, or ``out`` cannot be written.
            Nothing is scored then.
    """
    frame = _read(table)
    target = checked(
        out or table.with_name(f"{table.stem}.scored{table.suffix}"), "file", suffixes=list(READERS), inputs=[table]
    )
    find = _finder(root, table)
    for row, pair in enumerate(zip(frame["first"], frame["second"], strict=True)):
        for name in pair:
            find(name, row, look=True)
    themes = list(frame["theme"]) if "theme" in frame else [theme] * len(frame)
    rows: list[Row] = [
        (number, first, second, _words(words))
        for number, (first, second, words) in enumerate(zip(frame["first"], frame["second"], themes, strict=True))
    ]
    parts = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
    place, made = _Place.of(root), dict[int, dict[str, list[Any]]]()
    with Progress(len(frame), table.name, "pairs", say) as progress:
        here = launchers.chosen() != "ray"
        make = partial(_Scoring, root, table, model, reasons, progress.advance if here else None)
        gpu = place.device.startswith("cuda")
        for number, found in launchers.spread(parts, make, gpu=gpu, threads=place.threads or 1):
            made[number] = found
            if not here:
                progress.advance(len(parts[number]))
    columns = {name: [value for n in range(len(parts)) for value in made[n][name]] for name in made[0]}
    _write(frame.assign(**columns), target)
    values = [value for value in columns["score"] if not math.isnan(value)]
    mean = sum(values) / len(values) if values else None
    unscored = len(frame) - len(values)
    told = "no score" if mean is None else f"mean score {mean:.4f}"
    figures = {"table": target, "pairs": len(frame), "without_score": unscored, "mean": mean}
    return Answer(f"{target}: {len(frame)} pairs, {unscored} without a score, {told}", figures)


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
        self._find, self._scorer = _finder(root, table), _scorer(root, model)
        self._reasons, self._advance = reasons, advance

    def __call__(self, rows: Sequence[Row]) -> dict[str, list[Any]]:
        queries = [PairQuery(self._find(a, n), self._find(b, n), question(theme)) for n, a, b, theme in rows]
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
    return render("theme", theme=theme) if theme else render("plain")


def _words(theme: Any) -> str | None:
    return theme if isinstance(theme, str) and theme else None  # a missing cell is None or NaN


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
    from paco_core.reward_model.scorer import Scorer

    folder = root / (model or paths.REWARD_MERGED)
    if not folder.is_dir():
        raise DataError(f"{folder}: no reward model there; run `dvc repro reward_merged`, or name one with --model")
    place = _Place.of(root)
    return Scorer(folder, device=place.device, dtype=place.dtype, threads=place.threads)


def _picture(path: Path, name: str) -> Image:
    if not path.is_file():
        raise DataError(f"{name}: no such picture")
    return decode_image(path.read_bytes(), name)


def _read(table: Path) -> pd.DataFrame:
    import pandas as pd

    if not table.is_file():
        raise DataError(f"{table}: no such file")
    if table.suffix not in READERS:
        raise DataError(f"{table}: unknown format {table.suffix!r}; expected {', '.join(READERS)}")
    how: dict[str, Any] = {"lines": True} if table.suffix == ".jsonl" else {}
    try:
        frame: pd.DataFrame = getattr(pd, READERS[table.suffix])(table, **how)
    except Exception as error:  # readers raise many types for broken files
        raise DataError(f"{table}: not readable as {table.suffix[1:]} ({error})") from None
    if missing := [name for name in ("first", "second") if name not in frame]:
        raise DataError(f"{table}: column {', '.join(missing)} is missing; it has {', '.join(map(str, frame))}")
    if frame.empty:
        raise DataError(f"{table}: holds no pair")
    return frame.reset_index(drop=True)


def _finder(root: Path, table: Path) -> Callable[..., Any]:
    """What gives the picture of a cell; with ``look`` it only makes sure that there is one."""
    from paco_core.data.records.panels import PanelStore
    from paco_core.data.records.records import parse_ref

    store: list[PanelStore] = []

    def find(name: Any, row: int, *, look: bool = False) -> Image | None:
        place = f"{table}: row {row}: {name}"
        if not isinstance(name, str) or not name:
            raise DataError(f"{place}: no picture is named")
        path = table.parent / name
        if path.is_file():
            return None if look else _picture(path, place)
        if "#" not in name:
            raise DataError(f"{place}: no such picture (looked for {path})")
        if not store:
            store.append(PanelStore.below(root / paths.GRIDS))
        try:
            if look and parse_ref(name)[0] not in store[0].grids.index.index:
                raise DataError("no such grid in data/grids")
            return None if look else store[0].panel(name)
        except DataError as error:
            raise DataError(f"{place}: {error}") from None

    return find


def _write(frame: pd.DataFrame, target: Path) -> None:
    with atomic(target) as part:
        if target.suffix == ".parquet":
            frame.to_parquet(part, index=False)
        elif target.suffix == ".csv":
            frame.to_csv(part, index=False)
        else:
            frame.to_json(part, orient="records", lines=True)
