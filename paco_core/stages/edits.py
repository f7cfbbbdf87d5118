"""Training edit prompts, painted by the base editors and read by the annotator: what the reward learns edits from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks import painting
from paco_core.benchmarks.painted import BEFORE
from paco_core.data.pairs.painted_edits import PaintedEdit, write_painted
from paco_core.data.records.edit_records import of_part, read_edit_prompts
from paco_core.io import paths
from paco_core.io.contact_sheet import contact_sheet
from paco_core.policies import base
from paco_core.policies.encodings import cache_folder
from paco_core.storybook.recogniser import Recogniser
from paco_core.storybook.world import VOCABULARY

if TYPE_CHECKING:
    from paco_core.benchmarks.painted import Painted
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.runtime.context import StageContext

SHOWN = 8


def _paint(ctx: StageContext, trained: list[EditRecord], reference: Reference) -> list[Painted]:
    """Every training prompt by every painter, from every seed."""
    params = ctx.params.edits
    painted: list[Painted] = []
    with ctx.progress(len(params.painters) * len(trained) * len(params.seeds), "pictures") as progress:
        for painter in params.painters:
            model = str(ctx.model(painter.model))
            policy = base.load(painter.family, model, params.device, params.dtype, cache=cache_folder(ctx.root))
            painted += painting.paint(
                policy,
                trained,
                params.seeds,
                params.size,
                name=painter.model,
                when=BEFORE,
                steps=params.steps,
                guidance=painter.guidance,
                max_sequence_length=painter.max_sequence_length,
                reference=reference,
                advance=progress.advance,
            )
    return painted


def _read(ctx: StageContext, painted: list[Painted]) -> list[PaintedEdit]:
    recogniser = Recogniser.from_pretrained(ctx.read(Path(str(ctx.params.annotations.model))))
    readings = recogniser.read([p.image for p in painted])
    return [
        PaintedEdit.of(p.record.idx, p.policy, p.seed, {trait: reading.word(trait) for trait in VOCABULARY})
        for p, reading in zip(painted, readings, strict=True)
    ]


def _show(ctx: StageContext, painted: list[Painted], reference: Reference) -> None:
    """Some prompts, each reference beside what every painter made of it."""
    by_prompt: dict[str, list[Painted]] = {}
    for p in painted:
        by_prompt.setdefault(p.record.idx, []).append(p)
    rows = [[reference(group[0].record), *(p.image for p in group)] for group in list(by_prompt.values())[:SHOWN]]
    ctx.image(contact_sheet([picture for row in rows for picture in row], len(rows[0])), "edits/reference_and_painted")


def run(ctx: StageContext) -> None:
    records, reference = read_edit_prompts(ctx.read(paths.EDIT_PROMPTS), none_allowed=True)
    painted = _paint(ctx, of_part(records, "train"), reference) if ctx.params.edits.painters else []
    edits = _read(ctx, painted) if painted else []
    if painted:
        _show(ctx, painted, reference)
    else:
        ctx.say("edits.painters names no editor: nothing is painted")
    with ctx.writing(paths.EDITS) as out:
        out.mkdir()
        write_painted(out, edits, {edit.id: p.image for edit, p in zip(edits, painted, strict=True)})
    ctx.report({"pictures": len(edits), "painters": len(ctx.params.edits.painters)})
