"""A vision language model ranks: it looks at everything in two orders, so that its liking for a place cancels out.

``pairwise``: it scores how consistent two panels are, in both orders; a candidate's score is the mean of both.
Instances share pairs, so that 48 instances of four candidates need 192 questions. ``listwise``: it orders all
candidates at once, shown in one random order and in its reverse; both rankings count the same.

Position bias of such judges and the remedy: Zheng et al., "Judging LLM-as-a-Judge with MT-Bench and Chatbot
Arena", arXiv 2306.05685, section 3.4.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from paco_core.data.annotation.agreement import kendall_tau, mean_or_nan
from paco_core.data.annotation.assignment import places, unordered
from paco_core.data.annotation.votes import (
    Annotation,
    InstanceRow,
    RankingTask,
    Votes,
    adjudicate,
    instance_rows,
    unscored,
)
from paco_core.data.llm.chat_protocol import Question, Rejection, Reply
from paco_core.data.llm.journal import Journal
from paco_core.data.llm.openai_chat import Chat, ask_all
from paco_core.io.validation import StrictModel

if TYPE_CHECKING:
    import pandas as pd

JOURNAL = Path(".paco/annotations/journal.jsonl")  # outside the outs, which DVC deletes before a run
BEST = 10
SYSTEM = """\
You judge whether pictures could belong to one set. Weigh together: identity (the same subject with the same \
features), style (medium, palette, line, light) and logic (scenes or steps that can stand side by side). A different \
pose, view or moment is no inconsistency, and how beautiful a picture is does not count."""


class PairScore(StrictModel):
    """How consistent two pictures are."""

    model_config = ConfigDict(extra="forbid")
    score: int


class Order(StrictModel):
    """Numbers of the candidates, best first."""

    model_config = ConfigDict(extra="forbid")
    ranking: list[int]


def votes(task: RankingTask) -> Votes:
    """The judge's ranking of every instance. Answers are kept below the project, so that a killed run goes on.

    An instance of which a question was not answered in the right form has no ranking, and is counted.

    Raises:
        ChatError: when the endpoint cannot be worked with, or did not serve all questions.
    """
    params = task.params
    assert params.endpoint is not None  # params.py sees to it
    with Journal(task.root / JOURNAL) as journal:
        chat = Chat(params.endpoint, journal)
        found = _pairwise(task, chat) if params.judge == "pairwise" else _listwise(task, chat)
    found.counts |= chat.counts.figures()
    found.counts |= {f"rejected.{cause}": count for cause, count in sorted(chat.counts.rejected.items())}
    return found


def questions(instances: pd.DataFrame, judge: str) -> int:
    """How many questions a judge is asked."""
    return 2 * (len(_pairs(instance_rows(instances))) if judge == "pairwise" else len(instances))


def _pairs(rows: Sequence[InstanceRow]) -> list[tuple[str, str]]:
    """Every two panels to be compared, once."""
    return sorted({unordered(reference, other) for _, reference, candidates in rows for other in candidates})


def _pairwise(task: RankingTask, chat: Chat) -> Votes:
    rows, panels = instance_rows(task.instances), task.panels
    pairs = _pairs(rows)

    def question(shown: tuple[str, str]) -> Question[PairScore]:
        return Question(
            "|".join(shown),
            f"How consistent are these two pictures? Give a score from 0 (they share nothing) to {BEST} (nothing "
            "speaks against one set).",
            PairScore,
            system=SYSTEM,
            images=[panels.panel(ref) for ref in shown],
            fault=_score_fault,
        )

    both = [shown for first, second in pairs for shown in ((first, second), (second, first))]
    replies = dict(zip(both, ask_all(chat, both, question, task.advance), strict=True))
    scores: dict[tuple[str, str], float] = {}
    gaps = []
    for first, second in pairs:
        there, back = replies[first, second].answer, replies[second, first].answer
        if there is not None and back is not None:
            scores[first, second] = (there.score + back.score) / (2 * BEST)
            gaps.append(abs(there.score - back.score) / BEST)
    found = Votes([])
    for instance_id, reference, candidates in rows:
        known = [scores.get(unordered(reference, other)) for other in candidates]
        own = [score for score in known if score is not None]
        if len(own) == len(candidates):
            order = sorted(range(len(own)), key=lambda n: (-own[n], n))
            found.rankings.append(Annotation(instance_id, chat.params.model, order, own, len(set(own)) < len(own)))
    found.counts = {"unscored_instances": len(rows) - len(found.rankings), "order_gap": mean_or_nan(gaps)}
    return found


def _score_fault(answer: PairScore) -> Rejection | None:
    return None if 0 <= answer.score <= BEST else Rejection("score_out_of_range", f"{answer.score} is not 0 to {BEST}")


def _listwise(task: RankingTask, chat: Chat) -> Votes:
    rows, panels = instance_rows(task.instances), task.panels
    shown = {instance_id: places("judge", instance_id, len(candidates)) for instance_id, _, candidates in rows}

    def question(item: tuple[InstanceRow, tuple[int, ...]]) -> Question[Order]:
        (instance_id, reference, candidates), order = item
        count = len(candidates)
        return Question(
            f"{instance_id}|{','.join(map(str, order))}",
            f"The first picture is the reference; the {count} after it are candidates 1 to {count}, in this order. "
            "Rank the candidates by consistency with the reference: their numbers, best first, each once.",
            Order,
            system=SYSTEM,
            images=[panels.panel(ref) for ref in (reference, *(candidates[n] for n in order))],
            fault=lambda answer: _order_fault(answer, count),
        )

    both = [(row, order) for row in rows for order in (shown[row[0]], shown[row[0]][::-1])]
    replies = ask_all(chat, both, question, task.advance)
    found, taus = Votes([]), []
    lost: Counter[str] = Counter(unscored_instances=0, contradicted_instances=0)
    for n, (instance_id, _, _) in enumerate(rows):
        there = _ranking(replies[2 * n], shown[instance_id])
        back = _ranking(replies[2 * n + 1], shown[instance_id][::-1])
        if there is None or back is None:
            lost["unscored_instances"] += 1
            continue
        taus.append(kendall_tau(there, back))
        if taus[-1] == -1:
            lost["contradicted_instances"] += 1  # the order in which they were shown is all that it followed
            continue
        settled = adjudicate(unscored(instance_id, chat.params.model, ranking) for ranking in (there, back))
        one = settled[instance_id]
        found.rankings.append(Annotation(instance_id, chat.params.model, one.ranking, one.scores, one.tied))
    found.counts = {**lost, "order_tau": mean_or_nan(taus)}
    return found


def _ranking(reply: Reply[Order], order: Sequence[int]) -> list[int] | None:
    """Candidate positions, best first, from the numbers that the judge saw."""
    return None if reply.answer is None else [order[number - 1] for number in reply.answer.ranking]


def _order_fault(answer: Order, count: int) -> Rejection | None:
    if sorted(answer.ranking) == list(range(1, count + 1)):
        return None
    return Rejection("no_ranking", f"{answer.ranking} does not name each of 1 to {count} once")
