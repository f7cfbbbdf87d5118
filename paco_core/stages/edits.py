"""Training edit prompts, painted by the base editors and read by the annotator: what the reward learns edits from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.io import paths
from paco_core.runtime.preview import Pictures
from paco_core.runtime.stage import BASE_GB, Cost, Stage, library_check

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.data.pairs.editing import GeneratedEdit
    from paco_core.data.records.edit_records import EditRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.runtime.context import StageContext
    from paco_core.runtime.preview import Preview
    from paco_core.sampling.generated_image import GeneratedImage

SHEET, COLUMNS = 12, 6
PREVIEW_EDITS = 8


def _skipped(params: Params) -> str | None:
    return None if params.edits.painters else "edits.painters is empty"


def _cost(params: Params, root: Path) -> Cost:
    """The base editors' pictures of the training edit prompts."""
    from paco_core.planning import amounts
    from paco_core.planning.models import model_gb
    from paco_core.policies.families import family_of

    settings, count = params.edits, params.edit_prompts.count or 0
    images = max(0, count - params.edit_prompts.unseen) * len(settings.seeds)
    passes = sum(family_of(p.family).passes_per_step(p.guidance) for p in settings.painters) * images * settings.steps
    work = passes * amounts.CPU_SECONDS["rollout_step"]
    return Cost(
        f"{len(settings.painters) * images} images of {settings.size} x {settings.size}, {settings.steps} steps",
        BASE_GB + max((model_gb(root, painter.model) for painter in settings.painters), default=0.0),
        amounts.START_UP_S + work if settings.device == "cpu" else None,
        settings.device,
    )


def _preview(data: Path, _item: str) -> dict[str, Preview]:
    """References, each beside what a base editor made of it."""
    from paco_core.data.pairs.editing import read_generated_edits
    from paco_core.data.records.edit_records import read_edit_prompts
    from paco_core.io.pictures import join_in_row

    records, reference = read_edit_prompts(data / paths.EDIT_PROMPTS.name, none_allowed=True)
    records_by_id = {record.idx: record for record in records}
    edits, reader = read_generated_edits(data / paths.EDITS.name)
    if not edits:
        return {}
    chosen = edits[:: max(1, len(edits) // SHEET)][:SHEET]
    selected = [
        picture
        for edit in chosen
        for picture in (join_in_row(reference(records_by_id[edit.prompt_id])), reader.read(edit.id))
    ]
    captions = [text for edit in chosen for text in ("reference", records_by_id[edit.prompt_id].prompt)]
    return {"reference_and_painted": Pictures(selected, COLUMNS, "reference and painted edit, alternating", captions)}


STAGE = Stage(
    device=lambda params: params.edits.device,
    skipped=_skipped,
    cost=_cost,
    headline=(("pictures",),),
    preview=_preview,
    checks=(
        library_check(
            "paco_core.data.checks:painted_edits_are_of_training_prompts",
            "Every painted edit is of a training prompt; pictures open",
        ),
    ),
)


def _paint(ctx: StageContext, trained: list[EditRecord], reference: Reference) -> list[GeneratedImage]:
    """Every training prompt by every painter, from every seed."""
    from paco_core.policies import base
    from paco_core.policies.encodings import cache_folder
    from paco_core.policies.families import validate_text_window
    from paco_core.sampling import generation
    from paco_core.sampling.generated_image import BEFORE
    from paco_core.tasks.edits import validate_reference_counts

    params = ctx.params.edits
    generated: list[GeneratedImage] = []
    for number, painter in enumerate(params.painters):
        validate_text_window(f"edits.painters.{number}", painter, ctx.root)
        validate_reference_counts(painter.family, trained)
    with ctx.progress(len(params.painters) * len(trained) * len(params.seeds), "images") as progress:
        for painter in params.painters:
            model = str(ctx.model(painter.model))
            policy = base.load_policy(
                painter.family, model, params.device, params.dtype, task="edits", cache=cache_folder(ctx.root)
            )
            generated += generation.generate_images(
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
    return generated


def _read(ctx: StageContext, generated: list[GeneratedImage]) -> list[GeneratedEdit]:
    from paco_core.data.pairs.editing import GeneratedEdit
    from paco_core.storybook.recogniser import Recogniser
    from paco_core.storybook.world import VOCABULARY

    recogniser = Recogniser.from_pretrained(ctx.read(Path(str(ctx.params.annotations.model))))
    readings = recogniser.read([p.image for p in generated])
    return [
        GeneratedEdit.from_parts(p.record.idx, p.policy, p.seed, {trait: reading.word(trait) for trait in VOCABULARY})
        for p, reading in zip(generated, readings, strict=True)
    ]


def _show(ctx: StageContext, generated: list[GeneratedImage], reference: Reference) -> None:
    """Some prompts, each reference beside what every painter made of it."""
    from paco_core.io.contact_sheet import draw_contact_sheet
    from paco_core.io.pictures import join_in_row

    by_prompt: dict[str, list[GeneratedImage]] = {}
    for p in generated:
        by_prompt.setdefault(p.record.idx, []).append(p)
    groups = list(by_prompt.values())[:PREVIEW_EDITS]
    images = [
        picture for group in groups for picture in (join_in_row(reference(group[0].record)), *(p.image for p in group))
    ]
    captions = [text for group in groups for text in (group[0].record.prompt, *(p.policy for p in group))]
    ctx.image(draw_contact_sheet(images, 1 + len(groups[0]), captions=captions), "edits/reference_and_painted")


def run(ctx: StageContext) -> None:
    from paco_core.data.pairs.editing import write_generated_edits
    from paco_core.data.records.edit_records import of_part, read_edit_prompts
    from paco_core.policies.truncation import log_truncations
    from paco_core.sampling.generated_image import truncations_by_policy

    records, reference = read_edit_prompts(ctx.read(paths.EDIT_PROMPTS), none_allowed=True)
    generated = _paint(ctx, of_part(records, "train"), reference) if ctx.params.edits.painters else []
    edits = _read(ctx, generated) if generated else []
    if generated:
        _show(ctx, generated, reference)
    else:
        ctx.log("edits.painters names no editor: nothing is painted")
    with ctx.writing(paths.EDITS) as out:
        out.mkdir()
        write_generated_edits(out, edits, {edit.id: p.image for edit, p in zip(edits, generated, strict=True)})
    cut = log_truncations(truncations_by_policy(generated), ctx.log)
    ctx.report({"pictures": len(edits), "painters": len(ctx.params.edits.painters), **cut})
