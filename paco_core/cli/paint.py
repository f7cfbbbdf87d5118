"""`paco paint` and `paco edit`: images, a contact sheet, and the reward of each image."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paco_core.api.judge import Judge
from paco_core.api.painter import Painter
from paco_core.data.records import prompt_text
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.contact_sheet import draw_contact_sheet
from paco_core.io.files import DataError, digest
from paco_core.io.image_metadata import save_image
from paco_core.io.pictures import read_image
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.io.text_table import text_table
from paco_core.operations import painters, prompt_records
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.sampling.generation import caption, side_by_side
from paco_core.sampling.origin import image_metadata
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord

FOLDER = Path("painted")
COLUMNS = 4
SEEDS = 4
BASE = "base"
NO_REWARD = "run `dvc repro reward_merged`"


@dataclass(frozen=True)
class PaintOptions:
    """Options of both verbs: the policy, the seeds, the size, the folder of the images, and their metadata.

    Attributes:
        best: keep only the image with the highest score.
        keep_all: with ``best``, keep the other images, too.
    """

    policy: str | None
    seeds: Sequence[int]
    size: int | None
    steps: int | None
    compare: bool
    out: Path | None
    metadata: bool = True
    best: bool = False
    keep_all: bool = False


def paint_set(
    root: Path, prompt: str, panels: Sequence[str], options: PaintOptions, layout: str | None = None
) -> Answer:
    """Generate sets from a prompt. Returns the written files and their scores.

    Args:
        layout: as in :func:`paco_core.operations.prompt_records.set_record`.

    Raises:
        DataError: if the prompt has no panels, its layout is contradictory, or the policy does not exist.
    """
    painter = Painter(options.policy, project=root)
    record = painter.set_record(prompt, panels, layout=layout, size=options.size)
    default = panels and prompt_text.layout_of(prompt, layout) is None
    note = f", the default of {len(panels)} panels; --layout ROWSxCOLUMNS chooses another" if default else ""
    work = partial(painter.paint, prompt, panels, layout=layout)
    notes = [f"layout {record.layout} (rows x columns){note}"]
    return _generate(root, painter, painter.named(SETS), record, work, options, notes)


def edit_pictures(root: Path, files: Sequence[Path], instruction: str, options: PaintOptions) -> Answer:
    """Edit an image, with further references of the instruction. Returns the written files and their scores.

    Raises:
        DataError: if an image or the policy does not exist.
    """
    painter, pictures = Painter(options.policy, project=root), [read_image(file) for file in files]
    work, record = partial(painter.edit, pictures, instruction), prompt_records.edit_record(instruction, pictures)
    return _generate(root, painter, painter.named(EDITS), record, work, options, [], files)


def _generate(
    root: Path,
    painter: Painter,
    by: painters.NamedPolicy,
    record: PromptRecord,
    work: Callable[..., list[GeneratedImage]],
    options: PaintOptions,
    notes: Sequence[str],
    files: Sequence[Path] = (),
) -> Answer:
    """Generate images, or edit the images in ``files``."""
    references = [read_image(file) for file in files]
    seeds, names = options.seeds, {AFTER: by.name.replace("@", "-"), BEFORE: BASE}
    folder = options.out or root / FOLDER / f"{_words(record.theme)}-{digest([record.idx, by.name, options.size])[:6]}"
    checked(folder, "folder")
    for name in ("sheet.png", *(f"{name}-{seed}.png" for name in names.values() for seed in seeds)):
        checked(folder / name, "file", inputs=files)
    has_reward = (root / paths.REWARD_MERGED).is_dir()
    if options.best and not has_reward:
        raise DataError(f"--best needs a reward model, and there is none yet; {NO_REWARD}")
    count = len(seeds) * (2 if options.compare and by.adapter else 1)
    with painter, Progress(count, "paint", "images") as progress:
        images = work(
            seeds=seeds, size=options.size, steps=options.steps, compare=options.compare, advance=progress.advance
        )
        scores = Judge(project=root).painted(images, references or None) if has_reward else None
    best = _best(scores) if options.best and scores is not None else None
    rows = []
    for number, image in enumerate(images):
        place = folder / f"{names[image.when]}-{image.seed}.png"
        is_kept = best in (None, number) or options.keep_all
        if is_kept:
            image.save(place, metadata=options.metadata)
        score = None if scores is None or math.isnan(scores[number]) else round(float(scores[number]), 4)
        file = str(place) if is_kept else None
        rows.append({"by": names[image.when], "seed": image.seed, "score": score, "file": file})
    origins = [image.origin for image in images if image.origin is not None] if options.metadata else []
    save_image(_sheet(images, references), folder / "sheet.png", image_metadata(origins))
    measured = "editing reward" if references else "consistency"
    cut = images[0].lost
    lines = [*notes, *([] if cut is None else [f"the prompt is cut: {cut}"])]
    cells = [
        (str(row["by"]), f"seed {row['seed']}", f"{measured} {_score(row['score'])}", str(row["file"] or "not kept"))
        for row in rows
    ]
    lines += text_table(cells)
    if scores is None:
        lines.append(f"no scores: there is no reward model yet; {NO_REWARD}")
    if best is not None:
        lines.append(f"best of {len(images)}: seed {images[best].seed}")
    figures = {
        "prompt": record.prompt, "layout": record.layout, "cut": None if cut is None else asdict(cut),
        "sheet": folder / "sheet.png", "pictures": rows, "best": None if best is None else images[best].seed,
    }  # fmt: skip
    return Answer("\n".join([*lines, f"sheet: {folder / 'sheet.png'}"]), figures)


def _best(scores: np.ndarray) -> int:
    """Number of the image with the highest score.

    Raises:
        DataError: when no image has a score.
    """
    if np.isnan(scores).all():
        raise DataError("the reward model could not score any candidate; the warning above names the cause")
    return int(np.nanargmax(scores))


def _sheet(generated: Sequence[GeneratedImage], references: Sequence[Image]) -> Image:
    if len({image.when for image in generated}) == 2:
        return side_by_side(generated, len(generated), (lambda _record: references) if references else None)
    images, captions = [p.image for p in generated], [caption(p, theme=False) for p in generated]
    images, captions = [*references, *images], ["reference"] * len(references) + captions
    return draw_contact_sheet(images, COLUMNS, max(generated[0].image.size), captions, generated[0].record.prompt)


def _words(prompt: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", prompt.lower())[:6]) or "set"


def _score(value: object) -> str:
    return "–" if value is None else f"{value:.3f}"
