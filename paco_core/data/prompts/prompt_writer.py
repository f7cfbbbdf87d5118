"""Prompts of image sets written by a language model, in equal shares over the subcategories.

The model fills in a form (theme, subject, shared traits, panels, criteria). This module composes the T2IS text from the
form, so its marks are always valid. Each subcategory has one chain of queries, which list the subjects that exist
already. Answers in the chat's journal are replayed, so a killed run resumes with the next query.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest

from pydantic import ConfigDict

from paco_core.data.llm.chat_protocol import Question, Rejection
from paco_core.data.llm.openai_chat import Chat
from paco_core.data.records import prompt_text
from paco_core.data.records.categories import Subcategory, prompts_per_subcategory
from paco_core.data.records.records import Dimension, PromptRecord
from paco_core.io.files import DataError, digest
from paco_core.io.text import template_mark
from paco_core.io.validation import StrictModel

AN_ANSWER = 5  # prompts per query; with more, the quality of the last ones falls
BARREN = 3  # answers in a row without one usable prompt, after which a subcategory is given up
UNSERVED = 20  # questions in a row of which the endpoint does not serve the last; more than end all asking
LONGEST = 2000  # characters of one text; public themes reach 800 words only by accident

SYSTEM = """\
You write prompts for text-to-image models that paint several panels in one picture. The panels of a set belong \
together: the same identity, the same style, a sensible relation between them. Every panel is described so that it can \
be painted from its own text and the shared traits alone. Name concrete, visible things: who, colours, materials, \
places, light, medium. No real living persons, no brands, no text to be read unless the kind asks for it."""


class Criterion(StrictModel):
    """One thing that must be consistent in the set."""

    model_config = ConfigDict(extra="forbid")
    name: str
    text: str


class WrittenPrompt(StrictModel):
    """One prompt in its parts."""

    model_config = ConfigDict(extra="forbid")
    theme: str
    subject: str
    shared: str
    panels: list[str]
    style: list[Criterion]
    identity: list[Criterion]
    logic: list[Criterion]


class WrittenPrompts(StrictModel):
    model_config = ConfigDict(extra="forbid")
    prompts: list[WrittenPrompt]


@dataclass(frozen=True)
class PromptJob:
    """Settings of the prompts: layout, size in pixels (height, width), and a seed that differs between runs."""

    layout: str
    size: tuple[int, int]
    seed: int


@dataclass
class Written:
    """The records, with the subcategories in turn, and the causes of rejected prompts."""

    records: list[PromptRecord]
    rejected: Counter[str]


@dataclass
class _Chain:
    """The prompts of one subcategory so far, by their themes."""

    kind: Subcategory
    share: int
    job: PromptJob
    prompts: dict[str, tuple[str, PromptRecord]] = field(default_factory=dict)  # theme -> subject, record
    excluded: dict[str, str] = field(default_factory=dict)  # theme -> subject, in earlier subcategories
    rejected: Counter[str] = field(default_factory=Counter)
    queries: int = 0

    @property
    def short(self) -> bool:
        return len(self.prompts) < self.share

    def fill(self, chat: Chat, advance: Callable[[int], object]) -> None:
        """Query the model until the share is full.

        Raises:
            DataError: with the subcategory and the causes, if :data:`BARREN` answers in a row give no prompt, or
                :data:`UNSERVED` queries get no answer.
        """
        barren, invalid = 0, Counter[str]()
        while self.short:
            reply = chat.query(self._question())
            before = len(self.prompts)
            if reply.answer is not None:
                for written in reply.answer.prompts:
                    self._take(written)
            self.queries += reply.served  # a query without answer is repeated
            gained = len(self.prompts) - before
            advance(min(gained, max(0, self.share - before)))
            barren = 0 if gained else barren + 1
            invalid.update(rejection.cause for rejection in reply.rejected)
            if barren >= (BARREN if reply.served else UNSERVED):
                causes = ", ".join(f"{n} x {cause}" for cause, n in (self.rejected + invalid).most_common(5))
                remedy = "change prompts.endpoint or prompts.seed" if reply.served else "run again to resume from there"
                raise DataError(
                    f"prompts, {self.kind}: {barren} questions in a row gave no usable prompt ({causes}); it has "
                    f"{len(self.prompts)} of {self.share}; {remedy}"
                )

    def _question(self) -> Question[WrittenPrompts]:
        panels = len(prompt_text.panel_marks(self.job.layout))
        rows, columns = prompt_text.parse_layout(self.job.layout)
        subjects = [*(subject for subject, _ in self.prompts.values()), *self.excluded.values()]
        had = "".join(f"\n- {subject}" for subject in subjects) or " none yet"
        text = (
            f"Write {AN_ANSWER} prompts, as different from one another as can be.\n"
            f"Kind: {self.kind.name} (category {self.kind.category}): {self.kind.brief}.\n"
            f"Layout: {panels} panels, {rows} rows of {columns}, in reading order.\n"
            "For each prompt:\n"
            "- theme: two or three sentences that say what the set is about and what its panels show.\n"
            "- subject: what the set portrays, in at most 15 words, to follow the words "
            f"'{panels}-PANEL Images with a {self.job.layout} grid layout'.\n"
            "- shared: one or two sentences with the traits of all panels, the first beginning with 'All images'.\n"
            f"- panels: exactly {panels} texts of one or two sentences, without names of places such as [LEFT].\n"
            "- style, identity, logic: one to three criteria each, by which a judge tells whether the panels agree.\n"
            f"Subjects that exist already, and must not come again:{had}"
        )
        name = f"{self.job.seed}/{self.kind}/{self.job.layout}/{self.queries}"
        return Question(name, text, WrittenPrompts, system=SYSTEM)

    def _take(self, written: WrittenPrompt) -> None:
        record = to_record(written, self.kind, self.job)
        if isinstance(record, Rejection):
            self.rejected[record.cause] += 1
            return
        theme = _plain(record.theme)
        if (
            theme in self.prompts
            or theme in self.excluded
            or any(record.prompt == r.prompt for _, r in self.prompts.values())
        ):
            self.rejected["repeated"] += 1
            return
        self.prompts[theme] = (written.subject, record)

    def records(self) -> list[PromptRecord]:
        return [record for _, record in self.prompts.values()][: self.share]


def write_new_prompts(
    chat: Chat, count: int, job: PromptJob, advance: Callable[[int], object] = lambda _count: None
) -> Written:
    """``count`` prompts; a longer list from the same journal begins with the shorter one of each subcategory.

    Raises:
        ChatError: when the endpoint cannot be worked with.
        DataError: when a subcategory gets nothing usable, or the layout's panels have no names.
    """
    prompt_text.panel_marks(job.layout)
    chains = [_Chain(kind, share, job) for kind, share in prompts_per_subcategory(count).items() if share]
    while any(chain.short for chain in chains):
        chat.run_all(chains, lambda chain: chain.fill(chat, advance))
        before = sum(len(chain.records()) for chain in chains)
        _give_up_repeats(chains)
        advance(sum(len(chain.records()) for chain in chains) - before)
    turns = zip_longest(*(chain.records() for chain in chains))
    records = [record for turn in turns for record in turn if record is not None]
    rejected = sum((chain.rejected for chain in chains), Counter[str]())
    return Written(records, rejected)


def _give_up_repeats(chains: list[_Chain]) -> None:
    """Remove themes from a subcategory if an earlier subcategory has them."""
    themes: set[str] = set()
    for chain in chains:
        for theme in [theme for theme in chain.prompts if theme in themes]:
            chain.excluded[theme] = chain.prompts.pop(theme)[0]
            chain.rejected["repeated"] += 1
        themes |= chain.prompts.keys()


def to_record(written: WrittenPrompt, kind: Subcategory, job: PromptJob) -> PromptRecord | Rejection:
    """The T2IS record of a filled form, or the reason why there is none."""
    criteria: dict[Dimension, list[Criterion]] = {
        "Style": written.style,
        "Identity": written.identity,
        "Logic": written.logic,
    }
    texts = [written.theme, written.subject, written.shared, *written.panels]
    texts += [text for group in criteria.values() for criterion in group for text in (criterion.name, criterion.text)]
    faults = {
        "empty_text": not all(text.strip() for text in texts),
        "too_long": any(len(text) > LONGEST for text in texts),
        "wrong_number_of_panels": len(written.panels) != len(prompt_text.panel_marks(job.layout)),
        "no_criteria": not all(criteria.values()),
        "repeated_criterion": any(len({c.name.strip() for c in group}) < len(group) for group in criteria.values()),
        "template_mark_in_text": any(template_mark(text) for text in texts),
        "panel_mark_in_text": any(prompt_text.PANEL_MARK.search(text) for text in texts),
    }
    if cause := next((cause for cause, met in faults.items() if met), None):
        return Rejection(cause)
    prompt = str(prompt_text.compose_prompt(written.subject, written.shared, written.panels, job.layout))
    if prompt_text.parse_prompt(prompt, job.layout).shared != written.shared.strip():
        return Rejection("shared_traits_not_told_apart")
    return PromptRecord(
        idx=digest([prompt, job.layout]),
        prompt=prompt,
        height=job.size[0],
        width=job.size[1],
        layout=job.layout,
        theme=written.theme.strip(),
        category=kind.category,
        task_name=kind.name,
        criteria={name: {c.name.strip(): c.text.strip() for c in group} for name, group in criteria.items()},
    )


def _plain(text: str) -> str:
    """A text without differences that do not make two themes different."""
    return " ".join("".join(c if c.isalnum() else " " for c in text.casefold()).split())
