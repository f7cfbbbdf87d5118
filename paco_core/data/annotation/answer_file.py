"""``data/people/answers.jsonl``: all answers of the store, in the form that the DVC graph reads. A study of images
without a graph has another file.

The store is a database in use, so DVC hashes this file instead. Equal answers give equal bytes: rows are sorted by
annotator, instance and revision, and the file is written only if its bytes change. The file contains every revision, so
a lost store can be rebuilt from it. It contains no tokens of links, so you can commit it to git.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import ConfigDict, Field

from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore, Verdict
from paco_core.data.annotation.votes import is_permutation
from paco_core.data.records.records import validated
from paco_core.io import paths
from paco_core.io.atomic import atomic
from paco_core.io.files import DataError, read_jsonl, write_text
from paco_core.io.validation import StrictModel

FILE = paths.PEOPLE / "answers.jsonl"


class AnswerRow(StrictModel):
    """One line."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    annotator: str = Field(min_length=1)
    instance_id: str = Field(min_length=1)
    revision: int = Field(gt=0)
    verdict: Verdict
    ranking: list[int] | None
    shown: list[int]
    seconds: float = Field(ge=0)
    at: str
    pictures: str = ""

    def answer(self) -> AnnotatorAnswer:
        """The answer as the store has it.

        Raises:
            DataError: if the ranking does not contain each candidate once, or does not fit the verdict.
        """
        if (self.verdict == "ranked") != (self.ranking is not None):
            raise DataError(f"verdict {self.verdict} with ranking {self.ranking}; expected a ranking only for 'ranked'")
        for value in (self.shown, self.shown if self.ranking is None else self.ranking):
            if not is_permutation(value, len(self.shown)):
                raise DataError(f"{value} does not contain each position of {len(self.shown)} candidates once")
        values = self.model_dump() | {"shown": tuple(self.shown)}
        return AnnotatorAnswer(**values | {"ranking": None if self.ranking is None else tuple(self.ranking)})


def format_answers(answers: Iterable[AnnotatorAnswer]) -> str:
    """The content of the file. An answer of an earlier version has no key ``pictures``."""
    ordered = sorted(answers, key=_key)
    rows = ({n: getattr(a, n) for n in AnswerRow.model_fields if n != "pictures" or a.pictures} for a in ordered)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _key(answer: AnnotatorAnswer) -> tuple[str, str, int]:
    return answer.annotator, answer.instance_id, answer.revision


def save_answers(root: Path, store: AnswerStore, name: Path = FILE) -> int:
    """Write the file if its bytes would change, and return its number of answers.

    If there are no answers, or only skipped ones, the file is not written: it would make the stage ``annotations``
    outdated without a reason.

    Raises:
        DataError: if the file contains answers that are not in the store. The file is unchanged.
    """
    file, answers = root / name, _counting(store.every())
    if lost := count_unsaved(root, answers, name, back=True):
        raise DataError(
            f"{file} contains {lost} answers that are not in {store.path}, so paco did not overwrite it. To write the "
            "file again from the store, move the file away. To rebuild the store from the file, move the store away"
        )
    text = format_answers(answers)
    if answers and (not file.is_file() or file.read_text(encoding="utf-8") != text):
        write_text(file, text)
    return len(answers)


def _counting(answers: Sequence[AnnotatorAnswer]) -> Sequence[AnnotatorAnswer]:
    """All answers, or none if all are skips."""
    return answers if any(answer.verdict != "skipped" for answer in answers) else []


def count_unsaved(root: Path, answers: Sequence[AnnotatorAnswer], name: Path = FILE, *, back: bool = False) -> int:
    """The number of these answers that are not in the file; with ``back``, the number in the file but not in these."""
    there = set(read_answers(root, name)) if (root / name).is_file() else set[AnnotatorAnswer]()
    return len(there - set(answers) if back else set(_counting(answers)) - there)


def read_answers(root: Path, name: Path = FILE) -> list[AnnotatorAnswer]:
    """All answers in the file, in its order.

    Raises:
        DataError: if the file is missing, or a line is invalid or repeats an answer.
    """
    file = root / name
    if not file.is_file():
        raise DataError(f"{file} does not exist; run `paco annotate save`, or stop `paco annotate`, to write it")
    answers: dict[tuple[str, str, int], AnnotatorAnswer] = {}
    for number, row in read_jsonl(file):
        place = f"{file}:{number}"
        try:
            answer = validated(AnswerRow, row, place).answer()
        except DataError as error:
            text = str(error)
            raise DataError(text if text.startswith(place) else f"{place}: {text}") from None
        if _key(answer) in answers:
            raise DataError(
                f"{place}: revision {answer.revision} of {answer.instance_id} is already on an earlier line"
            )
        answers[_key(answer)] = answer
    return list(answers.values())


def latest_answers(answers: Iterable[AnnotatorAnswer]) -> list[AnnotatorAnswer]:
    """The last revision of each annotator's answer to each instance."""
    return list({(a.annotator, a.instance_id): a for a in sorted(answers, key=_key)}.values())


def exists(root: Path, path: Path, name: Path = FILE) -> bool:
    """Whether :func:`open_store` can open or rebuild a store."""
    return any(place.is_file() for place in (path, root / name))


def open_store(
    root: Path, path: Path, log: Callable[[str], object], name: Path = FILE, *, create: bool = False
) -> AnswerStore:
    """Open the store. If it is missing, rebuild it from the answer file.

    Args:
        path: the file of the store.
        log: called with a line of text if the store was rebuilt.
        name: path of the answer file below ``root``.
        create: create an empty store if neither the store nor the answer file exists.

    Raises:
        DataError: if there is no store to open, or the file is not an answer store.
    """
    if not path.is_file() and (root / name).is_file():
        answers = read_answers(root, name)
        with atomic(path) as part, AnswerStore(part, create=True) as fresh:
            fresh.restore(answers)
        log(f"{path} was missing. It was rebuilt with {len(answers)} answers from {root / name}. The links are new")
    return AnswerStore(path, create=create)
