"""Pictures of unseen prompts, painted from equal noise by a policy before and after its training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import PromptRecord
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import EncodedPrompts, sample_images, texts_of
from paco_core.grpo.sizes import ImageGrid, buckets
from paco_core.io.answer import to_jsonable
from paco_core.io.contact_sheet import contact_sheet
from paco_core.io.files import DataError, write_json
from paco_core.io.pictures import in_a_row
from paco_core.painting.painted import AFTER, BEFORE, Painted, pictures_a_pass
from paco_core.policies.base import NoiseKey
from paco_core.policies.cuts import of_records
from paco_core.policies.families import predecessors_of, refuse_stories

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe
    from paco_core.grpo.scoring import Reference
    from paco_core.grpo.sizes import RecordSize
    from paco_core.policies.base import Policy


def paint(  # noqa: PLR0913 - what decides a picture; recipes of policies and painters of edits share no type
    policy: Policy,
    records: Sequence[PromptRecord],
    seeds: Sequence[int],
    size: int,
    *,
    name: str,
    when: str,
    steps: int,
    guidance: float,
    max_sequence_length: int,
    reference: Reference | None = None,
    record_size: RecordSize = "ignore",
    predecessors: int = 0,
    advance: Callable[[int], object] = lambda _count: None,
) -> Iterator[Painted]:
    """One picture a prompt and seed by the ODE; noise depends on prompt id and seed alone.

    Batches are as large as :func:`pictures_a_pass` allows and not filled up, so that a picture may differ by rounding
    with the number of pictures painted in one call. Eight edits of 64 px, one by one and together: in float32 by one
    level in 255 at most, in 2 of 100,000 values; under ``mixed`` in every tenth value by one level for FLUX and
    Kontext, in every sixth by up to 6 levels for Qwen-Image-Edit, which rescales its guidance.
    Pictures before and after a training are painted in equal batches.

    Args:
        size: scale of the pictures, the side of a square one.
        reference: gives the pictures that a record is about, where the policy edits.
        record_size: what a record's own height and width make of ``size`` (``grpo/sizes.py``).
        predecessors: of stories, whose panels are painted one by one, how many panels before it a panel has as
            reference pictures; 0 = all panels are painted at once.
    """
    pages = [ImageGrid.from_record(record, size, record_size, policy.multiple, predecessors) for record in records]
    references = None if reference is None else [reference(record) for record in records]
    sizes = [[page.size] for page in pages] if policy.edits else ()
    prompts = EncodedPrompts.from_records(
        policy, records, predecessors, max_sequence_length, guidance, references, sizes
    )
    lost = of_records(policy.cut, records, partial(texts_of, predecessors=predecessors))
    for page, rows in buckets(pages).items():
        sampling = Sampling.for_policy(policy, page.part_size, steps, guidance)
        cases = [(row, seed) for row in rows for seed in seeds]
        beside = min(predecessors, page.parts - 1) if references is None else max(len(references[row]) for row in rows)
        batch = pictures_a_pass(page.part_size, references=beside, words=max_sequence_length)
        for start in range(0, len(cases), batch):
            part = cases[start : start + batch]
            keys = [NoiseKey(records[row].idx, 0, seed) for row, seed in part]
            images = sample_images(policy, prompts, [row for row, _ in part], keys, sampling, page)[0]
            for (row, seed), image in zip(part, images, strict=True):
                yield Painted(name, size, when, records[row], seed, image, lost.get(records[row].idx))
            advance(len(part))


def before_and_after(  # noqa: PLR0913 - as `paint`
    policy: Policy,
    name: str,
    recipe: PolicyRecipe,
    adapter: Path,
    records: Sequence[PromptRecord],
    *,
    seeds: Sequence[int],
    steps: int,
    reference: Reference | None = None,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Painted]:
    """Every size of a recipe by the bare policy, then again with its adapter.

    Raises:
        DataError: when there is no adapter.
    """
    if not adapter.is_dir():
        raise DataError(f"{adapter}: no adapter there; run `dvc repro policies@{name}`")
    part = partial(paint_sizes, policy, name, recipe, records, seeds=seeds, steps=steps, reference=reference)
    before = part(when=BEFORE, advance=advance)
    policy.load_adapter(adapter)
    return before + part(when=AFTER, advance=advance)


def paint_sizes(  # noqa: PLR0913 - as `paint`
    policy: Policy,
    name: str,
    recipe: PolicyRecipe,
    records: Sequence[PromptRecord],
    *,
    when: str,
    seeds: Sequence[int],
    steps: int,
    reference: Reference | None = None,
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Painted]:
    """Every evaluation size of a recipe, by the policy as it is."""
    refuse_stories(recipe)
    painted: list[Painted] = []
    for size in recipe.eval_sizes:
        painted += paint(
            policy,
            records,
            seeds,
            size,
            name=name,
            when=when,
            steps=steps,
            guidance=recipe.guidance,
            max_sequence_length=recipe.max_sequence_length,
            reference=reference,
            record_size=recipe.record_size,
            predecessors=predecessors_of(recipe),
            advance=advance,
        )
    return painted


def save_samples(
    folder: Path,
    painted: Sequence[Painted],
    table: pd.DataFrame,
    count: int,
    reference: Reference | None = None,
) -> None:
    """The first ``count`` prompts with the first seed, before and after, as PNG files with ``samples.json``.

    Prompts come in random order, so the first ones are a fair choice and no selection by result.

    Args:
        table: the rows that :func:`measure` made of ``painted``, in the same order.
        reference: of edits, gives the pictures that a record is about; they are kept too, several in a row.
    """
    chosen = list(dict.fromkeys(p.record.idx for p in painted))[:count]
    seed = painted[0].seed
    entries = []
    for p, row in zip(painted, table.to_dict("records"), strict=True):
        if p.record.idx not in chosen or p.seed != seed:
            continue
        name = f"{p.policy}/{p.size}/{p.record.idx}-{p.seed}-{p.when}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        p.image.save(folder / name)
        entry = {**row, "theme": p.record.theme, "prompt": p.record.prompt, "layout": p.record.layout, "file": name}
        if reference is not None:
            entry["reference"] = f"reference/{p.record.idx}.png"
            (folder / "reference").mkdir(exist_ok=True)
            in_a_row(reference(p.record)).save(folder / entry["reference"])
        entries.append(entry)
    write_json(folder / "samples.json", to_jsonable(entries))


def side_by_side(painted: Sequence[Painted], count: int, reference: Reference | None = None) -> Image:
    """A sheet for people: one column a prompt, before above after (equal noise); of edits, the reference on top.

    Below each picture stand its policy, its seed and, where there are several prompts, its theme; the prompt is the
    title where there is one.
    """
    columns: dict[tuple[str, int], dict[str, Painted]] = {}
    for p in painted:
        columns.setdefault((p.record.idx, p.seed), {})[p.when] = p
    shown = list(columns.values())[:count]
    rows = [[column[when] for column in shown] for when in (BEFORE, AFTER)]
    prompts = {column[BEFORE].record.idx: column[BEFORE].record for column in shown}
    images = [p.image for row in rows for p in row]
    captions = [caption(p, theme=len(prompts) > 1) for row in rows for p in row]
    if reference is not None:
        images[:0] = [_fitted(reference(p.record), p.image) for p in rows[0]]
        captions[:0] = ["reference"] * len(shown)
    title = next(iter(prompts.values())).prompt if len(prompts) == 1 else ""
    return contact_sheet(images, len(shown), max(max(image.size) for image in images), captions, title)


def _fitted(references: Sequence[Image], picture: Image) -> Image:
    """What a picture is an edit of: one reference at its size, several in a row as wide."""
    if len(references) == 1:
        return references[0].resize(picture.size)
    row = in_a_row(references)
    return row.resize((picture.width, max(1, round(row.height * picture.width / row.width))))


def caption(painted: Painted, *, theme: bool) -> str:
    """Which picture it is, in a few short lines."""
    who = f"{painted.policy}\n{painted.when} training, seed {painted.seed}"
    return f"{who}\n{painted.record.theme}" if theme else who
