"""EditReward-Bench: which judge prefers the better of two edits of a picture (EditScore, arXiv 2509.23909)?

A case has an instruction, a source picture, two edited pictures of which the first is better, a task type
and a dimension. A judge is right where it scores the better one higher. Prompt following and consistency
are P(Yes) of the two editing instructions; overall is the square root of their product (PaCo-RL, arXiv
2512.04784). Accuracy is the mean within each task type, then over task types.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from paco_core.benchmarks.results import flat
from paco_core.benchmarks.statistics import METHODS, Estimate, macro_compare, macro_estimate
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, with_published
from paco_core.grpo.metrics import LEVEL
from paco_core.io.answer import plain
from paco_core.io.pictures import picture_digest
from paco_core.reward_model.instructions import render
from paco_core.reward_model.yes_probability import PairQuery, PairScorer

if TYPE_CHECKING:
    from PIL.Image import Image

    from paco_core.benchmarks.published import PublishedRow
    from paco_core.io.open_clip_model import OpenClip

FOLLOWING, CONSISTENCY, OVERALL = "prompt_following", "consistency", "overall"
DIMENSIONS = (FOLLOWING, CONSISTENCY, OVERALL)
#: The questions: as in RL and training, or as the published figures were asked.
TEMPLATES = {
    "rl": {FOLLOWING: "edit_following", CONSISTENCY: "edit_consistency"},
    "published": {FOLLOWING: "edit_bench_following", CONSISTENCY: "edit_bench_consistency"},
}
ASKED = {FOLLOWING: (FOLLOWING,), CONSISTENCY: (CONSISTENCY,), OVERALL: (FOLLOWING, CONSISTENCY)}
ASK_BATCH = 256
TIE_RULE = (
    "Strict accuracy counts a case as right where the better edit scores higher; ties are wrong. The ≥ variant "
    "counts ties as right. A case with a score missing is left out and counted."
)


@dataclass(frozen=True)
class Case:
    """One comparison; ``pictures`` gives (source, better, worse) when it is asked."""

    id: str
    task_type: str
    dimension: str
    instruction: str
    group: str  # cases of one source picture and instruction belong together
    pictures: Callable[[], tuple[Image, Image, Image]]


@dataclass
class EditJudgement:
    """(score of the better, score of the worse) of each case, NaN where the judge failed or does not judge."""

    label: str
    scores: list[tuple[float, float]]
    causes: Counter[str] = field(default_factory=Counter)
    is_chance: bool = False  # right in half of the cases, by expectation


def count_questions(cases: Iterable[Case]) -> int:
    """How many questions :func:`judge_pairs` asks, before equal ones are put together."""
    return sum(2 * len(ASKED[case.dimension]) for case in cases)


def judge_pairs(
    label: str,
    scorer: PairScorer,
    cases: Sequence[Case],
    *,
    wording: Literal["rl", "published"] = "rl",
    advance: Callable[[int], object] = lambda _count: None,
) -> EditJudgement:
    """P(Yes) of the questions that each case's dimension needs; equal questions are asked once."""
    judged = EditJudgement(label, [])
    scores: dict[tuple[str, str, str], float] = {}
    for part in _batches(cases):
        queries: dict[tuple[str, str, str], PairQuery] = {}
        keys: list[list[list[tuple[str, str, str]]]] = []  # of each case, of each edit: its questions
        for case in part:
            source, *outputs = case.pictures()
            keys.append([])
            for output in outputs:
                edited = output.resize(source.size) if output.size != source.size else output
                pair = picture_digest(source), picture_digest(edited)
                keys[-1].append([])
                for dimension in ASKED[case.dimension]:
                    text = render(TEMPLATES[wording][dimension], instruction=case.instruction)
                    keys[-1][-1].append((text, *pair))
                    if (text, *pair) not in scores:
                        queries[text, *pair] = PairQuery(source, edited, text)
        for key, score in zip(queries, scorer.score(list(queries.values())), strict=True):
            scores[key] = score.value
            judged.causes.update([score.cause] if score.cause is not None else ())
        judged.scores += [
            (_overall([scores[key] for key in better]), _overall([scores[key] for key in worse]))
            for better, worse in keys
        ]
        advance(count_questions(part))
    return judged


def _overall(scores: Sequence[float]) -> float:
    """One score as it is; of two the square root of their product."""
    return scores[0] if len(scores) == 1 else math.sqrt(scores[0] * scores[1])


def _batches(cases: Sequence[Case]) -> Iterable[list[Case]]:
    size = ASK_BATCH // 4
    return (list(cases[start : start + size]) for start in range(0, len(cases), size))


def judge_clip(label: str, clip: OpenClip, cases: Sequence[Case]) -> EditJudgement:
    """CLIP-I: cosine of source and edited picture. It reads no instruction, so it judges consistency alone."""
    judged = EditJudgement(label, [(math.nan, math.nan)] * len(cases))
    places = [place for place, case in enumerate(cases) if case.dimension == CONSISTENCY]
    pictures = [image for place in places for image in cases[place].pictures()]
    vectors = clip.embed(pictures)
    for turn, place in enumerate(places):
        source, better, worse = vectors[3 * turn : 3 * turn + 3]
        judged.scores[place] = (float(source @ better), float(source @ worse))
    return judged


def chance(label: str, cases: Sequence[Case]) -> EditJudgement:
    """A judge that prefers either edit equally often; it has no scores."""
    return EditJudgement(label, [(math.nan, math.nan)] * len(cases), is_chance=True)


@dataclass(frozen=True)
class EditRewardResult:
    """Everything that the benchmark found."""

    cases: list[Case]
    judgements: dict[str, EditJudgement]
    right: dict[str, dict[str, np.ndarray]]  # judge -> strict | geq -> (cases,), NaN where not judged
    estimates: dict[str, dict[str, dict[str, Estimate]]]  # judge -> dimension -> strict | geq
    comparisons: dict[str, dict[str, Estimate]]  # "reward - base" -> dimension

    def unscorable(self, name: str) -> int:
        return int(np.isnan(self.right[name]["strict"]).sum())

    def by_task(self, name: str) -> dict[str, dict[str, float]]:
        """Task type -> dimension -> strict accuracy."""
        tasks = sorted({case.task_type for case in self.cases})
        return {task: {d: self._mean(name, task, d) for d in DIMENSIONS} for task in tasks}

    def _mean(self, name: str, task: str, dimension: str) -> float:
        chosen = [c.task_type == task and c.dimension == dimension for c in self.cases]
        values = self.right[name]["strict"][chosen]
        values = values[~np.isnan(values)]
        return float(values.mean()) if len(values) else math.nan

    def as_dict(self) -> dict[str, Any]:
        """The content of ``results.json``."""
        methods = {
            name: {
                "label": judgement.label,
                "unscorable": self.unscorable(name),
                "causes": dict(judgement.causes),
                "accuracy": {
                    d: {kind: found.as_dict() for kind, found in kinds.items()}
                    for d, kinds in self.estimates[name].items()
                },
                "by_task": self.by_task(name),
            }
            for name, judgement in self.judgements.items()
        }
        tree = {
            "cases": dict(Counter(case.dimension for case in self.cases)),
            "task_types": sorted({case.task_type for case in self.cases}),
            "level": LEVEL,
            "tie_rule": TIE_RULE,
            "methods": methods,
            "comparisons": {n: {d: c.as_dict() for d, c in row.items()} for n, row in self.comparisons.items()},
        }
        cleaned: dict[str, Any] = plain(tree)
        return cleaned

    def metrics(self) -> dict[str, float]:
        """The flat figures for DVC and MLflow."""
        found: dict[str, float] = {"cases": len(self.cases)}
        for name, dimensions in self.estimates.items():
            for dimension, kinds in dimensions.items():
                found[f"{name}.{dimension}"] = kinds["strict"].mean
                found[f"{name}.{dimension}_geq"] = kinds["geq"].mean
        for name, row in self.comparisons.items():
            for dimension, value in row.items():
                found |= flat(f"{name.replace(' - ', '_minus_')}.{dimension}", value)
        return found

    def table(self) -> pd.DataFrame:
        """One row a case and judge."""
        return pd.DataFrame(
            [
                {
                    "case_id": case.id, "task_type": case.task_type, "dimension": case.dimension, "method": name,
                    "better": judgement.scores[place][0], "worse": judgement.scores[place][1],
                    "right": self.right[name]["strict"][place],
                }
                for name, judgement in self.judgements.items()
                for place, case in enumerate(self.cases)
            ]
        )  # fmt: skip

    def tables(
        self, published: Sequence[PublishedRow], wording: Literal["rl", "published"] = "rl"
    ) -> list[ResultTable]:
        """Accuracy, the published rows, differences, and accuracy by task type.

        The published rows stand below the measured ones only where those were asked in the same words.
        """
        words = ["prompt following", "consistency", "overall"]
        rows = []
        for name, judgement in self.judgements.items():
            strict = [interval(self.estimates[name][d]["strict"]) for d in DIMENSIONS]
            loose = [number(self.estimates[name][d]["geq"].mean) for d in DIMENSIONS]
            rows.append([judgement.label, *strict, *loose, str(self.unscorable(name))])
        others = [[f"{row.model} (published)", *(number(row.figures[d]) for d in DIMENSIONS)] for row in published]
        alike = wording == "published"
        head = ["judge", *words, *(f"{word}, ≥" for word in words), "not judged"]
        notes = [
            f"{len(self.cases)} cases; strict accuracy, macro mean over task types, with 95% intervals ({METHODS}).",
            TIE_RULE,
            f"Asked in the words of {'the published figures' if alike else 'training and RL'}.",
        ]
        sources = ", ".join(dict.fromkeys(row.source for row in published))
        note = f"Measured by others on the public benchmark ({sources})."
        if alike:
            note = f"Rows marked “published”: {note}"
        else:
            note += " Asked in other words than above (edit_reward.wording “published” asks in these)."
        found = with_published(
            ResultTable("EditReward-Bench", head, rows, notes),
            ResultTable("EditReward-Bench, published", ["judge", *words], others, [note]),
            alike=alike,
        )
        if self.comparisons:
            differences = [[name, *(signed(row[d]) for d in DIMENSIONS)] for name, row in self.comparisons.items()]
            found.append(ResultTable("Paired differences", ["judges", *words], differences, detail=True))
        for name, judgement in self.judgements.items():
            by_task = [[task, *(number(row[d]) for d in DIMENSIONS)] for task, row in self.by_task(name).items()]
            found.append(ResultTable(f"By task type: {judgement.label}", ["task type", *words], by_task, detail=True))
        return found


def evaluate(
    cases: Sequence[Case],
    judgements: Mapping[str, EditJudgement],
    pairs: Sequence[tuple[str, str]],
    *,
    resamples: int = 2000,
    seed: int = 0,
) -> EditRewardResult:
    """Accuracies of each judge and paired differences of the named pairs, intervals over groups of cases."""
    right = {name: _right(judgement) for name, judgement in judgements.items()}
    places = {d: [n for n, case in enumerate(cases) if case.dimension == d] for d in DIMENSIONS}

    def given(dimension: str) -> dict[str, Any]:
        mine = [cases[n] for n in places[dimension]]
        return {
            "classes": [case.task_type for case in mine],
            "groups": [case.group for case in mine],
            "resamples": resamples,
            "seed": seed,
        }

    estimates = {
        name: {
            d: {kind: macro_estimate(values[places[d]], **given(d)) for kind, values in kinds.items()}
            for d in DIMENSIONS
        }
        for name, kinds in right.items()
    }
    comparisons = {
        f"{a} - {b}": {
            d: macro_compare(right[a]["strict"][places[d]], right[b]["strict"][places[d]], **given(d))
            for d in DIMENSIONS
        }
        for a, b in pairs
    }
    return EditRewardResult(list(cases), dict(judgements), right, estimates, comparisons)


def _right(judgement: EditJudgement) -> dict[str, np.ndarray]:
    if judgement.is_chance:
        half = np.full(len(judgement.scores), 0.5)
        return {"strict": half, "geq": half}
    better, worse = np.array(judgement.scores, dtype=np.float64).reshape(-1, 2).T
    failed = np.isnan(better) | np.isnan(worse)
    return {
        "strict": np.where(failed, np.nan, better > worse),
        "geq": np.where(failed, np.nan, better >= worse),
    }
