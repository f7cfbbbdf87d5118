"""`paco score`: scores of two images, or of all pairs of several images. :mod:`.score_table` scores tables."""

from __future__ import annotations

import csv
import io
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from paco_core.api.judge import Judge, square
from paco_core.io.answer import Answer
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError
from paco_core.io.pictures import list_pictures, read_image
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.io.text_table import text_table


@dataclass(frozen=True)
class ScoreOptions:
    """Options of all forms of the verb: reward model, theme, and whether to print reasons."""

    model: str | None = None
    theme: str | None = None
    reasons: bool = False


def score_pictures(
    root: Path | None,
    paths: Sequence[Path],
    options: ScoreOptions,
    out: Path | None = None,
    log: Callable[[str], None] | None = None,
) -> Answer:
    """The score of two image files, or a matrix with the scores of all pairs of several images.

    Args:
        root: root of the project; None outside of a project.
        paths: image files, and folders of images.
        out: CSV file for the matrix.

    Raises:
        DataError: if an image or the model is missing, or an option does not apply to this number of images.
    """
    files = [file for path in paths for file in (list_pictures(path) if path.is_dir() else [path])]
    if len(files) < 2:
        raise DataError("give two images, several, a folder of images, or --table with a table of them")
    if len(files) == 2 and len(paths) == 2:
        if out is not None:
            raise DataError("--out goes with --table, or with more than two images")
        return _pair(root, files, options)
    if options.reasons:
        raise DataError("--reasons goes with two images, or with --table")
    return _matrix(root, files, options, out, log)


def _pair(root: Path | None, files: Sequence[Path], options: ScoreOptions) -> Answer:
    pair = read_image(files[0]), read_image(files[1])  # before a model is loaded
    with Judge(options.model, project=root) as judge:
        (score,) = judge.scores([pair], theme=options.theme)
        why = judge.explain(*pair, theme=options.theme) if options.reasons else None
    lines = [f"{score.value:.4f}" + (f" ({score.cause})" if score.failed else ""), *([] if why is None else [why])]
    return Answer("\n".join(lines), {"score": score.value, "cause": score.cause, "reasons": why})


def _matrix(
    root: Path | None,
    files: Sequence[Path],
    options: ScoreOptions,
    out: Path | None,
    log: Callable[[str], None] | None,
) -> Answer:
    if out is not None:
        checked(out, "file", suffixes=[".csv"], inputs=files)
    pictures = [read_image(file) for file in files]
    with Judge(options.model, project=root) as judge, Progress(_count(files), "score", "pairs", log) as progress:
        scores = judge.set_scores(pictures, theme=options.theme, on_batch=progress.advance)
    values = square([score.value for score in scores], len(files))
    names = _short_names(files)
    causes = Counter(str(score.cause) for score in scores if score.failed)
    mean = float(np.mean([score.value for score in scores]))
    if out is not None:
        with atomic(out) as part:
            part.write_text(_csv(names, values), encoding="utf-8")
    return Answer(
        _table(names, values, causes, mean, out),
        {"pictures": list(files), "scores": values.tolist(), "mean": mean, "without_score": causes, "table": out},
    )


def _count(files: Sequence[Path] | Sequence[str]) -> int:
    return len(files) * (len(files) - 1) // 2


def _short_names(files: Sequence[Path]) -> list[str]:
    """File names; the paths if two names are equal."""
    names = [file.name for file in files]
    return names if len(set(names)) == len(names) else [str(file) for file in files]


def _table(names: Sequence[str], values: np.ndarray, causes: Counter[str], mean: float, out: Path | None) -> str:
    """A table with numbered rows, so the columns stay narrow. Each pair appears once, above the diagonal."""
    numbers = [str(number) for number in range(1, len(names) + 1)]
    rows = [
        [number, name, *(_cell(values[row, column]) if column > row else "" for column in range(1, len(names)))]
        for row, (number, name) in enumerate(zip(numbers, names, strict=True))
    ]
    lines = text_table(rows, ["", "", *numbers[1:]], right=range(2, len(names) + 1))
    lines += [f"{count} of {_count(names)} pairs have no score: {cause}" for cause, count in causes.items()]
    lines.append("no mean: not every pair has a score" if causes else f"mean of {_count(names)} pairs: {mean:.4f}")
    return "\n".join([*lines, *([] if out is None else [f"wrote {out}"])])


def _cell(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4f}"


def _csv(names: Sequence[str], values: np.ndarray) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["", *names])
    for name, row in zip(names, values, strict=True):
        writer.writerow([name, *("" if math.isnan(value) else repr(float(value)) for value in row)])
    return text.getvalue()
