"""``data/people/answers.jsonl``: every answer of the store as the graph reads it.

The store is a database in use; DVC hashes this file instead. Equal answers give equal bytes: rows are sorted by
annotator, instance and revision, and the file is written only when its bytes change. It holds every revision and no
link's token, so that it may lie in git, and a store that is lost can be made again from it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from pydantic import ConfigDict, Field

from paco_core.data.annotation.store import AnnotatorAnswer, AnswerStore, Verdict
from paco_core.data.annotation.votes import orders
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
            DataError: when the ranking does not order what was shown, or a verdict has a ranking that has none.
        """
        if (self.verdict == "ranked") != (self.ranking is not None):
            raise DataError(f"verdict {self.verdict} with ranking {self.ranking}")
        for value in (self.shown, self.shown if self.ranking is None else self.ranking):
            if not orders(value, len(self.shown)):
                raise DataError(f"{value} does not name each of {len(self.shown)} candidates once")
        given = self.model_dump() | {"shown": tuple(self.shown)}
        return AnnotatorAnswer(**given | {"ranking": None if self.ranking is None else tuple(self.ranking)})


def text_of(answers: Iterable[AnnotatorAnswer]) -> str:
    """The content of the file. An answer of which it is not known what pictures were seen stands as it always did."""
    ordered = sorted(answers, key=_key)
    rows = ({n: getattr(a, n) for n in AnswerRow.model_fields if n != "pictures" or a.pictures} for a in ordered)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _key(answer: AnnotatorAnswer) -> tuple[str, str, int]:
    return answer.annotator, answer.instance_id, answer.revision


def save(root: Path, store: AnswerStore) -> int:
    """Write the file if its bytes would change; how many answers it holds.

    Where nobody has said anything yet that counts (no answers, or skipped ones only) there is none: it would make the
    stage ``annotations`` stale, for nothing.

    Raises:
        DataError: when the file holds answers that the store does not have; nothing is written then.
    """
    file, answers = root / FILE, _counting(store.every())
    if lost := unsaved(root, answers, back=True):
        raise DataError(
            f"{file}: holds {lost} answers that {store.path} does not have, so it was kept: move the file away "
            "to have it rewritten from the store, or the store, to have that rebuilt from the file"
        )
    text = text_of(answers)
    if answers and (not file.is_file() or file.read_text(encoding="utf-8") != text):
        write_text(file, text)
    return len(answers)


def _counting(answers: Sequence[AnnotatorAnswer]) -> Sequence[AnnotatorAnswer]:
    """All answers, as soon as one of them is more than a skip."""
    return answers if any(answer.verdict != "skipped" for answer in answers) else []


def unsaved(root: Path, answers: Sequence[AnnotatorAnswer], *, back: bool = False) -> int:
    """How many of these answers the file does not hold; with ``back``, how many of the file's are not among these."""
    there = set(read(root)) if (root / FILE).is_file() else set[AnnotatorAnswer]()
    return len(there - set(answers) if back else set(_counting(answers)) - there)


def read(root: Path) -> list[AnnotatorAnswer]:
    """Every answer in the file, in its order.

    Raises:
        DataError: when there is no file; naming file and line of what is no answer, or stands there twice.
    """
    file = root / FILE
    if not file.is_file():
        raise DataError(f"{file}: no such file; `paco annotate` writes it when it stops, `paco annotate save` at once")
    found: dict[tuple[str, str, int], AnnotatorAnswer] = {}
    for number, row in read_jsonl(file):
        place = f"{file}:{number}"
        try:
            answer = validated(AnswerRow, row, place).answer()
        except DataError as error:
            text = str(error)
            raise DataError(text if text.startswith(place) else f"{place}: {text}") from None
        if _key(answer) in found:
            raise DataError(
                f"{place}: revision {answer.revision} of {answer.instance_id} is already on an earlier line"
            )
        found[_key(answer)] = answer
    return list(found.values())


def latest(answers: Iterable[AnnotatorAnswer]) -> list[AnnotatorAnswer]:
    """The last revision of each annotator's answer to each instance."""
    return list({(a.annotator, a.instance_id): a for a in sorted(answers, key=_key)}.values())


def exists(root: Path, path: Path) -> bool:
    """Whether :func:`open_store` would find answers."""
    return any(place.is_file() for place in (path, root / FILE))


def open_store(root: Path, path: Path, say: Callable[[str], object], *, create: bool = False) -> AnswerStore:
    """The store; where there is none, made from the file, if there is one.

    Args:
        say: receives a line about what was taken over.
        create: make an empty one where there is nothing.

    Raises:
        DataError: when there is nothing to open, or it is no answer store.
    """
    if not path.is_file() and (root / FILE).is_file():
        answers = read(root)
        with atomic(path) as part, AnswerStore(part, create=True) as fresh:
            fresh.restore(answers)
        say(f"{path} was missing: rebuilt with {len(answers)} answers from {root / FILE}; the links are new")
    return AnswerStore(path, create=create)
