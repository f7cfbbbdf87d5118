"""PaCo-Dataset: rows in LLaMA-Factory's ShareGPT form, with the ``dataset_info.json`` that registers them.

{"messages": [{"role": "user", "content": "<image><image>..."}, {"role": "assistant", "content": "Yes. ..."}],
 "images": ["images/a.png", "images/b.png"]}

An entry's ``columns`` and ``tags`` say how its rows are written; without them either of LLaMA-Factory's two forms is
read: the one above, or ``conversations`` of ``{"from": "human" or "gpt", "value": ...}``.

Turns keep their order, as LLaMA-Factory demands: a question, its answer, and so on (:mod:`.turns`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.pairs.answers import normalised, opening
from paco_core.data.records.records import parse_ref
from paco_core.data.tables import read_rows
from paco_core.exchange.panel_files import PanelWriter
from paco_core.exchange.questions import PairQuestion, parse_question
from paco_core.exchange.turns import IMAGE, PICTURES, DialogueRound, Form, rounds
from paco_core.io.files import DataError, checked_name, inside, read_json, write_json, write_jsonl
from paco_core.io.pictures import image_size
from paco_core.io.rejected import Rejected
from paco_core.io.text import validate_marks

if TYPE_CHECKING:
    import pandas as pd

INFO = "dataset_info.json"
RANKED = "benchmark"  # the file of an import that holds rankings, not pairs
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
COLUMNS = {"messages": "messages", "images": "images"}


#: LLaMA-Factory's own default, where an entry names columns or tags but not all of them.
CONVERSATIONS = Form(
    messages="conversations", role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt"
)
FORMS = (Form(), CONVERSATIONS)


@dataclass(frozen=True)
class File:
    """A registered file, and the forms that its rows may have."""

    path: Path
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class ShareGptRow:
    """One pair as it was published; its answer begins as it is trained."""

    split: str
    first: Path
    second: Path
    question: PairQuestion
    answer: str

    @property
    def label(self) -> str:
        return opening(self.answer)


def write(folder: Path, tables: Mapping[str, pd.DataFrame], pictures: PanelWriter, template: str) -> None:
    """Write a file a split, the pictures below ``images``, and ``dataset_info.json``.

    Args:
        tables: split -> labelled pairs with answers (``data/cot_labels``).
        template: wording of the questions about a theme.
    """
    info = {}
    for split, table in tables.items():
        write_jsonl(folder / f"{split}.jsonl", (_row(row, pictures, template) for row in table.to_dict("records")))
        info[f"paco_{split}"] = {
            "file_name": f"{split}.jsonl", "formatting": "sharegpt", "columns": COLUMNS, "tags": TAGS,
        }  # fmt: skip
    write_json(folder / INFO, info)


def _row(row: dict[Any, Any], pictures: PanelWriter, template: str) -> dict[str, Any]:
    edit, asked = (t if isinstance(t, str) else None for t in (row.get("instruction"), row.get("question")))
    question = PairQuestion(row["theme"], edit, asked)
    if IMAGE in question.text(template) + row["answer"]:
        raise DataError(f"pair {row['pair_id']}: its text contains {IMAGE}, the mark of a picture in this format")
    names = ["images/{}_{}.png".format(*parse_ref(row[side])) for side in ("first", "second")]
    return {
        "id": row["pair_id"],
        "messages": [
            {"role": "user", "content": 2 * IMAGE + question.text(template)},
            {"role": "assistant", "content": row["answer"]},
        ],
        "images": [pictures.write(row[side], name) for side, name in zip(("first", "second"), names, strict=True)],
    }


def read(folder: Path, rejected: Rejected) -> Iterator[ShareGptRow]:
    """The rows of every registered file that can be used; the others go to ``rejected``.

    Raises:
        DataError: when ``dataset_info.json`` is missing, registers no ShareGPT file, one outside the folder, or two
            under names that become one; or a file is no list of rows.
    """
    for split, file in _files(folder, rejected).items():
        for place, raw in read_rows(file.path, rejected):
            try:
                form = next((form for form in file.forms if form.messages in raw), file.forms[0])
                found = rounds(raw, form)
            except DataError as error:
                rejected.add(place, str(error))
                continue
            for number, one in enumerate(found, start=1):
                try:
                    yield _parsed(folder, split, one)
                except DataError as error:
                    rejected.add(f"{place}, round {number}" if len(found) > 1 else place, str(error))


def _files(folder: Path, rejected: Rejected) -> dict[str, File]:
    """The registered files by split, which names a file of the import; other entries go to ``rejected``."""
    info, found, named = read_json(folder / INFO), dict[str, File](), dict[str, str]()
    for name, entry in info.items() if isinstance(info, dict) else ():
        if not isinstance(entry, dict) or entry.get("formatting") != "sharegpt" or "file_name" not in entry:
            rejected.add(f"{folder / INFO}: {name}", "entry: is no file in the ShareGPT form (formatting, file_name)")
            continue
        if not isinstance(entry.get("ranking"), bool | None):
            rejected.add(f"{folder / INFO}: {name}", f"entry: ranking is {entry['ranking']!r}, expected true or false")
            continue
        if entry.get("ranking"):
            rejected.add(f"{folder / INFO}: {name}", "entry: holds preferences (ranking: true), expected one answer")
            continue
        split = re.sub(r"\W+", "_", name.removeprefix("paco_"), flags=re.ASCII)
        try:
            checked_name(split)
            file = inside(folder, entry["file_name"])
        except DataError as error:
            raise DataError(f"{folder / INFO}: {name}: {error}") from None
        if split.lower() == RANKED or split.lower() in named:
            other = named.get(split.lower(), "the rankings of an import")
            raise DataError(f"{folder / INFO}: {name}: its pairs and {other} would be in one file, {split}.parquet")
        named[split.lower()] = name
        found[split] = File(file, _forms(entry))
    if not found:
        raise DataError(f"{folder / INFO}: registers no ShareGPT file (formatting: sharegpt, file_name: ...)")
    return found


def _forms(entry: Mapping[str, Any]) -> tuple[Form, ...]:
    given = {**(entry.get("columns") or {}), **(entry.get("tags") or {})}
    names = CONVERSATIONS.__dataclass_fields__
    known = {name: value for name, value in given.items() if name in names and isinstance(value, str)}
    return (replace(CONVERSATIONS, **known),) if known else FORMS


def _parsed(folder: Path, split: str, one: DialogueRound) -> ShareGptRow:
    if len(one.images) != PICTURES:
        raise DataError(f"record: its question shows {len(one.images)} pictures, expected {PICTURES} ({IMAGE} marks)")
    question = parse_question(one.asked)
    if question is None:
        raise DataError(f"question: its wording is not one that the reward model is trained on: {one.asked[:80]!r}")
    for part, text in (("question", one.asked), ("answer", one.answer)):
        try:
            validate_marks(text)
        except ValueError as error:
            raise DataError(f"{part}: it {error}") from None
    try:
        answer = normalised(one.answer)
    except DataError as error:
        raise DataError(f"answer: {error}") from None
    try:
        first, second = (inside(folder, name) for name in one.images)
        for path in (first, second):
            image_size(path)
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    return ShareGptRow(split, first, second, question, answer)
