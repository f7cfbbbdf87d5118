"""Generation of images for benchmarks: equal noise before and after the training of a policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.records.records import PromptRecord
from paco_core.grpo.encoded_prompts import EncodedPrompts, texts_of
from paco_core.grpo.panel_references import count_panel_references
from paco_core.grpo.rollout import Sampling
from paco_core.grpo.sampling import sample_images
from paco_core.grpo.sizes import ImageGrid, buckets
from paco_core.io.answer import to_jsonable
from paco_core.io.contact_sheet import draw_contact_sheet
from paco_core.io.files import DataError, write_json
from paco_core.io.pictures import join_in_row
from paco_core.policies.base import NoiseKey
from paco_core.policies.families import max_predecessors, validate_story_panels
from paco_core.policies.truncation import truncations_by_id
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage, images_per_pass

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.config.params import PolicyRecipe
    from paco_core.grpo.scoring import Reference
    from paco_core.grpo.sizes import RecordSize
    from paco_core.policies.base import Policy


def generate_images(  # noqa: PLR0913 - recipes of policies and base editors share no type
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
) -> Iterator[GeneratedImage]:
    """Generate one image per prompt and seed by the ODE. The noise depends on prompt id and seed only.

    A batch has at most :func:`images_per_pass` images and is not filled up, so images may differ by rounding
    with the number of images per call. For example, eight edits of 64 px in one batch instead of eight: in float32,
    2 of 100,000 values differ by one level in 255. With ``mixed``, every tenth value differs by one level for FLUX and
    Kontext, and every sixth by up to 6 levels for Qwen-Image-Edit, which rescales its guidance.
    Images before and after a training are generated in equal batches.

    Args:
        size: scale of the images: the side of a square image in pixels.
        name: name of the policy.
        when: state of the policy, for example :data:`BEFORE`.
        steps: number of sampling steps.
        reference: returns the reference images of a record, if the policy edits.
        record_size: how the height and width of a record change ``size`` (``grpo/sizes.py``).
        predecessors: maximum number of earlier panels that a panel of a story has as reference images. 0 = all panels
            are generated together.
        advance: is called with the number of images of each batch.
    """
    grids = [ImageGrid.from_record(record, size, record_size, policy.multiple, predecessors) for record in records]
    references = None if reference is None else [reference(record) for record in records]
    sizes = [[grid.size] for grid in grids] if policy.edits else ()
    prompts = EncodedPrompts.from_records(
        policy, records, predecessors, max_sequence_length, guidance, references, sizes
    )
    truncations = truncations_by_id(policy.truncations, records, partial(texts_of, predecessors=predecessors))
    for grid, rows in buckets(grids).items():
        sampling = Sampling.for_policy(policy, grid.part_size, steps, guidance)
        cases = [(row, seed) for row in rows for seed in seeds]
        num_references = max(
            len(references[row])
            if references is not None
            else max(count_panel_references(records[row], predecessors, policy.family_spec.references[1]), default=0)
            for row in rows
        )
        batch = images_per_pass(grid.part_size, references=num_references, words=max_sequence_length)
        for start in range(0, len(cases), batch):
            part = cases[start : start + batch]
            keys = [NoiseKey(records[row].idx, 0, seed) for row, seed in part]
            images = sample_images(policy, prompts, [row for row, _ in part], keys, sampling, grid)[0]
            for (row, seed), image in zip(part, images, strict=True):
                yield GeneratedImage(name, size, when, records[row], seed, image, truncations.get(records[row].idx))
            advance(len(part))


def generate_before_and_after(  # noqa: PLR0913 - as `generate_images`
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
) -> list[GeneratedImage]:
    """Generate every evaluation size of a recipe without its adapter, then with it.

    Args:
        name: name of the recipe.
        adapter: folder of the trained adapter.
        steps: number of sampling steps.
        reference: returns the reference images of a record, if the policy edits.
        advance: is called with the number of images of each batch.

    Raises:
        DataError: if there is no adapter.
    """
    if not adapter.is_dir():
        raise DataError(f"{adapter}: there is no adapter; run `dvc repro policies@{name}`")
    part = partial(generate_sizes, policy, name, recipe, records, seeds=seeds, steps=steps, reference=reference)
    before = part(when=BEFORE, advance=advance)
    policy.load_adapter(adapter)
    return before + part(when=AFTER, advance=advance)


def generate_sizes(  # noqa: PLR0913 - as `generate_images`
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
) -> list[GeneratedImage]:
    """Generate every evaluation size of a recipe with the current weights of the policy."""
    validate_story_panels(recipe)
    images: list[GeneratedImage] = []
    for size in recipe.eval_sizes:
        images += generate_images(
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
            predecessors=max_predecessors(recipe),
            advance=advance,
        )
    return images


def save_samples(
    folder: Path,
    images: Sequence[GeneratedImage],
    table: pd.DataFrame,
    count: int,
    reference: Reference | None = None,
) -> None:
    """Save the first ``count`` prompts with the first seed, before and after, as PNG files and ``samples.json``.

    Prompts are in random order, so the first ones are not selected by their results.

    Args:
        table: the measurements of ``images``, in the same order.
        count: number of prompts.
        reference: for edits, returns the reference images of a record. They are saved too, several in one row.
    """
    chosen = list(dict.fromkeys(p.record.idx for p in images))[:count]
    seed = images[0].seed
    entries = []
    for p, row in zip(images, table.to_dict("records"), strict=True):
        if p.record.idx not in chosen or p.seed != seed:
            continue
        name = f"{p.policy}/{p.size}/{p.record.idx}-{p.seed}-{p.when}.png"
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        p.image.save(folder / name)
        entry = {**row, "theme": p.record.theme, "prompt": p.record.prompt, "layout": p.record.layout, "file": name}
        if reference is not None:
            entry["reference"] = f"reference/{p.record.idx}.png"
            (folder / "reference").mkdir(exist_ok=True)
            join_in_row(reference(p.record)).save(folder / entry["reference"])
        entries.append(entry)
    write_json(folder / "samples.json", to_jsonable(entries))


def side_by_side(generated: Sequence[GeneratedImage], count: int, reference: Reference | None = None) -> Image:
    """A contact sheet with one column per prompt and rows before and after training (equal noise).

    The caption of an image contains its policy, its seed and, if there are several prompts, its theme. If there is one
    prompt, it is the title.

    Args:
        count: number of columns.
        reference: for edits, returns the reference images of a record. They are the first row.
    """
    columns: dict[tuple[str, int], dict[str, GeneratedImage]] = {}
    for p in generated:
        columns.setdefault((p.record.idx, p.seed), {})[p.when] = p
    selected = list(columns.values())[:count]
    rows = [[column[state] for column in selected] for state in (BEFORE, AFTER)]
    prompts = {column[BEFORE].record.idx: column[BEFORE].record for column in selected}
    images = [p.image for row in rows for p in row]
    captions = [caption(p, theme=len(prompts) > 1) for row in rows for p in row]
    if reference is not None:
        images[:0] = [_resize_references(reference(p.record), p.image) for p in rows[0]]
        captions[:0] = ["reference"] * len(selected)
    title = next(iter(prompts.values())).prompt if len(prompts) == 1 else ""
    return draw_contact_sheet(images, len(selected), max(max(image.size) for image in images), captions, title)


def _resize_references(references: Sequence[Image], picture: Image) -> Image:
    """References of an edit: a single one resized to the size of the edit, several in a row of its width."""
    if len(references) == 1:
        return references[0].resize(picture.size)
    row = join_in_row(references)
    return row.resize((picture.width, max(1, round(row.height * picture.width / row.width))))


def caption(image: GeneratedImage, *, theme: bool) -> str:
    """Caption of an image in short lines: policy, state, seed and, if ``theme``, the theme of the prompt."""
    text = f"{image.policy}\n{image.when} training, seed {image.seed}"
    return f"{text}\n{image.record.theme}" if theme else text
