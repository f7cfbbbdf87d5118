"""Reasons: the answer of each pair, "Yes." or "No.", and one to three sentences that say why."""

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
from paco_core.data.llm.openai_chat import Chat, ask_all
from paco_core.data.pairs.answers import fault, normalised, written_fault
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.io.validation import StrictModel
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


def write_reasons(
    pairs: pd.DataFrame,
    panels: PanelStore,
    chat: Chat,
    fault: Callable[[WrittenReasons, str], str | None],
    advance: Callable[[int], object] = lambda _count: None,
) -> list[Reply[WrittenReasons]]:
    """One reply a pair, in the order of the rows.

    Args:
        pairs: columns pair_id, theme, first, second, label, instruction and question (of an edit, else missing).
        fault: short name of what is wrong with an answer, given the pair's label, or None.

    Raises:
        ChatError: when the endpoint cannot be worked with, or did not serve all questions.
    """

    def question(row: tuple[str, str, str, str, str, object, object]) -> Question[WrittenReasons]:
        pair_id, theme, first, second, label, edit, asked = row

        def wrong(written: WrittenReasons) -> Rejection | None:
            cause = fault(written, label)
            wanted = f"answer {label} and give one to three reasons of one sentence each"
            return Rejection(cause, wanted) if cause else None

        shown = f'Theme: "{theme}"\nThe first and the second picture follow.'
        verdicts = VERDICTS
        if isinstance(edit, str):
            follows = asked == "edit_following"
            shown, verdicts = (FOLLOWED, FOLLOWED_VERDICTS) if follows else (EDIT, VERDICTS)
            shown = shown.format(instruction=edit)
        text = (
            f"{shown} {verdicts[label]} Give one to three reasons, "
            "the weightiest first, each one short sentence about visible things."
        )
        images = (panels.panel(first), panels.panel(second))
        return Question(pair_id, text, WrittenReasons, system=SYSTEM, images=images, fault=wrong)

    columns = ["pair_id", "theme", "first", "second", "label", "instruction", "question"]
    rows = pairs.reindex(columns=columns).itertuples(index=False, name=None)
    return ask_all(chat, rows, question, advance)


JOURNAL = Path(".paco/cot_labels/journal.jsonl")  # outside the outs, which DVC deletes before a run


@dataclass(frozen=True)
class ReasonOutcome:
    """A pair's answer, or the cause of having none."""

    answer: str | None
    cause: str | None = None


@dataclass
class Explained:
    """Pairs with their answers, pairs that got none, and why."""

    table: pd.DataFrame  # the pairs' columns, answer, engine
    failed: pd.DataFrame  # the pairs' columns, cause
    figures: Counter[str] = field(default_factory=Counter)  # what a language model took, and its rejected answers

    @property
    def causes(self) -> Counter[str]:
        """How many pairs failed, by cause."""
        return Counter(self.failed["cause"])


def explain(
    pairs: pd.DataFrame,
    panels: PanelStore,
    params: ReasonsParams,
    root: Path = Path(),
    advance: Callable[[int], object] = lambda _count: None,
) -> Explained:
    """Write an answer for every pair; one that is at odds with the pair's label counts as failed.

    An answer that a pair brings is kept, with its opening as it is trained (:func:`.answers.normalised`); how many
    reasons it gives is its publisher's matter. One that is written here gives one to three.

    A pair that came with an answer (a drawn edit, say) keeps it, if it is a valid one. The engine ``storybook``
    writes true reasons from what the recogniser reads in the two panels (``advance`` counts panels); of an edit it
    cannot tell what was intended. ``openai`` asks a vision language model and keeps its answers below ``root``
    (``advance`` counts pairs). ``none`` writes nothing: a pair that came without an answer counts as failed.

    Raises:
        DataError: when the engine lacks its model, or the language model cannot be worked with.
    """
    figures: Counter[str] = Counter()
    pairs = pairs.reindex(columns=[*pairs.columns, *(c for c in ("instruction", "answer") if c not in pairs)])
    given = pairs["answer"].notna()
    if params.engine == "none":
        written = [ReasonOutcome(None, "no_answer_given")] * int((~given).sum())
    elif given.all():
        written = []
    elif params.engine == "openai":
        written = _written(pairs[~given], panels, params, root, advance, figures)
    else:
        written = _storybook(pairs[~given], panels, params, root, advance)
    todo = iter(written)
    outcomes = [
        _given(text, label) if came else next(todo)
        for came, text, label in zip(given, pairs["answer"], pairs["label"], strict=True)
    ]
    answers = pd.Series([found.answer for found in outcomes], index=pairs.index, dtype="object")
    causes = pd.Series([found.cause for found in outcomes], index=pairs.index, dtype="object")
    good = answers.notna()
    return Explained(
        pairs.assign(answer=answers, engine=given.map({True: "given", False: params.engine}))[good].reset_index(
            drop=True
        ),
        pairs.assign(cause=causes)[~good].reset_index(drop=True),
        figures,
    )


def _given(text: str, label: str) -> ReasonOutcome:
    cause = fault(text, label)
    return ReasonOutcome(None if cause else normalised(text), cause)


def _outcome(text: str, label: str) -> ReasonOutcome:
    cause = written_fault(text, label)
    return ReasonOutcome(None if cause else text, cause)


def _storybook(
    pairs: pd.DataFrame, panels: PanelStore, params: ReasonsParams, root: Path, advance: Callable[[int], object]
) -> list[ReasonOutcome]:
    if params.model is None:
        raise DataError("cot_labels.engine 'storybook' needs cot_labels.model, the recogniser's folder")
    readings = read_instance_panels(pairs[pairs["instruction"].isna()], panels, root / params.model, advance)
    outcomes = []
    for first, second, label, edit in pairs[["first", "second", "label", "instruction"]].itertuples(index=False):
        if isinstance(edit, str):
            outcomes.append(ReasonOutcome(None, "edit_without_answer"))
        else:
            outcomes.append(_outcome(answer(*true_reasons(readings[first].panel, readings[second].panel)), label))
    return outcomes


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

    assert params.endpoint is not None  # params.py sees to it
    with Journal(root / JOURNAL) as journal:
        chat = Chat(params.endpoint, journal)
        replies = write_reasons(
            pairs, panels, chat, lambda written, label: written_fault(text(written), label), advance
        )
    figures.update(chat.counts.figures())
    figures.update({f"rejected.{cause}": count for cause, count in chat.counts.rejected.items()})
    return [
        ReasonOutcome(text(reply.answer)) if reply.answer else ReasonOutcome(None, reply.rejected[-1].cause)
        for reply in replies
    ]


def answer_text(label: str, reasons: Sequence[str]) -> str:
    """The label and the reasons as one line; a reason without an end gets its full stop."""
    plain = [" ".join(reason.split()) for reason in reasons]
    return " ".join([f"{label}.", *(reason if reason[-1:] in ".!?" else f"{reason}." for reason in plain)])
