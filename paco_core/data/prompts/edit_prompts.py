"""Makes editing prompts: drawn by the embedded world, or from a file with the columns of GEdit-Bench.

Rows that share a picture (GEdit-Bench has an English and a Chinese one about each) always lie in the same part.
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
    """One line of a file made elsewhere; other keys are ignored.

    ``input_image`` is the path of a picture, or a list of paths in the order in which the instruction counts them, the
    one to edit first. Paths are relative to the file, and below it.
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
    """Records, their pictures, and the rows that were left out, by place and cause."""

    records: list[EditRecord] = field(default_factory=list)
    pictures: dict[str, bytes] = field(default_factory=dict)  # id -> PNG
    rejected: Rejected = field(default_factory=Rejected)
    _sizes: dict[str, tuple[int, int]] = field(default_factory=dict)  # id -> (width, height)

    def picture(self, image: Image) -> str:
        """Keep a picture; its id is its content's, so that the same picture is the same wherever it comes from."""
        png = encode_png(image)
        name = md5_of(png)[:16]
        self.pictures[name], self._sizes[name] = png, image.size
        return name

    def head(self, path: Path) -> str:
        """Keep the size of a picture, and not its pixels; its id is that of the file's content.

        Raises:
            DataError: when it is missing, truncated, or no picture.
        """
        md5, size = content_and_size(path)
        self._sizes[md5[:16]], self.pictures[md5[:16]] = size, b""
        return md5[:16]

    def reference(self, record: PromptRecord) -> list[Image]:
        """The pictures that a record is about, as :class:`References` gives them from disk."""
        assert isinstance(record, EditRecord)
        return [decode_image(self.pictures[name], name) for name in record.references]

    def record(self, idx: str, instruction: str, pictures: Sequence[str], **fields: Any) -> EditRecord:
        """A record about kept pictures; it is for training until :meth:`hold_out`."""
        width, height = self._sizes[pictures[0]]
        values: dict[str, Any] = {
            "idx": idx, "prompt": instruction, "theme": instruction, "height": height, "width": width,
            "reference": list(pictures), "part": "train",
        }  # fmt: skip
        return EditRecord(**values, **fields)

    def hold_out(self, pictures: int, seed: int) -> None:
        """Hold so many pictures back from training, with all their rows; which ones depends on seed and content.

        Pictures that rows name together count as one.

        Raises:
            DataError: when nothing would be left to train on.
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
        """Write records and pictures to the folder ``out``."""
        rows = [
            {"id": name, "md5": md5_of(png)} | dict(zip(("width", "height"), self._sizes[name], strict=True))
            for name, png in self.pictures.items()
        ]
        write_shard(out / SHARD, rows, self.pictures)
        write_jsonl(out / FILE, (record.model_dump() for record in self.records))


def storybook_edit_prompts(count: int, size: int, seed: int) -> EditPrompts:
    """Edits of the embedded world, each of a picture of its own, ``size`` x ``size`` pixels."""
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


def read_edit_rows(file: Path, limit: int | None = None, *, heads: bool = False) -> EditPrompts:
    """Instructions and pictures of a JSON Lines file (keys of :class:`EditRow`).

    A row that cannot be used is left out and reported with its place and cause.

    Args:
        heads: keep of a picture its size alone, to know beforehand what will be there.

    Raises:
        DataError: when the file is missing, or none of its rows can be used.
    """
    prompts, names, keys = EditPrompts(), UniqueIds(), dict[str, str]()
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
    """What the parameters ask for, a part of it held back; nothing for the source ``none``.

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
    """What :func:`make_edit_prompts` will leave, as far as parameters and file say: sizes and parts, but no pixels.

    Drawn prompts are stand-ins, all alike. Of a file that is missing, which `paco check` reports, there are none.

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
