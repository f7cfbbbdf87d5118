"""VIEScore of edits by any vision language model behind an OpenAI-compatible endpoint (arXiv 2312.14867).

Semantic consistency SC = the smaller of "instruction carried out" and "rest left alone", perceptual quality PQ = the
smaller of "natural" and "free of flaws", overall O = sqrt(SC x PQ), 0 to 10. GEdit-Bench's figure is the mean over task
types of the mean within each, by language, on all instructions or on those of its intersection.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import ConfigDict

from paco_core.benchmarks.edit_changes import VIESCORE_COLUMNS
from paco_core.benchmarks.statistics import estimate
from paco_core.benchmarks.tables import ResultTable, interval
from paco_core.benchmarks.viescore_prompts import Wording
from paco_core.data.llm.chat_protocol import Question, Rejection, Reply
from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat, query_all
from paco_core.io.validation import StrictModel
from paco_core.sampling.generated_image import GeneratedImage

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.config.params import ChatParams
    from paco_core.grpo.scoring import Reference

JOURNAL = Path(".paco/gedit/journal.jsonl")  # outside the outs, which DVC deletes before a run
BEST = 10
LANGUAGES = {"en": "English", "cn": "Chinese"}
#: After the published words about an edit, where it has several references.
FURTHER = (
    "\nThe images from the third on are further references that the instruction refers to, in its order: the original "
    "image counts as the first of them."
)
CHARACTERS_A_TOKEN = 4  # of English text, about


class Rating(StrictModel):
    """What a judge answers: why, and two scores from 0 to 10."""

    model_config = ConfigDict(extra="forbid")
    reasoning: str
    score: list[float]


@dataclass(frozen=True)
class VieScoreQuestion:
    """One question about one edit: its number, and whether it is about the edit or about the image only."""

    number: int
    kind: str  # "sc" or "pq"


@dataclass(frozen=True)
class EditRatings:
    """Columns of :data:`VIESCORE_COLUMNS`, (N,) each with NaN where an answer is missing, and all answers."""

    columns: Mapping[str, np.ndarray]
    answers: Sequence[dict[str, Any]]
    counts: Mapping[str, int]


def describe_queries(images: Sequence[GeneratedImage], words: Wording) -> str:
    """How many queries :func:`rate_edits` sends, in words."""
    texts = sum(len(words.about_edit(p.record.prompt)) + len(words.quality) for p in images)
    return (
        f"VIEScore: {2 * len(images)} questions with {3 * len(images)} pictures and about "
        f"{texts // CHARACTERS_A_TOKEN} tokens of text"
    )


def rate_edits(
    images: Sequence[GeneratedImage],
    reference: Reference,
    endpoint: ChatParams,
    words: Wording,
    root: Path,
    advance: Callable[[int], object] = lambda _count: None,
) -> EditRatings:
    """Ask two questions about each edit. A journal keeps the answers, so that a killed run asks nothing twice.

    Raises:
        ChatError: when the endpoint cannot be worked with, or did not serve all questions.
    """
    questions = [VieScoreQuestion(number, kind) for number in range(len(images)) for kind in ("sc", "pq")]
    with Journal(root / JOURNAL) as journal:
        chat = Chat(endpoint, journal)
        replies = query_all(chat, questions, partial(_question, images, reference, words), advance)
    least = {kind: np.full(len(images), np.nan) for kind in ("sc", "pq")}
    answers = []
    for question, reply in zip(questions, replies, strict=True):
        if reply.answer is not None:
            least[question.kind][question.number] = min(reply.answer.score)
        answers.append(_row(images[question.number], question.kind, reply))
    columns = {**least, "overall": np.sqrt(least["sc"] * least["pq"])}
    counts = chat.counts.figures() | {f"rejected.{c}": n for c, n in sorted(chat.counts.rejected.items())}
    return EditRatings(columns, answers, counts)


def _question(
    images: Sequence[GeneratedImage], reference: Reference, words: Wording, question: VieScoreQuestion
) -> Question[Rating]:
    edit = images[question.number]
    name = f"{edit.policy}-{edit.size}-{edit.when}-{edit.record.idx}-{edit.seed}-{question.kind}"
    if question.kind == "pq":
        return Question(name, words.quality, Rating, images=[edit.image], validation_error=_validation_error)
    original, *further = reference(edit.record)
    text = words.about_edit(edit.record.prompt) + (FURTHER if further else "")
    return Question(name, text, Rating, images=[original, edit.image, *further], validation_error=_validation_error)


def _validation_error(rating: Rating) -> Rejection | None:
    if len(rating.score) != 2:
        return Rejection("wrong_form", f"score has {len(rating.score)} numbers, expected two")
    if not all(0 <= value <= BEST for value in rating.score):
        return Rejection("out_of_range", f"scores are from 0 to {BEST}")
    return None


def _row(edit: GeneratedImage, kind: str, reply: Reply[Rating]) -> dict[str, Any]:
    answer = reply.answer
    return {
        "policy": edit.policy, "size": edit.size, "when": edit.when, "prompt_id": edit.record.idx, "seed": edit.seed,
        "kind": kind,
        "score": None if answer is None else answer.score,
        "reasoning": None if answer is None else answer.reasoning,
        "rejected": [str(rejection) for rejection in reply.rejected],
    }  # fmt: skip


def macro_means(
    table: pd.DataFrame, intersection: Collection[str], *, resamples: int, seed: int
) -> list[dict[str, Any]]:
    """One row per policy, size, state, language and subset: the macro means over task types, as in GEdit-Bench.

    Args:
        table: one row per edit, with ``policy``, ``size``, ``when``, ``prompt_id``, ``language``, ``task_type``,
            ``picture`` and :data:`VIESCORE_COLUMNS`.
        intersection: ids of the prompts in the benchmark's subset (:func:`intersection_ids`).
    """
    means_of_cells = []
    for cell, rows in table.groupby(["policy", "size", "when", "language"], sort=False):
        subsets = {"full": rows, "intersection": rows[rows["prompt_id"].isin(intersection)]}
        for subset, part in subsets.items():
            if part.empty:
                continue
            draws: dict[str, Any] = {
                "groups": list(part["picture"]),
                "classes": list(part["task_type"]),
                "resamples": resamples,
                "seed": seed,
            }
            means = {name: estimate(part[name].to_numpy(dtype="float64"), **draws) for name in VIESCORE_COLUMNS}
            about = dict(zip(("policy", "size", "when", "language"), map(str, cell), strict=True))
            means_of_cells.append({**about, "subset": subset, "edits": len(part), "figures": means})
    return means_of_cells


def intersection_ids(images: Sequence[GeneratedImage]) -> set[str]:
    """Ids of the prompts in the subset that all compared editors of GEdit-Bench answered."""
    return {p.record.idx for p in images if (p.record.model_extra or {}).get("intersection")}


def ratings_table(rows: Sequence[Mapping[str, Any]], model: str, words: Wording) -> ResultTable:
    """The rows of :func:`macro_means` as a table."""
    cells = [
        [
            f"{row['policy']} at {row['size']} px, {row['when']} training",
            LANGUAGES.get(row["language"], row["language"]),
            row["subset"],
            str(row["edits"]),
            *(interval(row["figures"][name]) for name in VIESCORE_COLUMNS),
        ]
        for row in rows
    ]
    note = (
        f"VIEScore, 0 to 10, by {model}, asked in {words.name}: mean within each task type, then over task types, with "
        "95% bootstrap intervals over source pictures."
    )
    head = ["method", "language", "subset", "edits", *VIESCORE_COLUMNS.values()]
    return ResultTable("GEdit-Bench", head, cells, [note])
