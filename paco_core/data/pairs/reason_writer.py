"""Reasons written by a vision language model: it sees both panels and the verdict, and names what speaks for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from pydantic import ConfigDict

from paco_core.data.llm.chat_protocol import Question, Rejection, Reply
from paco_core.data.llm.chat_workers import ask_all
from paco_core.data.llm.openai_chat import Chat
from paco_core.data.records.panels import PanelStore
from paco_core.io.validation import StrictModel

if TYPE_CHECKING:
    import pandas as pd

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
