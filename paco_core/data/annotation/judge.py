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
from paco_core.data.annotation.assignment import candidate_order, unordered
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
from paco_core.data.llm.openai_chat import Chat, query_all
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
    """The annotator model's ranking of every instance. A journal stores the replies, so a stopped run can resume.

    If a reply about an instance is invalid, the instance has no ranking and is counted.

    Raises:
        ChatError: if the endpoint cannot be used, or did not answer all queries.
    """
    params = task.params
    assert params.endpoint is not None  # validated in params.py
    with Journal(task.root / JOURNAL) as journal:
        chat = Chat(params.endpoint, journal)
        judge_votes = _pairwise(task, chat) if params.judge == "pairwise" else _listwise(task, chat)
    judge_votes.counts |= chat.counts.figures()
    judge_votes.counts |= {f"rejected.{cause}": count for cause, count in sorted(chat.counts.rejected.items())}
    return judge_votes


def count_judge_queries(instances: pd.DataFrame, judge: str) -> int:
    """The number of queries to the annotator model."""
    return 2 * (len(_pairs(instance_rows(instances))) if judge == "pairwise" else len(instances))


def _pairs(rows: Sequence[InstanceRow]) -> list[tuple[str, str]]:
    """Each pair of panels to compare, once."""
    return sorted({unordered(reference, other) for _, reference, candidates in rows for other in candidates})


def _pairwise(task: RankingTask, chat: Chat) -> Votes:
    rows, panels = instance_rows(task.instances), task.panels
    pairs = _pairs(rows)

    def question(ordered_pair: tuple[str, str]) -> Question[PairScore]:
        return Question(
            "|".join(ordered_pair),
            f"How consistent are these two pictures? Give a score from 0 (they share nothing) to {BEST} (nothing "
            "speaks against one set).",
            PairScore,
            system=SYSTEM,
            images=[panels.panel(ref) for ref in ordered_pair],
            validation_error=_score_error,
        )

    ordered_pairs = [ordered_pair for first, second in pairs for ordered_pair in ((first, second), (second, first))]
    replies = dict(zip(ordered_pairs, query_all(chat, ordered_pairs, question, task.advance), strict=True))
    scores: dict[tuple[str, str], float] = {}
    gaps = []
    for first, second in pairs:
        there, back = replies[first, second].answer, replies[second, first].answer
        if there is not None and back is not None:
            scores[first, second] = (there.score + back.score) / (2 * BEST)
            gaps.append(abs(there.score - back.score) / BEST)
    judge_votes = Votes([])
    for instance_id, reference, candidates in rows:
        pair_scores = [scores.get(unordered(reference, other)) for other in candidates]
        candidate_scores = [score for score in pair_scores if score is not None]
        if len(candidate_scores) == len(candidates):
            order = sorted(range(len(candidate_scores)), key=lambda n: (-candidate_scores[n], n))
            judge_votes.rankings.append(
                Annotation(
                    instance_id,
                    chat.params.model,
                    order,
                    candidate_scores,
                    len(set(candidate_scores)) < len(candidate_scores),
                )
            )
    judge_votes.counts = {"unscored_instances": len(rows) - len(judge_votes.rankings), "order_gap": mean_or_nan(gaps)}
    return judge_votes


def _score_error(answer: PairScore) -> Rejection | None:
    return None if 0 <= answer.score <= BEST else Rejection("score_out_of_range", f"{answer.score} is not 0 to {BEST}")


def _listwise(task: RankingTask, chat: Chat) -> Votes:
    rows, panels = instance_rows(task.instances), task.panels
    orders = {
        instance_id: candidate_order("judge", instance_id, len(candidates)) for instance_id, _, candidates in rows
    }

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
            validation_error=lambda answer: _order_error(answer, count),
        )

    queries = [(row, order) for row in rows for order in (orders[row[0]], orders[row[0]][::-1])]
    replies = query_all(chat, queries, question, task.advance)
    judge_votes, taus = Votes([]), []
    lost: Counter[str] = Counter(unscored_instances=0, contradicted_instances=0)
    for n, (instance_id, _, _) in enumerate(rows):
        there = _ranking(replies[2 * n], orders[instance_id])
        back = _ranking(replies[2 * n + 1], orders[instance_id][::-1])
        if there is None or back is None:
            lost["unscored_instances"] += 1
            continue
        taus.append(kendall_tau(there, back))
        if taus[-1] == -1:
            lost["contradicted_instances"] += 1  # the reply depends only on the order of the candidates
            continue
        settled = adjudicate(unscored(instance_id, chat.params.model, ranking) for ranking in (there, back))
        consensus = settled[instance_id]
        judge_votes.rankings.append(
            Annotation(instance_id, chat.params.model, consensus.ranking, consensus.scores, consensus.tied)
        )
    judge_votes.counts = {**lost, "order_tau": mean_or_nan(taus)}
    return judge_votes


def _ranking(reply: Reply[Order], order: Sequence[int]) -> list[int] | None:
    """Candidate positions, best first, from the numbers in the reply."""
    return None if reply.answer is None else [order[number - 1] for number in reply.answer.ranking]


def _order_error(answer: Order, count: int) -> Rejection | None:
    if sorted(answer.ranking) == list(range(1, count + 1)):
        return None
    return Rejection("no_ranking", f"{answer.ranking} does not name each of 1 to {count} once")
