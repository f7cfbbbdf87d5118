"""Editing prompts: drawn in the embedded world, or read from a file with the columns of GEdit-Bench.

Rows that share an image are always in the same split. For example, GEdit-Bench has an English and a Chinese row per
image.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, ValidationError

from paco_core.data.records.edit_records import FILE, SHARD, EditRecord, connected_groups
from paco_core.data.records.prompt_content import prompt_key
from paco_core.data.records.records import Id, Words
from paco_core.io.files import DataError, UniqueIds, digest, inside, md5_of, read_jsonl, write_jsonl
from paco_core.io.pictures import content_and_size, decode_image, read_image
from paco_core.io.rejected import Rejected
from paco_core.io.shards import encode_png, write_shard
from paco_core.io.validation import StrictModel, first_validation_error
from paco_core.storybook.editing import random_edit
from paco_core.storybook.world import VOCABULARY

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.config.params import EditPromptsParams
    from paco_core.data.records.records import PromptRecord


class EditRow(StrictModel):
    """One line of an external file; other keys are ignored.

    ``input_image`` is the path of an image, or a list of paths in the order of the instruction, the image to edit
    first. Paths are relative to the file's folder, and below it.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    key: Id | None = None
    instruction: Words
    input_image: Words | Annotated[list[Words], Field(min_length=1)]
    task_type: str = "edit"
    instruction_language: str = "en"
    Intersection_exist: bool | None = None  # as GEdit-Bench spells it

    @property
    def pictures(self) -> list[str]:
        return [self.input_image] if isinstance(self.input_image, str) else self.input_image


@dataclass
class EditPrompts:
    """Records, their images, and the rejected rows, by place and cause."""

    records: list[EditRecord] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)  # id -> PNG
    rejected: Rejected = field(default_factory=Rejected)
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> (width, height)

    def picture(self, image: Image) -> str:
        """Store an image. Its id is its content's digest, so equal images have equal ids."""
        png = encode_png(image)
        name = md5_of(png)[:16]
        self.pictures[name], self._sizes[name] = png, image.size
        return name

    def head(self, path: Path) -> str:
        """Store the size of an image without its pixels. Its id is the digest of the file's content.

        Raises:
            DataError: if the file is missing, truncated or not an image.
        """
        md5, size = content_and_size(path)
        self._sizes[md5[:16]], self.pictures[md5[:16]] = size, b""
        return md5[:16]

    def reference(self, record: PromptRecord) -> list[Image]:
        """The images of a record, as :class:`References` reads them from disk."""
        assert isinstance(record, EditRecord)
        return [decode_image(self.pictures[name], name) for name in record.references]

    def record(self, idx: str, instruction: str, pictures: Sequence[str], **fields: Any) -> EditRecord:
        """A record about stored images. It is for training unless :meth:`hold_out` holds it out."""
        width, height = self._sizes[pictures[0]]
        values: dict[str, Any] = {
            "idx": idx, "prompt": instruction, "theme": instruction, "height": height, "width": width,
            "reference": list(pictures), "part": "train",
        }  # fmt: skip
        return EditRecord(**values, **fields)

    def hold_out(self, pictures: int, seed: int) -> None:
        """Hold out this number of images with all their rows. The choice depends on seed and content.

        Images that a row uses together count as one.

        Raises:
            DataError: if nothing would remain for training.
        """
        group_of = connected_groups(record.references for record in self.records)
        groups = sorted(set(group_of.values()), key=lambda name: digest([seed, name], 32))
        if pictures >= len(groups):
            together = "" if len(groups) == len(group_of) else " (those that rows name together count as one)"
            raise DataError(
                f"edit_prompts.unseen={pictures} holds back all of the {len(groups)} pictures{together}; choose at "
                f"most {len(groups) - 1}, or raise edit_prompts.count"
            )
        unseen = set(groups[:pictures])
        self.records = [
            record.model_copy(update={"part": "unseen"}) if group_of[record.references[0]] in unseen else record
            for record in self.records
        ]

    def write(self, out: Path) -> None:
        """Write records and images to the folder ``out``."""
        rows = [
            {"id": name, "md5": md5_of(png)} | dict(zip(("width", "height"), self._sizes[name], strict=True))
            for name, png in self.pictures.items()
        ]
        write_shard(out / SHARD, rows, self.pictures)
        write_jsonl(out / FILE, (record.model_dump() for record in self.records))


def storybook_edit_prompts(count: int, size: int, seed: int) -> EditPrompts:
    """Edits of the embedded world, each with a separate image of ``size`` x ``size`` pixels."""
    prompts, number = EditPrompts(), 0
    while len(prompts.pictures) < count:
        edit = random_edit(random.Random(f"edit-prompts-{seed}-{number}"))
        num_pictures = len(prompts.pictures)
        name = prompts.picture(edit.draw(size, seed=(seed << 32) + number)[0])
        number += 1
        if len(prompts.pictures) == num_pictures:
            continue  # the same picture again: it would have two ids of its own
        before = {trait: str(getattr(edit.before, trait)) for trait in VOCABULARY}
        idx, fields = (
            f"e{len(prompts.records):05d}",
            {"before": before, "trait": edit.trait, "word": edit.requested_word},
        )
        prompts.records.append(prompts.record(idx, edit.instruction, [name], task_name=edit.trait, **fields))
    return prompts


def read_edit_rows(
    file: Path, limit: int | None = None, *, heads: bool = False, rejected: Rejected | None = None
) -> EditPrompts:
    """Instructions and images of a JSON Lines file (keys of :class:`EditRow`).

    A row that cannot be used is skipped and reported with its place and cause.

    Args:
        heads: keep only the size of each image, to plan without pixels.
        rejected: gets the rows that are left out, also when an error is raised.

    Raises:
        DataError: if the file is missing, or none of its rows can be used.
    """
    prompts, names, keys = EditPrompts(), UniqueIds(), dict[str, str]()
    if rejected is not None:
        prompts.rejected = rejected
    for number, row in read_jsonl(file, prompts.rejected.lines_of(file)):
        if limit is not None and len(prompts.records) == limit:
            break
        place = f"{file}:{number}"
        try:
            edit_row = EditRow.model_validate(row)
        except ValidationError as error:
            prompts.rejected.add(place, f"record: {first_validation_error(error)}")
            continue
        try:
            paths = [inside(file.parent, path) for path in edit_row.pictures]
            pictures = [prompts.head(path) if heads else prompts.picture(read_image(path)) for path in paths]
        except DataError as error:
            prompts.rejected.add(place, f"picture: {error}")
            continue
        idx = edit_row.key or digest([*pictures, edit_row.instruction])
        try:
            names.add(idx, number)
        except DataError as error:
            prompts.rejected.add(place, f"duplicate: id {error}")
            continue
        record = prompts.record(
            idx, edit_row.instruction, pictures, task_name=edit_row.task_type, language=edit_row.instruction_language,
            **({} if edit_row.Intersection_exist is None else {"intersection": edit_row.Intersection_exist}),
        )  # fmt: skip
        if (first := keys.setdefault(prompt_key(record), idx)) != idx:
            prompts.rejected.add(place, f"duplicate: the images and the instruction are those of id {first}")
            continue
        prompts.records.append(record)
    if not prompts.records:
        raise DataError(f"{file}: none of its {len(prompts.rejected)} rows can be used{prompts.rejected.example}")
    used = {name for record in prompts.records for name in record.references}
    prompts.pictures = {name: png for name, png in prompts.pictures.items() if name in used}
    return prompts


def make_edit_prompts(params: EditPromptsParams, root: Path) -> EditPrompts:
    """Editing prompts by the parameters, a part of them held out; empty for the source ``none``.

    Raises:
        DataError: as :func:`read_edit_rows` and :meth:`EditPrompts.hold_out`.
    """
    if params.source == "none":
        return EditPrompts()
    if params.source == "storybook":
        prompts = storybook_edit_prompts(int(params.count or 0), params.size, params.seed)
    else:
        prompts = read_edit_rows(root / str(params.file), params.count)
    prompts.hold_out(params.unseen, params.seed)
    return prompts


def plan_edits(params: EditPromptsParams, root: Path) -> list[EditRecord]:
    """Expected result of :func:`make_edit_prompts`, from parameters and file: sizes and parts, without pixels.

    Drawn prompts are equal placeholders. A missing file gives no prompts; `paco check` reports it.

    Raises:
        DataError: as :func:`make_edit_prompts`.
    """
    if params.source == "file":
        if not (root / str(params.file)).is_file():
            return []
        prompts = read_edit_rows(root / str(params.file), params.count, heads=True)
        prompts.hold_out(params.unseen, params.seed)
        return prompts.records
    if params.source == "none":
        return []
    stand_in = EditRecord.model_validate({
        "idx": "drawn", "reference": "drawn", "prompt": "drawn", "theme": "drawn", "task_name": "drawn",
        "part": "train", "height": params.size, "width": params.size, "before": {"drawn": "drawn"}, "trait": "drawn",
        "word": "drawn",
    })  # fmt: skip
    count = int(params.count or 0)
    return [stand_in] * (count - params.unseen) + [stand_in.model_copy(update={"part": "unseen"})] * params.unseen
