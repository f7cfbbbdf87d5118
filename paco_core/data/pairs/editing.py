"""Editing pairs: an original, an instruction and an edited picture, from the storybook world, a file or an editor.

An edit becomes an ordinary pair with an instruction and a question. The question is either whether all except the edit
is unchanged (template ``edit_consistency``), or whether the edit was made (``edit_following``). Both pictures are in a
shard next to the pairs; each is a grid of one panel.

The stage ``edits`` writes what base editors made of the training edit prompts: ``painted.jsonl``, one
:class:`GeneratedEdit` per line, and the shard ``pictures``. With equal parameters the pictures are equal on one
machine. Other prompts or seeds in a batch may change pixels by rounding
(:func:`paco_core.sampling.generation.generate_images`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator

from paco_core.config.params import EditQuestion
from paco_core.data.pairs.answers import NO, YES, normalize_answer, validation_error
from paco_core.data.pairs.pairs import Pair
from paco_core.data.pairs.pictures import PairPictures
from paco_core.data.records.edit_records import EditRecord, requested_edit
from paco_core.data.records.records import Id, Words, panel_ref, validated
from paco_core.io.files import DataError, digest, inside, read_jsonl, write_jsonl
from paco_core.io.pictures import content_and_size, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import ShardReader, encode_png, write_shard
from paco_core.io.validation import StrictModel, first_validation_error
from paco_core.storybook.editing import Edit, change_trait, random_edit
from paco_core.storybook.world import VOCABULARY, Panel

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import EditingParams, EditQuestion
    from paco_core.data.records.edit_records import References
    from paco_core.storybook.editing import Edit


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
    def _normalised(cls, answer: str | None, info: ValidationInfo) -> str | None:
        if answer is None or "label" not in info.data:
            return answer
        if cause := validation_error(answer, info.data["label"]):
            raise ValueError(f"{answer[:40]!r} does not fit the label {info.data['label']} ({cause})")
        return normalize_answer(answer)


@dataclass
class EditingPairs:
    """Editing pairs, their pictures, and the rejected rows by place and cause."""

    pairs: list[Pair] = field(default_factory=list)
    pictures: PairPictures = field(default_factory=PairPictures)
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
        """Add a triple; returns False if it exists already.

        Args:
            label: the answer to the question, ``Yes`` or ``No``.
            answer: the label and the reasons; None: the stage ``cot_labels`` writes them.
            question: name of the instruction template.
        """
        source = self.pictures.add(original, "edit-{}")
        first, second = panel_ref(source, 0), self.pictures.add_panel(edited, f"edit-{source}")
        pair_id = edit_pair_id(first, second, instruction, question)
        if pair_id in self._ids:
            return False
        self._ids.add(pair_id)
        prompt_id = self.pictures.rows[source]["prompt_id"]  # triples of one original share a split
        self.pairs.append(Pair(pair_id, prompt_id, first, second, label, instruction, answer, question=question))
        return True

    def add_question(self, original: Image, edited: Image, edit: Edit, question: EditQuestion) -> bool:
        """Add a question about an edit with known traits and its true answer; returns False if it exists already."""
        answer = edit.answer(question)
        label = YES if answer.startswith(YES) else NO
        return self.add(original, edited, edit.instruction, label, answer, question)


def edit_pair_id(first: str, second: str, instruction: str, question: EditQuestion) -> str:
    """Id of an editing pair. It depends on the question, because two questions can use the same two pictures."""
    return digest([first, second, instruction, *([question] if question != "edit_consistency" else [])], 16)


def editing_pairs(params: EditingParams, root: Path) -> EditingPairs:
    """Build the editing pairs of the parameters.

    Raises:
        DataError: if the file is missing, or no triple in it can be used.
    """
    if params.source == "storybook":
        return _storybook_pairs(params)
    if params.file is None:
        return EditingPairs()
    return _imported(root / params.file, params.count)


def _storybook_pairs(params: EditingParams) -> EditingPairs:
    editing, seed = EditingPairs(), 0
    while len(editing.pairs) < (params.count or 0):
        rng = random.Random(f"editing-{params.seed}-{seed}")
        broken, unheeded = rng.random() < params.broken_share, rng.random() < params.unheeded_share
        edit = random_edit(rng, broken=broken, unheeded=unheeded)
        question = params.questions[seed % len(params.questions)]
        editing.add_question(*edit.draw(params.size, seed), edit, question)
        seed += 1
    return editing


def _imported(file: Path, limit: int | None) -> EditingPairs:
    editing = EditingPairs()
    for place, record in _records(file, editing.rejected):
        if limit is not None and len(editing.pairs) == limit:
            break
        try:
            original, edited = (read_image(inside(file.parent, path)) for path in (record.original, record.edited))
        except DataError as error:
            editing.rejected.add(place, f"picture: {error}")
            continue
        if not editing.add(original, edited, record.instruction, record.label, record.answer, record.question):
            editing.rejected.add(place, "duplicate: the triple occurs before")
    if not editing.pairs:
        left_out = editing.rejected
        raise DataError(f"{file}: none of its {len(left_out)} editing triples can be used{left_out.example}")
    return editing


def add_expected_rejects(params: EditingParams, root: Path, rejected: Rejected) -> int:
    """Add the rows of the file that :func:`editing_pairs` will reject, except repeated triples. It decodes no pixels.

    Returns:
        Number of rows that can be used. If it is 0, :func:`editing_pairs` raises an error.
    """
    file, used = root / str(params.file), 0
    for place, record in _records(file, rejected):
        if used == params.count:
            break
        try:
            for path in (record.original, record.edited):
                content_and_size(inside(file.parent, path))
            used += 1
        except DataError as error:
            rejected.add(place, f"picture: {error}")
    return used


def _records(file: Path, rejected: Rejected) -> Iterator[tuple[str, TripleRecord]]:
    for number, row in read_jsonl(file, rejected.lines_of(file)):
        place = f"{file}:{number}"
        try:
            yield place, TripleRecord.model_validate(row)
        except ValidationError as error:
            rejected.add(place, f"record: {first_validation_error(error)}")


FILE, SHARD = "painted.jsonl", "pictures"


class GeneratedEdit(StrictModel):
    """One picture (``id`` in the shard) that ``painter`` generated from the editing prompt ``prompt_id`` and ``seed``.

    ``shows``: trait -> word, as the recogniser reads the picture.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: Id
    prompt_id: Id
    painter: str
    seed: int
    shows: dict[str, str]

    @classmethod
    def from_parts(cls, prompt_id: str, painter: str, seed: int, shows: Mapping[str, str]) -> GeneratedEdit:
        return cls(
            id=digest([prompt_id, painter, seed], 16),
            prompt_id=prompt_id,
            painter=painter,
            seed=seed,
            shows=dict(shows),
        )


def write_generated_edits(out: Path, edits: Sequence[GeneratedEdit], images: Mapping[str, Image]) -> None:
    """Write the records and their pictures (by id) to the folder ``out``. Without records there is no shard."""
    write_jsonl(out / FILE, (edit.model_dump() for edit in edits))
    if edits:
        rows = [{"id": edit.id, "height": images[edit.id].height, "width": images[edit.id].width} for edit in edits]
        write_shard(out / SHARD, rows, {edit.id: encode_png(images[edit.id]) for edit in edits})


def read_generated_edits(folder: Path) -> tuple[list[GeneratedEdit], ShardReader]:
    """Read the records and pictures of :func:`write_generated_edits`.

    Raises:
        DataError: if a record is invalid, with its file and line.
    """
    path = folder / FILE
    edits = [validated(GeneratedEdit, row, f"{path}:{number}") for number, row in read_jsonl(path)]
    return edits, ShardReader([folder / SHARD] if edits else [])


def add_generated_edits(
    editing: EditingPairs,
    folder: Path,
    records: Sequence[EditRecord],
    reference: References,
    questions: Sequence[EditQuestion],
) -> int:
    """Add questions about every generated edit to ``editing``, and return the number of questions.

    Each picture gets three questions: whether the other traits are unchanged, whether the edit was made, and whether
    another edit was made, which the editor did not receive. Without the third question nearly every answer about
    following would be Yes, and a reward model would learn to answer Yes without looking at the picture.

    Args:
        folder: output of the stage ``edits``.
        reference: returns the reference pictures of a record.
        questions: the kinds of question to add.

    Raises:
        DataError: if the record of a generated edit is missing, or its traits are unknown.
    """
    edits, pictures = read_generated_edits(folder)
    records_by_id = {record.idx: record for record in records}
    count = 0
    for generated in edits:
        if generated.prompt_id not in records_by_id:
            raise DataError(
                f"{folder / FILE}: {generated.id} belongs to prompt {generated.prompt_id}, which is not in "
                "data/edit_prompts; run `dvc repro edit_prompts edits`"
            )
        record = records_by_id[generated.prompt_id]
        (original, *_), picture = reference(record), pictures.read(generated.id)
        for question, edit in _questions(record, generated):
            if question in questions:
                count += editing.add_question(original, picture, edit, question)
    return count


def _questions(record: EditRecord, generated: GeneratedEdit) -> Iterator[tuple[EditQuestion, Edit]]:
    traits, trait, word = requested_edit(record)
    before, after = Panel(**traits), Panel(**generated.shows)  # type: ignore[arg-type]
    requested = Edit(before, after, trait, word)
    yield "edit_consistency", requested
    yield "edit_following", requested
    rng = random.Random(f"another instruction {generated.id}")
    other = rng.choice([name for name in VOCABULARY if name != trait])
    yield "edit_following", Edit(before, after, other, str(getattr(change_trait(before, other, rng), other)))
