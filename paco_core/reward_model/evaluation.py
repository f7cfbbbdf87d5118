"""Evaluation of a reward model on labelled pairs: decision, ranking, calibration, symmetry."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from paco_core.reward_model.examples import Example
from paco_core.reward_model.yes_probability import PairQuery, PairScorer

BINS = 10


@dataclass(frozen=True)
class RewardEvaluation:
    """Metrics over labelled pairs. NaN if a metric is not defined (only one label, no scored pair)."""

    accuracy: float  # share of pairs whose decision (score > 0.5) is the label
    roc_auc: float
    calibration_error: float  # expected calibration error of P(Yes), 10 bins
    position_bias: float  # mean of score(a, b) - score(b, a)
    position_spread: float  # mean of |score(a, b) - score(b, a)|
    identical_score: float  # mean score of a panel with itself
    true_yes: int  # the confusion table: answered Yes, and the label is Yes
    false_yes: int  # answered Yes, but the label is No
    true_no: int
    false_no: int
    pairs: int
    failed: int  # pairs without a score; they count in no figure
    scores: tuple[float, ...] = field(repr=False)  # of each pair, in order; NaN where it failed

    def metrics(self, prefix: str = "") -> dict[str, float]:
        return {f"{prefix}{f.name}": float(getattr(self, f.name)) for f in fields(self) if f.name != "scores"}

    def confusion(self) -> str:
        """The confusion table as Markdown."""
        rows = [("label Yes", self.true_yes, self.false_no), ("label No", self.false_yes, self.true_no)]
        lines = [f"| {label} | {yes} | {no} |" for label, yes, no in rows]
        return (
            "\n".join(["| | answered Yes | answered No |", "|---|---|---|", *lines, "", f"no score: {self.failed}"])
            + "\n"
        )


#: Metrics that can select the best checkpoint, and whether higher is better.
BETTER_WHEN_HIGHER = {"accuracy": True, "roc_auc": True, "calibration_error": False, "position_spread": False}


def better(metric: str, new: RewardEvaluation, old: RewardEvaluation | None) -> bool:
    """Whether ``new`` is at least as good as ``old``.

    The metric "last" always prefers ``new``. An undefined value is worse than any other.
    """
    if old is None or metric == "last":
        return True
    sign = 1 if BETTER_WHEN_HIGHER[metric] else -1
    values = [sign * float(getattr(evaluation, metric)) for evaluation in (new, old)]
    a, b = (-math.inf if math.isnan(value) else value for value in values)
    return a >= b


def evaluate(scorer: PairScorer, examples: Sequence[Example], symmetry_pairs: int = 256) -> RewardEvaluation:
    """Score ``examples``.

    The metrics of symmetry and identical images use at most the first ``symmetry_pairs`` pairs whose order has no
    meaning. Edits are excluded, because a swapped edit is a different query.
    """
    either_way = [number for number, example in enumerate(examples) if not example.ordered][:symmetry_pairs]
    symmetric = [examples[number] for number in either_way]
    queries = [example.query for example in examples] + [example.swapped for example in symmetric]
    queries += [PairQuery(e.images[0], e.images[0], e.instruction) for e in symmetric]
    values = np.array([score.value for score in scorer.score(queries)])
    scores, swapped, identical = np.split(values, [len(examples), len(examples) + len(symmetric)])
    labels = np.array([example.consistent for example in examples])
    valid = ~np.isnan(scores)
    difference = scores[either_way] - swapped
    difference = difference[~np.isnan(difference)]
    identical = identical[~np.isnan(identical)]
    answered, labelled = scores[valid] > 0.5, labels[valid]
    return RewardEvaluation(
        accuracy=_mean(answered == labelled),
        roc_auc=roc_auc(scores[valid], labelled),
        calibration_error=calibration_error(scores[valid], labelled),
        position_bias=_mean(difference),
        position_spread=_mean(np.abs(difference)),
        identical_score=_mean(identical),
        true_yes=int((answered & labelled).sum()),
        false_yes=int((answered & ~labelled).sum()),
        true_no=int((~answered & ~labelled).sum()),
        false_no=int((~answered & labelled).sum()),
        pairs=len(examples),
        failed=int((~valid).sum()),
        scores=tuple(scores.tolist()),
    )


def accuracy_gain(before: RewardEvaluation, after: RewardEvaluation, examples: Sequence[Example]) -> dict[str, float]:
    """Change of the accuracy over the pairs that both evaluations scored, and its standard error.

    The answers are paired, so the error counts the pairs whose decision became right or wrong (McNemar's test): it is
    the standard error of a gain of zero. ``accuracy_gain_missing`` counts pairs without a score.

    Args:
        examples: the pairs, in the order of the scores.
    """
    labels = np.array([example.consistent for example in examples])
    scores = np.array([before.scores, after.scores]).reshape(2, len(labels))
    scored = ~np.isnan(scores).any(axis=0)
    first, last = (scores[:, scored] > 0.5) == labels[scored]
    changes = last.astype(float) - first.astype(float)
    error = math.sqrt(float((changes**2).sum())) / len(changes) if len(changes) else math.nan
    gain = {"accuracy_gain": _mean(changes), "accuracy_gain_error": error}
    missing = float((~scored).sum())
    return {**gain, "accuracy_gain_missing": missing} if missing else gain


def most_wrong(examples: Sequence[Example], scores: Sequence[float], count: int = 10) -> list[tuple[Example, float]]:
    """The misclassified pairs whose score is furthest from their label, worst first."""
    scored = zip(examples, scores, strict=True)
    wrong = [(e, s) for e, s in scored if not math.isnan(s) and (s > 0.5) != e.consistent]
    return sorted(wrong, key=lambda pair: (-abs(pair[1] - pair[0].consistent), pair[0].id))[:count]


def _mean(values: np.ndarray) -> float:
    return float(values.mean()) if len(values) else math.nan


def roc_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Probability that a positive outscores a negative of (N,), ties counting half (Mann-Whitney U).

    NaN where only one label occurs.
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    if not positives or not negatives:
        return math.nan
    from scipy.stats import rankdata  # half a second that a process which does not evaluate need not spend

    ranks = rankdata(scores)[labels.astype(bool)].sum()
    return float((ranks - positives * (positives + 1) / 2) / (positives * negatives))


def calibration_error(scores: np.ndarray, labels: np.ndarray) -> float:
    """Expected calibration error: |mean score - share of Yes| over equal bins, weighted by their counts.

    Args:
        scores, labels: (N,) each, 0 to 1.
    """
    if not len(scores):
        return math.nan
    places = np.minimum((scores * BINS).astype(int), BINS - 1)
    error = 0.0
    for place in np.unique(places):
        inside = places == place
        error += inside.mean() * abs(scores[inside].mean() - labels[inside].mean())
    return float(error)


SIDE, GAP, CAPTION = 224, 8, 44  # pixels
PAPER, INK = (255, 255, 255), (32, 32, 36)


def draw_mistake(example: Example, score: float) -> Image.Image:
    """Image of a pair: both images side by side, label and score below."""
    sheet = Image.new("RGB", (2 * SIDE + 3 * GAP, SIDE + 2 * GAP + CAPTION), PAPER)
    for number, image in enumerate(example.images):
        scale = SIDE / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        filter_ = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
        sheet.paste(image.resize(size, filter_), (GAP + number * (SIDE + GAP), GAP))
    label = "Yes" if example.consistent else "No"
    lines = f"label {label}, score {score:.3f}\npair {example.id}"
    draw = ImageDraw.Draw(sheet)
    draw.multiline_text((GAP, SIDE + 2 * GAP), lines, INK, ImageFont.load_default(15), spacing=3)
    return sheet
