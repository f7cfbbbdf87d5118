"""`paco paint` and `paco edit`: pictures, a contact sheet, and the judge's score of each."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.painted import AFTER, BEFORE, Painted
from paco_core.benchmarks.painting import side_by_side
from paco_core.config.params import PARAMS_FILE, load
from paco_core.data.records import prompt_text
from paco_core.io.answer import Answer
from paco_core.io.atomic import atomic
from paco_core.io.contact_sheet import contact_sheet
from paco_core.io.files import digest
from paco_core.io.pictures import read_image
from paco_core.io.progress import Progress
from paco_core.io.targets import checked
from paco_core.operations import paint
from paco_core.policies.encodings import cache_folder
from paco_core.runtime.placement import take_gpus
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.data.records.records import PromptRecord

FOLDER = Path("painted")
COLUMNS = 4
BASE = "base"


@dataclass(frozen=True)
class Options:
    """What both verbs take: who paints, how many, how large, and where the pictures go."""

    policy: str | None
    seeds: int
    size: int | None
    steps: int | None
    compare: bool
    out: Path | None


def paint_set(root: Path, prompt: str, panels: Sequence[str], options: Options, layout: str | None = None) -> Answer:
    """Paint sets of a prompt; what was written and scored.

    Args:
        layout: as of :func:`paco_core.operations.paint.set_record`.

    Raises:
        DataError: when the prompt has no panels, its layout is contradictory, or there is no such policy.
    """
    params = load(root / PARAMS_FILE)
    by = paint.painter(root, params, options.policy, SETS)
    record = paint.set_record(prompt, panels, options.size or max(by.recipe.eval_sizes), layout)
    default = panels and prompt_text.layout_of(prompt, layout) is None
    note = f", the default of {len(panels)} panels; --layout ROWSxCOLUMNS chooses another" if default else ""
    return _painted(root, by, record, options, [f"layout {record.layout} (rows x columns){note}"])


def edit_picture(root: Path, file: Path, instruction: str, options: Options) -> Answer:
    """Edit a picture; what was written and scored.

    Raises:
        DataError: when there is no such picture or policy.
    """
    by = paint.painter(root, load(root / PARAMS_FILE), options.policy, EDITS)
    return _painted(root, by, paint.edit_record(instruction, read_image(file)), options, [], file)


def _painted(
    root: Path,
    by: paint.Painter,
    record: PromptRecord,
    options: Options,
    notes: Sequence[str],
    file: Path | None = None,
) -> Answer:
    """Paint, or edit the picture in ``file``."""
    params, reference = load(root / PARAMS_FILE), None if file is None else read_image(file)
    seeds, who = range(options.seeds), {AFTER: by.name.replace("@", "-"), BEFORE: BASE}
    folder = options.out or root / FOLDER / f"{_words(record.theme)}-{digest([record.idx, by.name, options.size])[:6]}"
    checked(folder, "folder")
    for name in ("sheet.png", *(f"{one}-{seed}.png" for one in who.values() for seed in seeds)):
        checked(folder / name, "file", inputs=[] if file is None else [file])
    with ExitStack() as leases:
        for lease in take_gpus(params.policies.device, 1, f"paint in {root}", params):
            leases.enter_context(lease)
        with Progress(len(seeds) * (2 if options.compare and by.adapter else 1), "paint", "pictures") as progress:
            policy = paint.load_policy(root, params, by, cache=cache_folder(root))
            found = paint.pictures(
                params, policy, by, record, seeds=seeds, side=options.size, steps=options.steps, reference=reference,
                compare=options.compare, advance=progress.advance,
            )  # fmt: skip
        judge = paint.load_judge(root, params)
        scores = None if judge is None else paint.scored(judge, found, reference)
    rows = []
    for number, painted in enumerate(found):
        place = folder / f"{who[painted.when]}-{painted.seed}.png"
        _save(painted.image, place)
        score = None if scores is None or math.isnan(scores[number]) else round(scores[number], 4)
        rows.append({"by": who[painted.when], "seed": painted.seed, "score": score, "file": str(place)})
    _save(_sheet(found, reference), folder / "sheet.png")
    measured = "consistency" if reference is None else "editing reward"
    cut = policy.cut.get(record.prompt)
    lines = [*notes, *([] if cut is None else [f"the prompt is cut: {cut}"])]
    lines += [f"{row['by']:<12} seed {row['seed']}  {measured} {_score(row['score'])}  {row['file']}" for row in rows]
    if scores is None:
        lines.append("no scores: there is no reward model yet; run `dvc repro reward_merged`")
    figures = {
        "prompt": record.prompt, "layout": record.layout, "cut": None if cut is None else asdict(cut),
        "sheet": folder / "sheet.png", "pictures": rows,
    }  # fmt: skip
    return Answer("\n".join([*lines, f"sheet: {folder / 'sheet.png'}"]), figures)


def _save(picture: Image, file: Path) -> None:
    with atomic(file) as part:
        picture.save(part)


def _sheet(found: Sequence[Painted], reference: Image | None) -> Image:
    if len({painted.when for painted in found}) == 2:
        return side_by_side(found, len(found), None if reference is None else lambda _record: reference)
    images = [painted.image for painted in found] if reference is None else [reference, *(p.image for p in found)]
    return contact_sheet(images, COLUMNS, cell=max(found[0].image.size))


def _words(prompt: str) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", prompt.lower())[:6]) or "set"


def _score(value: object) -> str:
    return "–" if value is None else f"{value:.3f}"
