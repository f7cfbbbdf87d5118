"""PaCo-Dataset: rows in LLaMA-Factory's ShareGPT form, with the ``dataset_info.json`` that registers them.

{"messages": [{"role": "user", "content": "<image><image>..."}, {"role": "assistant", "content": "Yes. ..."}],
 "images": ["images/a.png", "images/b.png"]}

An entry's ``columns`` and ``tags`` say how its rows are written; without them either of LLaMA-Factory's two forms is
read: the one above, or ``conversations`` of ``{"from": "human" or "gpt", "value": ...}``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.records.records import parse_ref
from paco_core.exchange.panel_files import PanelWriter
from paco_core.exchange.questions import Question, parse_question
from paco_core.io.files import DataError, checked_name, inside, read_json, read_jsonl, write_json, write_jsonl
from paco_core.io.pictures import image_size
from paco_core.io.rejected import Rejected
from paco_core.reward_model.examples import opening

if TYPE_CHECKING:
    import pandas as pd

IMAGE = "<image>"
INFO = "dataset_info.json"
RANKED = "benchmark"  # the file of an import that holds rankings, not pairs
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
COLUMNS = {"messages": "messages", "images": "images"}


@dataclass(frozen=True)
class Form:
    """How the rows of a file are written: the keys of a row and of a turn, and the names of the two who speak."""

    messages: str = "messages"
    images: str = "images"
    role_tag: str = "role"
    content_tag: str = "content"
    user_tag: str = "user"
    assistant_tag: str = "assistant"


#: LLaMA-Factory's own default, where an entry names columns or tags but not all of them.
CONVERSATIONS = Form("conversations", "images", "from", "value", "human", "gpt")
FORMS = (Form(), CONVERSATIONS)


@dataclass(frozen=True)
class File:
    """A registered file, and the forms that its rows may have."""

    path: Path
    forms: tuple[Form, ...]


@dataclass(frozen=True)
class Row:
    """One pair as it was published."""

    split: str
    first: Path
    second: Path
    question: Question
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
    question = Question(row["theme"], edit, asked)
    names = ["images/{}_{}.png".format(*parse_ref(row[side])) for side in ("first", "second")]
    return {
        "id": row["pair_id"],
        "messages": [
            {"role": "user", "content": 2 * IMAGE + question.text(template)},
            {"role": "assistant", "content": row["answer"]},
        ],
        "images": [pictures.write(row[side], name) for side, name in zip(("first", "second"), names, strict=True)],
    }


def read(folder: Path, rejected: Rejected) -> Iterator[Row]:
    """The rows of every registered file that can be used; the others go to ``rejected``.

    Raises:
        DataError: when ``dataset_info.json`` is missing, registers no ShareGPT file, one outside the folder, or two
            under names that become one; or a file is no list of rows.
    """
    for split, file in _files(folder).items():
        for place, raw in _lines(file.path, rejected):
            try:
                yield _parsed(folder, split, raw, file.forms)
            except DataError as error:
                rejected.add(place, str(error))


def _files(folder: Path) -> dict[str, File]:
    """The registered files by split, which names a file of the import."""
    info, found, named = read_json(folder / INFO), dict[str, File](), dict[str, str]()
    for name, entry in info.items() if isinstance(info, dict) else ():
        if not isinstance(entry, dict) or entry.get("formatting") != "sharegpt" or "file_name" not in entry:
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


def _lines(file: Path, rejected: Rejected) -> Iterator[tuple[str, Any]]:
    """(place, row) of JSON Lines, or of one JSON list as LLaMA-Factory's own files are."""
    if file.suffix == ".json":
        rows = read_json(file)
        if not isinstance(rows, list):
            raise DataError(f"{file}: expected a list of rows, found {type(rows).__name__}")
        yield from ((f"{file}[{number}]", row) for number, row in enumerate(rows))
    else:
        rows_of_lines = read_jsonl(file, rejected.lines_of(file))
        yield from ((f"{file}:{number}", row) for number, row in rows_of_lines)


def _parsed(folder: Path, split: str, row: Any, forms: tuple[Form, ...]) -> Row:
    form = next((form for form in forms if isinstance(row, dict) and form.messages in row), forms[0])
    try:
        contents = {turn[form.role_tag]: turn[form.content_tag] for turn in row[form.messages]}
        asked, answer = str(contents[form.user_tag]), str(contents[form.assistant_tag])
        images = list(row[form.images])
    except (KeyError, TypeError) as error:
        raise DataError(f"record: not a row of ShareGPT messages and images ({error!r})") from None
    if len(images) != 2 or asked.count(IMAGE) != 2:
        raise DataError(f"record: {len(images)} images and {asked.count(IMAGE)} {IMAGE} marks, expected 2 of each")
    question = parse_question(asked.replace(IMAGE, ""))
    if question is None:
        raise DataError(f"question: its wording is not one that the reward model is trained on: {asked[:80]!r}")
    if opening(answer) not in ("Yes", "No"):
        raise DataError(f"answer: begins with neither Yes nor No: {answer[:40]!r}")
    try:
        first, second = (inside(folder, name) for name in images)
        for path in (first, second):
            image_size(path)
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    return Row(split, first, second, question, answer)
