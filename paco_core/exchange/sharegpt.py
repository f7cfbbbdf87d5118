"""PaCo-Dataset: rows in LLaMA-Factory's ShareGPT format, with the ``dataset_info.json`` that registers them.

{"messages": [{"role": "user", "content": "<image><image>..."}, {"role": "assistant", "content": "Yes. ..."}],
 "images": ["images/a.png", "images/b.png"]}

An entry's ``columns`` and ``tags`` define the keys of its rows. Without them, a row has one of LLaMA-Factory's two
defaults: the format above, or ``conversations`` of ``{"from": "human" or "gpt", "value": ...}``.

As LLaMA-Factory requires, queries and answers alternate.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.data.pairs.answers import leading_verdict, normalize_answer
from paco_core.data.records.records import parse_ref
from paco_core.data.tables import read_rows
from paco_core.exchange.panel_files import PanelWriter
from paco_core.io.files import DataError, checked_name, inside, read_json, write_json, write_jsonl
from paco_core.io.pictures import image_size
from paco_core.io.rejected import Rejected
from paco_core.io.text import validate_marks
from paco_core.reward_model.examples import CHARACTER_TEMPLATE, EDIT_TEMPLATE, EDIT_TEMPLATES
from paco_core.reward_model.instructions import TEMPLATES, render_instruction

if TYPE_CHECKING:
    import pandas as pd

INFO = "dataset_info.json"
RANKED = "benchmark"  # file of an import with rankings instead of pairs
TAGS = {"role_tag": "role", "content_tag": "content", "user_tag": "user", "assistant_tag": "assistant"}
COLUMNS = {"messages": "messages", "images": "images"}
IMAGE = "<image>"
PICTURES = 2  # of a pair, and so of a question
#: The chat template of Qwen2.5-VL writes it if there is no system turn. Any other one changes the prompt.
USUAL_SYSTEM = ("", "You are a helpful assistant.")


@dataclass(frozen=True)
class Form:
    """The spelling of a file's rows: keys of a row and of a turn, and names of the roles."""

    messages: str = "messages"
    images: str = "images"
    system: str = "system"
    role_tag: str = "role"
    content_tag: str = "content"
    user_tag: str = "user"
    assistant_tag: str = "assistant"
    system_tag: str = "system"


#: Defaults of LLaMA-Factory, for the columns and tags that an entry leaves out.
CONVERSATIONS = Form(
    messages="conversations", role_tag="from", content_tag="value", user_tag="human", assistant_tag="gpt"
)
FORMS = (Form(), CONVERSATIONS)


@dataclass(frozen=True)
class PairQuestion:
    """The question about a pair: about a theme, an edit, or the character ``name``, or (all None) plain.

    ``template``: of an edit, if it is not the default, and of a character.
    """

    theme: str | None = None
    instruction: str | None = None
    template: str | None = None
    name: str | None = None

    def text(self, template: str) -> str:
        """The wording; edits and characters have separate templates."""
        if self.name is not None:
            return render_instruction(CHARACTER_TEMPLATE, name=self.name)
        if self.instruction is not None:
            return render_instruction(self.template or EDIT_TEMPLATE, instruction=self.instruction)
        return render_instruction(template, theme=self.theme)


def _pattern(template: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\\{(\w+)\\}", r"(?P<\1>.+)", re.escape(TEMPLATES[template])), re.DOTALL)


_PATTERNS = {name: _pattern(name) for name in ("theme", "plain", *EDIT_TEMPLATES, CHARACTER_TEMPLATE)}
_TEMPLATES_OF_PAIRS = (*EDIT_TEMPLATES[1:], CHARACTER_TEMPLATE)  # templates that a pair names


def parse_question(text: str) -> PairQuestion | None:
    """Inverse of :meth:`PairQuestion.text`; None for another wording, or for a blank theme or instruction."""
    for name, pattern in _PATTERNS.items():
        match = pattern.fullmatch(text.strip())
        if match and all(part.strip() for part in match.groups()):
            return PairQuestion(**match.groupdict(), template=name if name in _TEMPLATES_OF_PAIRS else None)
    return None


@dataclass(frozen=True)
class DialogueRound:
    """A question without its image marks, the answer that follows it, and the images of its marks."""

    question: str
    answer: str
    images: list[str]


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
        return leading_verdict(self.answer)


def write_sharegpt(folder: Path, tables: Mapping[str, pd.DataFrame], pictures: PanelWriter, template: str) -> None:
    """Write one file per split, the images below ``images``, and ``dataset_info.json``.

    Args:
        tables: split -> labelled pairs with answers (``data/cot_labels``).
        template: wording of the queries about a theme.
    """
    info = {}
    for split, table in tables.items():
        write_jsonl(folder / f"{split}.jsonl", (_row(row, pictures, template) for row in table.to_dict("records")))
        info[f"paco_{split}"] = {
            "file_name": f"{split}.jsonl", "formatting": "sharegpt", "columns": COLUMNS, "tags": TAGS,
        }  # fmt: skip
    write_json(folder / INFO, info)


def _row(row: dict[Any, Any], pictures: PanelWriter, template: str) -> dict[str, Any]:
    edit, template_name, character = (
        text if isinstance(text := row.get(column), str) else None
        for column in ("instruction", "question", "character")
    )
    question = PairQuestion(row["theme"], edit, template_name, character)
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


def read_sharegpt(folder: Path, rejected: Rejected) -> Iterator[ShareGptRow]:
    """The usable rows of every registered file. The rest is added to ``rejected``.

    Raises:
        DataError: if ``dataset_info.json`` is missing, registers no ShareGPT file, a file outside the folder, or two
            entries whose names become equal; or if a file is not a list of rows.
    """
    for split, (file, forms) in _files(folder, rejected).items():
        for place, raw in read_rows(file, rejected):
            try:
                form = next((form for form in forms if form.messages in raw), forms[0])
                rounds = dialogue_rounds(raw, form)
            except DataError as error:
                rejected.add(place, str(error))
                continue
            for number, dialogue in enumerate(rounds, start=1):
                try:
                    yield _parsed(folder, split, dialogue)
                except DataError as error:
                    rejected.add(f"{place}, round {number}" if len(rounds) > 1 else place, str(error))


def _files(folder: Path, rejected: Rejected) -> dict[str, tuple[Path, tuple[Form, ...]]]:
    """The registered files and the forms of their rows, by split. Other entries are added to ``rejected``."""
    info = read_json(folder / INFO)
    files = dict[str, tuple[Path, tuple[Form, ...]]]()
    entry_of = {RANKED: "the rankings of an import"}  # name of a file of the import, in lower case -> its entry
    for name, entry in info.items() if isinstance(info, dict) else ():
        place = f"{folder / INFO}: {name}"
        if not isinstance(entry, dict) or entry.get("formatting") != "sharegpt" or "file_name" not in entry:
            rejected.add(place, "entry: is no file in the ShareGPT form (formatting, file_name)")
            continue
        ranking = entry.get("ranking")
        if ranking is not None and ranking is not False:
            rejected.add(place, f"entry: ranking is {ranking!r}, expected false: one answer, no preferences")
            continue
        split = re.sub(r"\W+", "_", name.removeprefix("paco_"), flags=re.ASCII)
        try:
            checked_name(split)
            file = inside(folder, entry["file_name"])
        except DataError as error:
            raise DataError(f"{place}: {error}") from None
        if (other := entry_of.setdefault(split.lower(), name)) != name:
            raise DataError(f"{place}: its pairs and {other} would be in one file, {split}.parquet")
        files[split] = file, _forms(entry)
    if not files:
        raise DataError(f"{folder / INFO}: registers no ShareGPT file (formatting: sharegpt, file_name: ...)")
    return files


def _forms(entry: Mapping[str, Any]) -> tuple[Form, ...]:
    names = {**(entry.get("columns") or {}), **(entry.get("tags") or {})}
    fields = CONVERSATIONS.__dataclass_fields__
    spelled = {field: name for field, name in names.items() if field in fields and isinstance(name, str)}
    return (replace(CONVERSATIONS, **spelled),) if spelled else FORMS


def dialogue_rounds(row: Mapping[str, Any], form: Form) -> list[DialogueRound]:
    """The rounds of a row, in order. Each round uses as many of the row's images as it has marks.

    Raises:
        DataError: if the row has no turns, queries and answers do not alternate, a turn is not a text, a system turn
            changes the prompt, or the numbers of images and marks differ.
    """
    turns = _turns(row, form)
    system = row.get(form.system)
    if turns[0][0] == form.system_tag:
        system = turns.pop(0)[1]
    if system is not None and (not isinstance(system, str) or system.strip() not in USUAL_SYSTEM):
        raise DataError(f"system: the reward model is asked without this system turn: {str(system)[:60]!r}")
    roles = [role for role, _ in turns]
    if roles != [form.user_tag, form.assistant_tag] * max(1, len(roles) // 2):
        expected = f"{form.user_tag}, {form.assistant_tag}, each question with one answer"
        raise DataError(f"turns: {', '.join(map(str, roles))[:80] or 'none'}; expected {expected}")
    questions, answers = ([text for _, text in turns[start::2]] for start in (0, 1))
    images = _images(row, form)
    marks = [question.count(IMAGE) for question in questions]
    if any(IMAGE in answer for answer in answers):
        raise DataError(f"record: an answer contains {IMAGE}")
    if len(images) != sum(marks) or (len(marks) == 1 and marks != [PICTURES]):
        raise DataError(
            f"record: {len(images)} images and {sum(marks)} marks {IMAGE}, expected {PICTURES} of each per question"
        )
    left = iter(images)
    return [
        DialogueRound(question.replace(IMAGE, ""), answer, list(islice(left, count)))
        for question, answer, count in zip(questions, answers, marks, strict=True)
    ]


def _turns(row: Mapping[str, Any], form: Form) -> list[tuple[str, str]]:
    """The role and the text of each turn."""
    if form.messages not in row:
        raise DataError(f"record: key {form.messages!r} is missing; it has {', '.join(map(str, row)) or 'none'}")
    turns = row[form.messages]
    if not isinstance(turns, list) or not turns:
        raise DataError(f"record: {form.messages} is no list of turns")
    for number, turn in enumerate(turns, start=1):
        if not isinstance(turn, dict) or form.role_tag not in turn or form.content_tag not in turn:
            raise DataError(f"record: turn {number} is no object of {form.role_tag} and {form.content_tag}")
        if not isinstance(turn[form.content_tag], str):
            raise DataError(f"record: turn {number}: its {form.content_tag} is no string")
    return [(turn[form.role_tag], turn[form.content_tag]) for turn in turns]


def _images(row: Mapping[str, Any], form: Form) -> list[str]:
    """Paths; a single one may be without its list, as LLaMA-Factory allows."""
    images = row.get(form.images)
    if isinstance(images, str):
        return [images]
    if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
        raise DataError(f"record: {form.images} is {str(images)[:60]}, expected a list of paths")
    return images


def _parsed(folder: Path, split: str, dialogue: DialogueRound) -> ShareGptRow:
    if len(dialogue.images) != PICTURES:
        raise DataError(
            f"record: its question shows {len(dialogue.images)} pictures, expected {PICTURES} ({IMAGE} marks)"
        )
    question = parse_question(dialogue.question)
    if question is None:
        raise DataError(
            f"question: its wording is not one that the reward model is trained on: {dialogue.question[:80]!r}"
        )
    for part, text in (("question", dialogue.question), ("answer", dialogue.answer)):
        try:
            validate_marks(text)
        except ValueError as error:
            raise DataError(f"{part}: it {error}") from None
    try:
        answer = normalize_answer(dialogue.answer)
    except DataError as error:
        raise DataError(f"answer: {error}") from None
    try:
        first, second = (inside(folder, name) for name in dialogue.images)
        for path in (first, second):
            image_size(path)
    except DataError as error:
        raise DataError(f"picture: {error}") from None
    return ShareGptRow(split, first, second, question, answer)
