"""Editing pairs: an original, an instruction and an edited picture, drawn by the embedded world, imported or generated.

An edit becomes a pair like any other, with an instruction and a question: whether all but the edit stayed the same
(template ``edit_consistency``), or whether the edit was made (``edit_following``). Its two pictures are in a shard
next to the pairs, each a grid of one panel.

The stage ``edits`` writes what base editors made of the training edit prompts: ``painted.jsonl``, one
:class:`PaintedEdit` per line, and the shard ``pictures``. With equal parameters the pictures are equal on one machine.
Other prompts or seeds in a batch may change pixels by rounding (:func:`paco_core.sampling.generation.generate_images`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator

from paco_core.config.params import EditQuestion
from paco_core.data.pairs.answers import NO, YES, fault, normalised
from paco_core.data.pairs.pairs import Pair
from paco_core.data.records.edit_records import EditRecord, asked_of
from paco_core.data.records.records import Id, Words, panel_ref, validated
from paco_core.io.files import DataError, digest, inside, md5_of, read_jsonl, write_jsonl
from paco_core.io.pictures import content_and_size, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import ShardReader, encode_png, write_shard
from paco_core.io.validation import StrictModel, first_validation_error
from paco_core.storybook.editing import Edit, changed, random_edit
from paco_core.storybook.world import VOCABULARY, Panel

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import EditingParams, EditQuestion
    from paco_core.data.records.edit_records import References
    from paco_core.storybook.editing import Edit


SHARD = "pictures"  # folder of the pairs' own pictures, below data/pairs
LAYOUT = "1x1"


class TripleRecord(StrictModel):
    """One line of an imported file; pictures are paths relative to it, and below it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    original: Words
    edited: Words
    instruction: Words
    question: EditQuestion = "edit_consistency"
    label: Literal["Yes", "No"] = "Yes"  # its answer
    answer: str | None = None  # the label, then why; null: the stage `cot_labels` writes it

    @field_validator("answer")
    @classmethod
    def _normalised(cls, answer: str | None, given: ValidationInfo) -> str | None:
        if answer is None or "label" not in given.data:
            return answer
        if cause := fault(answer, given.data["label"]):
            raise ValueError(f"{answer[:40]!r} does not go with the label {given.data['label']} ({cause})")
        return normalised(answer)


@dataclass
class EditingPairs:
    """Editing pairs, their pictures, and the rows that were left out, by place and cause."""

    pairs: list[Pair] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)  # id -> PNG
    rows: dict[str, dict[str, Any]] = field(default_factory=dict)  # id -> index row
    rejected: Rejected = field(default_factory=Rejected)
    _ids: set[str] = field(default_factory=set)

    def add(
        self,
        original: Image,
        edited: Image,
        instruction: str,
        label: str,
        answer: str | None,
        question: EditQuestion = "edit_consistency",
    ) -> bool:
        """Add a triple; False when it is there already."""
        source = self._picture(original, None)
        first, second = panel_ref(source, 0), panel_ref(self._picture(edited, source), 0)
        pair_id = edit_pair_id(first, second, instruction, question)
        if pair_id in self._ids:
            return False
        self._ids.add(pair_id)
        prompt_id = self.rows[source]["prompt_id"]
        self.pairs.append(Pair(pair_id, prompt_id, first, second, label, instruction, answer, question=question))
        return True

    def ask(self, original: Image, edited: Image, edit: Edit, question: EditQuestion) -> bool:
        """Add a question about an edit of which all is known, with its true answer; False when it is there already."""
        answer = edit.answer(question)
        label = YES if answer.startswith(YES) else NO
        return self.add(original, edited, edit.instruction, label, answer, question)

    def _picture(self, image: Image, source: str | None) -> str:
        png = encode_png(image)
        md5 = md5_of(png)
        name = md5[:16]
        if name not in self.pictures:
            self.pictures[name] = png
            self.rows[name] = {
                "id": name,
                "prompt_id": f"edit-{source or name}",  # triples of one original share a split
                "seed": 0,
                "layout": LAYOUT,
                "height": image.height,
                "width": image.width,
                "md5": md5,
            }
        return name

    def write(self, out: Path, elsewhere: Set[str] = frozenset()) -> None:
        """Write the pictures as a shard below ``out``, but for those that lie in another one; nothing if none is left.

        Ids are digests of content: under one id lies one picture, and it may lie in one shard only.
        """
        if own := [row for name, row in self.rows.items() if name not in elsewhere]:
            write_shard(out / SHARD, own, self.pictures)

    @property
    def md5s(self) -> dict[str, str]:
        """Picture id -> MD5 as encoded."""
        return {name: row["md5"] for name, row in self.rows.items()}


def edit_pair_id(first: str, second: str, instruction: str, question: EditQuestion) -> str:
    """Id of an editing pair; the same two pictures may be asked two questions."""
    return digest([first, second, instruction, *([question] if question != "edit_consistency" else [])], 16)


def editing_pairs(params: EditingParams, root: Path) -> EditingPairs:
    """The pairs that the parameters ask for.

    Raises:
        DataError: when the file is missing, or no triple of it can be used.
    """
    if params.source == "storybook":
        return _drawn(params)
    if params.file is None:
        return EditingPairs()
    return _imported(root / params.file, params.count)


def _drawn(params: EditingParams) -> EditingPairs:
    found, seed = EditingPairs(), 0
    while len(found.pairs) < (params.count or 0):
        rng = random.Random(f"editing-{params.seed}-{seed}")
        broken, unheeded = rng.random() < params.broken_share, rng.random() < params.unheeded_share
        edit = random_edit(rng, broken=broken, unheeded=unheeded)
        question = params.questions[seed % len(params.questions)]
        found.ask(*edit.draw(params.size, seed), edit, question)
        seed += 1
    return found


def _imported(file: Path, limit: int | None) -> EditingPairs:
    found = EditingPairs()
    for place, record in _records(file, found.rejected):
        if limit is not None and len(found.pairs) == limit:
            break
        try:
            original, edited = (read_image(inside(file.parent, path)) for path in (record.original, record.edited))
        except DataError as error:
            found.rejected.add(place, f"picture: {error}")
            continue
        if not found.add(original, edited, record.instruction, record.label, record.answer, record.question):
            found.rejected.add(place, "duplicate: the triple occurs before")
    if not found.pairs:
        left_out = found.rejected
        raise DataError(f"{file}: none of its {len(left_out)} editing triples can be used{left_out.example}")
    return found


def foreseen_rejects(params: EditingParams, root: Path) -> Rejected:
    """Rows of the file that :func:`editing_pairs` will leave out, but for triples that occur twice; no pixels are kept.

    None where no row can be used, which it refuses.
    """
    file, used, rejected = root / str(params.file), 0, Rejected()
    for place, record in _records(file, rejected):
        if used == params.count:
            break
        try:
            for path in (record.original, record.edited):
                content_and_size(inside(file.parent, path))
            used += 1
        except DataError as error:
            rejected.add(place, f"picture: {error}")
    return rejected if used else Rejected()


def _records(file: Path, rejected: Rejected) -> Iterator[tuple[str, TripleRecord]]:
    for number, row in read_jsonl(file, rejected.lines_of(file)):
        place = f"{file}:{number}"
        try:
            yield place, TripleRecord.model_validate(row)
        except ValidationError as error:
            rejected.add(place, f"record: {first_validation_error(error)}")


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
