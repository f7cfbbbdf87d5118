"""Reasons: the answer of each pair, "Yes." or "No.", and one to three sentences with the reasons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pandas as pd
from pydantic import ConfigDict

from paco_core.data.annotation.recogniser import read_instance_panels
from paco_core.data.llm.chat_protocol import Question, Rejection, Reply
from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat, query_all
from paco_core.data.pairs.answers import normalize_answer, validation_error, written_validation_error
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.io.pictures import picture_digest
from paco_core.io.validation import StrictModel
from paco_core.storybook.characters import character_answer
from paco_core.storybook.prompts import answer, true_reasons

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import ReasonsParams


SYSTEM = """\
You explain verdicts on pairs of pictures that were made for one theme. Two pictures are consistent when they agree in \
style (medium, palette, light), in identity (the same subject with the same features) and in logic (they belong to one \
sensible set). What the theme wants different, such as place, pose or action, is no inconsistency."""

VERDICTS = {
    "Yes": "Annotators found them consistent. Name what shows it.",
    "No": "Annotators found them inconsistent. Name what differs, in the first picture and in the second.",
}


EDIT = (
    'Instruction of an edit: "{instruction}"\nThe original and the edited picture follow. What the instruction asks to '
    "change is no inconsistency."
)
FOLLOWED = 'Instruction of an edit: "{instruction}"\nThe original and the edited picture follow.'
FOLLOWED_VERDICTS = {
    "Yes": "Annotators found that the edit does what the instruction asks. Name what shows it.",
    "No": "Annotators found that the edit does not do what the instruction asks. Name what is missing or wrong.",
}


class WrittenReasons(StrictModel):
    """The verdict again, and why."""

    model_config = ConfigDict(extra="forbid")
    answer: Literal["Yes", "No"]
    reasons: list[str]


CHARACTER = 'The first picture shows the character "{character}". The second picture is a panel of a story.'
CHARACTER_VERDICTS = {
    "Yes": "The panel shows this character in a new picture. Name what shows it.",
    "No": "The panel does not show this character, or it is a copy of the first picture. Name what is wrong.",
}


def write_reasons(
    pairs: pd.DataFrame,
    panels: PanelStore,
    chat: Chat,
    validation_error: Callable[[WrittenReasons, str], str | None],
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Reply[WrittenReasons]]:
    """Query a language model for the reasons of each pair; one reply per pair, in the order of the rows.

    Args:
        pairs: columns pair_id, theme, first, second, label, for edits instruction and question, and for character
            pairs character.
        validation_error: returns the name of the error in an answer to a pair with this label, or None.
        advance: called with the number of finished pairs.

    Raises:
        ChatError: if the endpoint cannot be used, or did not answer all queries.
    """

    def question(row: tuple[str, str, str, str, str, object, object, object]) -> Question[WrittenReasons]:
        pair_id, theme, first, second, label, edit, name, character = row

        def wrong(written: WrittenReasons) -> Rejection | None:
            cause = validation_error(written, label)
            expected = f"answer {label} and give one to three reasons of one sentence each"
            return Rejection(cause, expected) if cause else None

        context = f'Theme: "{theme}"\nThe first and the second picture follow.'
        verdicts = VERDICTS
        if isinstance(edit, str):
            follows = name == "edit_following"
            context, verdicts = (FOLLOWED, FOLLOWED_VERDICTS) if follows else (EDIT, VERDICTS)
            context = context.format(instruction=edit)
        elif isinstance(character, str):
            context, verdicts = CHARACTER.format(character=character), CHARACTER_VERDICTS
        text = (
            f"{context} {verdicts[label]} Give one to three reasons, "
            "the weightiest first, each one short sentence about visible things."
        )
        images = (panels.panel(first), panels.panel(second))
        return Question(pair_id, text, WrittenReasons, system=SYSTEM, images=images, validation_error=wrong)

    columns = ["pair_id", "theme", "first", "second", "label", "instruction", "question", "character"]
    rows = pairs.reindex(columns=columns).itertuples(index=False, name=None)
    return query_all(chat, rows, question, advance)


JOURNAL = Path(".paco/cot_labels/journal.jsonl")  # outside the outs, which DVC deletes before a run


@dataclass(frozen=True)
class ReasonOutcome:
    """The answer of a pair, or the cause if it has no answer."""

    answer: str | None
    cause: str | None = None


@dataclass
class ExplainedPairs:
    """Pairs with answers, and pairs without an answer and the causes."""

    table: pd.DataFrame  # the pairs' columns, answer, engine
    failed: pd.DataFrame  # the pairs' columns, cause
    figures: Counter[str] = field(default_factory=Counter)  # usage and rejected answers of the language model

    @property
    def causes(self) -> Counter[str]:
        """The number of failed pairs by cause."""
        return Counter(self.failed["cause"])


def explain_pairs(
    pairs: pd.DataFrame,
    panels: PanelStore,
    params: ReasonsParams,
    root: Path = Path(),
    advance: Callable[[int], object] = lambda _count: None,
) -> ExplainedPairs:
    """Write an answer for every pair. If an answer contradicts the label of the pair, the pair counts as failed.

    If a pair already has a valid answer, for example an edit of the storybook world, this answer is only normalized
    (:func:`.answers.normalize_answer`); it can have any number of reasons. A new answer has one to three reasons:

    - The engine ``storybook`` writes true reasons from the recogniser's readings of both panels (``advance`` counts
      panels). It cannot write reasons for edits, and it always finds an animal in a panel.
    - ``openai`` queries a vision language model and stores its answers below ``root`` (``advance`` counts pairs).
    - ``none`` writes no reasons: a character pair gets its label as the answer, and any other pair without an answer
      counts as failed.

    Raises:
        DataError: if the engine lacks its model, or the language model cannot be used.
    """
    figures: Counter[str] = Counter()
    pairs = pairs.reindex(
        columns=[*pairs.columns, *(c for c in ("instruction", "character", "answer") if c not in pairs)]
    )
    has_answer = pairs["answer"].notna()
    if params.engine == "none":
        rows = pairs.loc[~has_answer, ["label", "character"]].itertuples(index=False)
        written = [_without_engine(*row) for row in rows]
    elif has_answer.all():
        written = []
    elif params.engine == "openai":
        written = _written(pairs[~has_answer], panels, params, root, advance, figures)
    else:
        written = _storybook(pairs[~has_answer], panels, params, root, advance)
    todo = iter(written)
    outcomes = [
        _imported_outcome(text, label) if imported else next(todo)
        for imported, text, label in zip(has_answer, pairs["answer"], pairs["label"], strict=True)
    ]
    answers = pd.Series([outcome.answer for outcome in outcomes], index=pairs.index, dtype="object")
    causes = pd.Series([outcome.cause for outcome in outcomes], index=pairs.index, dtype="object")
    good = answers.notna()
    return ExplainedPairs(
        pairs.assign(answer=answers, engine=has_answer.map({True: "given", False: params.engine}))[good].reset_index(
            drop=True
        ),
        pairs.assign(cause=causes)[~good].reset_index(drop=True),
        figures,
    )


def _imported_outcome(text: str, label: str) -> ReasonOutcome:
    cause = validation_error(text, label)
    return ReasonOutcome(None if cause else normalize_answer(text), cause)


def _outcome(text: str, label: str) -> ReasonOutcome:
    cause = written_validation_error(text, label)
    return ReasonOutcome(None if cause else text, cause)


def _storybook(
    pairs: pd.DataFrame, panels: PanelStore, params: ReasonsParams, root: Path, advance: Callable[[int], object]
) -> list[ReasonOutcome]:
    if params.model is None:
        raise DataError("cot_labels.engine 'storybook' needs a model; set cot_labels.model to the recogniser's folder")
    readings = read_instance_panels(pairs[pairs["instruction"].isna()], panels, root / params.model, advance)
    outcomes = []
    columns = ["first", "second", "label", "instruction", "character"]
    for first, second, label, edit, character in pairs[columns].itertuples(index=False):
        if isinstance(edit, str):
            outcomes.append(ReasonOutcome(None, "edit_without_answer"))
        elif isinstance(character, str):
            text = character_answer(readings[first].panel, readings[second].panel, copy=_is_copy(panels, first, second))
            outcomes.append(_outcome(text, label))
        else:
            outcomes.append(_outcome(answer(*true_reasons(readings[first].panel, readings[second].panel)), label))
    return outcomes


def _without_engine(label: str, character: object) -> ReasonOutcome:
    """The answer of a pair without reasons. A file of generated stories has labels, but no reasons."""
    return ReasonOutcome(f"{label}.") if isinstance(character, str) else ReasonOutcome(None, "no_answer_given")


def _is_copy(panels: PanelStore, first: str, second: str) -> bool:
    return first == second or picture_digest(panels.panel(first)) == picture_digest(panels.panel(second))


def _written(
    pairs: pd.DataFrame,
    panels: PanelStore,
    params: ReasonsParams,
    root: Path,
    advance: Callable[[int], object],
    figures: Counter[str],
) -> list[ReasonOutcome]:
    def text(written: WrittenReasons) -> str:
        return answer_text(written.answer, written.reasons)

    assert params.endpoint is not None  # validated in params.py
    with Journal(root / JOURNAL) as journal:
        chat = Chat(params.endpoint, journal)
        replies = write_reasons(
            pairs, panels, chat, lambda written, label: written_validation_error(text(written), label), advance
        )
    figures.update(chat.counts.figures())
    figures.update({f"rejected.{cause}": count for cause, count in chat.counts.rejected.items()})
    return [
        ReasonOutcome(text(reply.answer)) if reply.answer else ReasonOutcome(None, reply.rejected[-1].cause)
        for reply in replies
    ]


def answer_text(label: str, reasons: Sequence[str]) -> str:
    """The label and the reasons as one line. A full stop is added to a reason without a closing mark."""
    plain = [" ".join(reason.split()) for reason in reasons]
    return " ".join([f"{label}.", *(reason if reason[-1:] in ".!?" else f"{reason}." for reason in plain)])
