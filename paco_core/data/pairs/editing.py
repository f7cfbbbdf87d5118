"""Editing triples (original, instruction, edited picture), drawn by the embedded world or imported.

A triple becomes a pair like any other, with an instruction and a question: whether all but the edit stayed the same
(template ``edit_consistency``), or whether the edit was made (``edit_following``). Its two pictures lie in a shard
beside the pairs, each a grid of one panel.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ConfigDict, ValidationError, ValidationInfo, field_validator

from paco_core.config.params import EditQuestion
from paco_core.data.pairs.answers import NO, YES, fault, normalised
from paco_core.data.pairs.pairs import Pair
from paco_core.data.records.records import Words, panel_ref
from paco_core.io.files import DataError, digest, inside, md5_of, read_jsonl
from paco_core.io.pictures import content_and_size, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png, write_shard
from paco_core.io.validation import StrictModel, first_fault
from paco_core.storybook.editing import random_edit

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import EditingParams
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
            rejected.add(place, f"record: {first_fault(error)}")
