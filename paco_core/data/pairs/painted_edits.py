"""What base editors made of the training edit prompts, and what the annotator sees in it: edits to learn from.

painted.jsonl   one :class:`PaintedEdit` a line
pictures/       the painted pictures, a shard

Equal parameters give equal pictures on one machine; other prompts or seeds beside a picture may move its pixels by
what rounding explains (:func:`paco_core.painting.paint.paint` says how far, by number format).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from paco_core.data.records.edit_records import EditRecord, asked_of
from paco_core.data.records.records import Id, validated
from paco_core.io.files import DataError, digest, read_jsonl, write_jsonl
from paco_core.io.shards import ShardReader, encode_png, write_shard
from paco_core.io.validation import StrictModel
from paco_core.storybook.editing import Edit, changed
from paco_core.storybook.world import VOCABULARY, Panel

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import EditQuestion
    from paco_core.data.pairs.editing import EditingPairs
    from paco_core.data.records.edit_records import References

FILE, SHARD = "painted.jsonl", "pictures"


class PaintedEdit(StrictModel):
    """One picture (``id`` in the shard) that ``painter`` made of the editing prompt ``prompt_id`` from ``seed``.

    ``shows``: trait -> word, as the annotator reads the picture.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    prompt_id: Id
    painter: str
    seed: int
    shows: dict[str, str]

    @classmethod
    def from_parts(cls, prompt_id: str, painter: str, seed: int, shows: Mapping[str, str]) -> PaintedEdit:
        return cls(
            id=digest([prompt_id, painter, seed], 16),
            prompt_id=prompt_id,
            painter=painter,
            seed=seed,
            shows=dict(shows),
        )


def write_painted(out: Path, edits: Sequence[PaintedEdit], images: Mapping[str, Image]) -> None:
    """Write the records and their pictures (by id) to the folder ``out``; no shard where there are none."""
    write_jsonl(out / FILE, (edit.model_dump() for edit in edits))
    if edits:
        rows = [{"id": edit.id, "height": images[edit.id].height, "width": images[edit.id].width} for edit in edits]
        write_shard(out / SHARD, rows, {edit.id: encode_png(images[edit.id]) for edit in edits})


def read_painted(folder: Path) -> tuple[list[PaintedEdit], ShardReader]:
    """What :func:`write_painted` left.

    Raises:
        DataError: naming file and line of a record that is no valid one.
    """
    path = folder / FILE
    edits = [validated(PaintedEdit, row, f"{path}:{number}") for number, row in read_jsonl(path)]
    return edits, ShardReader([folder / SHARD] if edits else [])


def add_painted(
    found: EditingPairs,
    folder: Path,
    records: Sequence[EditRecord],
    reference: References,
    questions: Sequence[EditQuestion],
) -> int:
    """Add questions about every painted edit to ``found``; how many.

    Each picture is asked whether it kept the rest, whether it did what was asked, and whether it did something that
    was not asked of its painter. Without the last nearly every answer about following would be Yes, for editors
    mostly follow: a judge would learn to say so without a look.

    Raises:
        DataError: when a painted edit is of no record, or of one whose traits are not known.
    """
    edits, pictures = read_painted(folder)
    known = {record.idx: record for record in records}
    count = 0
    for painted in edits:
        if painted.prompt_id not in known:
            raise DataError(
                f"{folder / FILE}: {painted.id} belongs to prompt {painted.prompt_id}, which is not in "
                "data/edit_prompts; run `dvc repro edit_prompts edits`"
            )
        record = known[painted.prompt_id]
        (original, *_), picture = reference(record), pictures.read(painted.id)
        for question, edit in _questions(record, painted):
            if question in questions:
                count += found.ask(original, picture, edit, question)
    return count


def _questions(record: EditRecord, painted: PaintedEdit) -> Iterator[tuple[EditQuestion, Edit]]:
    traits, trait, word = asked_of(record)
    before, after = Panel(**traits), Panel(**painted.shows)  # type: ignore[arg-type]
    own = Edit(before, after, trait, word)
    yield "edit_consistency", own
    yield "edit_following", own
    rng = random.Random(f"another instruction {painted.id}")
    other = rng.choice([name for name in VOCABULARY if name != trait])
    yield "edit_following", Edit(before, after, other, str(getattr(changed(before, other, rng), other)))
