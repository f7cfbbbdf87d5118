"""Answers with reasons: "Yes." or "No.", then one to three sentences that say why."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.dataset.annotation.recogniser import read_panels
from paco_core.dataset.panels import PanelStore
from paco_core.files import DataError

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.params import ReasonsParams

MAX_REASONS = 3
SENTENCE = re.compile(r"\S.*?[.!?](?=\s|$)", re.DOTALL)


@dataclass
class Explained:
    """Pairs with their answers, pairs that got none, and why."""

    table: pd.DataFrame  # the pairs' columns, answer, engine
    failed: pd.DataFrame  # the pairs' columns, cause
    causes: Counter[str] = field(default_factory=Counter)


def explain(
    pairs: pd.DataFrame,
    panels: PanelStore,
    params: ReasonsParams,
    root: Path = Path(),
    advance: Callable[[int], object] = lambda _count: None,
) -> Explained:
    """Write an answer for every pair; one that would contradict the pair's label counts as failed.

    The engine ``storybook`` writes true reasons from what the recogniser reads in the two panels.

    Raises:
        DataError: when the engine lacks its model.
    """
    import pandas as pd

    from paco_core.storybook.reasons import answer, true_reasons

    if params.model is None:
        raise DataError("cot_labels.engine 'storybook' needs cot_labels.model, the recogniser's folder")
    readings = read_panels(pairs, panels, root / params.model, advance)
    answers: list[str | None] = []
    causes: list[str | None] = []
    for first, second, label in pairs[["first", "second", "label"]].itertuples(index=False):
        read_label, reasons = true_reasons(readings[first].panel, readings[second].panel)
        text = answer(read_label, reasons)
        cause = fault(text, label)
        answers.append(None if cause else text)
        causes.append(cause)
    table = pairs.assign(answer=pd.Series(answers, index=pairs.index, dtype="object"), engine=params.engine)
    failed = pairs.assign(cause=pd.Series(causes, index=pairs.index, dtype="object"))
    good = table["answer"].notna()
    return Explained(
        table[good].reset_index(drop=True),
        failed[~good].reset_index(drop=True),
        Counter(cause for cause in causes if cause),
    )


def fault(answer: str, label: str) -> str | None:
    """What is wrong with an answer, or None: it must begin with its label and give one to three reasons."""
    if not answer.startswith(f"{label}."):
        return "answer_contradicts_label"
    reasons = SENTENCE.findall(answer.removeprefix(f"{label}."))
    if not 1 <= len(reasons) <= MAX_REASONS:
        return "not_one_to_three_reasons"
    return None
