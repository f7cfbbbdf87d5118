"""Comparison of measured adapters: differences to the best one, the set that contains the best, and warnings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from paco_core.benchmarks.statistics import Estimate, estimate, estimate_difference
from paco_core.config.params import EarlyStop
from paco_core.grading.measures import CONSISTENCY, COPIES, DIVERSITY, GRID, IDENTITY, PER_PROMPT, TEXT
from paco_core.grpo.metrics import FEWEST_GROUPS, LEVEL

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.grading.candidates import Candidate

COPY_SHARE = 0.05  # share of near-copies above which an adapter gets a warning
TEXT_FALL = 0.01  # share of text following that an adapter may lose during its training without a warning
DIVERSITY_KEPT = float(EarlyStop.model_fields["diversity_kept"].default)
METHOD = "multiple comparisons with the best (Hsu 1984), one-sided max-t multiplier bootstrap over prompts"


@dataclass(frozen=True)
class GradedAdapter:
    """An adapter with its measures.

    Attributes:
        difference: main measure minus that of the best adapter, over the prompts that have both.
        can_be_best: whether it cannot be told apart from the best adapter. False with a warning.
    """

    candidate: Candidate
    measures: Mapping[str, Estimate]
    grid_score: float
    difference: Estimate
    can_be_best: bool
    warnings: Sequence[str]


@dataclass(frozen=True)
class Comparison:
    """Adapters from the highest main measure to the lowest, and the base model.

    Attributes:
        main: the measure that sorts.
        best: name of the adapter with the highest main measure among those without a warning (or among all, if each has
            one).
        base_difference: main measure of the base model minus that of the best adapter.
    """

    main: str
    best: str
    adapters: Sequence[GradedAdapter]
    base: Mapping[str, Estimate]
    base_difference: Estimate
    prompts: int


def compare_adapters(candidates: Sequence[Candidate], tables: Mapping[str, pd.DataFrame], base: str) -> Comparison:
    """Compare adapters by :data:`IDENTITY`, or by :data:`CONSISTENCY` if there are no images of the subject.

    Args:
        tables: by the name of an adapter (or of the base model), its measures, one row per prompt.
        base: name of the base model in ``tables``.
    """
    main = IDENTITY if IDENTITY in tables[base] else CONSISTENCY
    names = [candidate.name for candidate in candidates]
    warnings = {name: _warnings(tables[name], tables[base]) for name in names}
    for name, text in _overtrained(candidates, tables, main).items():
        warnings[name].append(text)
    eligible = [name for name in names if not warnings[name]] or names
    values = np.array([tables[name][main] for name in eligible])
    in_set = dict(zip(eligible, best_candidates(values), strict=True))
    best = max(eligible, key=lambda name: _order(tables[name][main]))
    adapters = [
        GradedAdapter(
            candidate,
            _estimates(tables[candidate.name]),
            float(tables[candidate.name][GRID].iloc[0]),
            estimate_difference(tables[candidate.name][main], tables[best][main]),
            in_set.get(candidate.name, False),
            warnings[candidate.name],
        )
        for candidate in candidates
    ]
    adapters.sort(key=lambda adapter: _order(tables[adapter.candidate.name][main]), reverse=True)
    difference = estimate_difference(tables[base][main], tables[best][main])
    return Comparison(main, best, adapters, _estimates(tables[base]), difference, len(tables[base]))


def _order(values: pd.Series[float]) -> float:
    mean = float(values.mean())
    return -math.inf if math.isnan(mean) else mean


def _estimates(table: pd.DataFrame) -> dict[str, Estimate]:
    return {name: estimate(table[name]) for name in PER_PROMPT if name in table}


def best_candidates(values: NDArray[np.float64], *, resamples: int = 4000, seed: int = 0) -> list[bool]:
    """Whether each candidate cannot be told apart from the best one, simultaneously at 95%.

    Multiple comparisons with the best (Hsu 1984, Annals of Statistics 12, 1136): candidate i is left out if the upper
    bound of its mean minus that of some other candidate j is below zero. The bounds of i hold for all j together. So
    the candidate with the highest true mean is in the set with probability 95%. Their critical value is the quantile of
    the largest t statistic (max-t) in a multiplier bootstrap over prompts (Chernozhukov, Chetverikov and Kato 2013,
    Annals of Statistics 41, 2786). For few prompts, it has the degrees of freedom of a t test. The bootstrap uses that
    prompts are shared. A bootstrap that studentizes each sample would be wider: for two adapters that differ in few
    prompts, its samples without these prompts have a standard error near zero.

    Args:
        values: (candidates, prompts), higher is better. Prompts with a NaN are left out.
        resamples: bootstrap samples.
        seed: of the bootstrap.

    Returns:
        All True for fewer than :data:`FEWEST_GROUPS` complete prompts.
    """
    values = values[:, ~np.isnan(values).any(axis=0)]
    candidates, prompts = values.shape
    if candidates < 2 or prompts < FEWEST_GROUPS:
        return [True] * candidates
    rng = np.random.default_rng(seed)
    scales = np.sqrt(rng.chisquare(prompts - 1, (resamples, 1)) / (prompts - 1))
    multipliers = rng.normal(size=(resamples, prompts)) / scales
    return [_is_candidate(values[row] - np.delete(values, row, axis=0), multipliers) for row in range(candidates)]


def _is_candidate(differences: NDArray[np.float64], multipliers: NDArray[np.float64]) -> bool:
    """Whether no upper bound of the mean differences (others, prompts) is below zero."""
    prompts, means = differences.shape[1], differences.mean(axis=1)
    centred = differences - means[:, None]
    norms = np.sqrt((centred**2).sum(axis=1))
    tiny = 1e-9 * max(float(np.abs(differences).max()), 1e-9)  # a difference that is equal for all prompts
    statistics = multipliers @ (centred / np.maximum(norms, tiny)[:, None]).T
    errors = norms / np.sqrt(prompts * (prompts - 1))
    return bool((means + np.quantile(statistics.max(axis=1), LEVEL) * errors >= -tiny).all())


def _warnings(table: pd.DataFrame, base: pd.DataFrame) -> list[str]:
    """Copies of the images of the subject, and a collapse of diversity."""
    texts = []
    if COPIES in table and (share := float(table[COPIES].mean())) > COPY_SHARE + float(base[COPIES].mean()):
        texts.append(f"copies: {share:.0%} of its images are near-copies of --images")
    diversity, before = float(table[DIVERSITY].mean()), float(base[DIVERSITY].mean())
    if diversity < DIVERSITY_KEPT * before:
        texts.append(f"collapse: diversity {diversity:.3f}, base model {before:.3f}")
    return texts


def _overtrained(candidates: Sequence[Candidate], tables: Mapping[str, pd.DataFrame], main: str) -> dict[str, str]:
    """Adapters whose text following fell, compared with an earlier step of their training.

    The earlier step is the one with the best text following. Text following fell if the 95% interval of the paired
    difference is below zero, and its mean is below minus :data:`TEXT_FALL` of the earlier value. The main measure may
    rise (the adapter ignores the prompt) or fall, too (it forgets).
    """
    trainings: dict[str, list[Candidate]] = defaultdict(list)
    for candidate in sorted(candidates, key=lambda candidate: math.inf if candidate.step is None else candidate.step):
        if TEXT in tables[candidate.name]:
            trainings[candidate.series].append(candidate)
    texts = {}
    for training in trainings.values():
        for place, candidate in enumerate(training[1:], start=1):
            earlier = max(training[:place], key=lambda other: _order(tables[other.name][TEXT]))
            now, before = tables[candidate.name], tables[earlier.name]
            fall = estimate_difference(now[TEXT], before[TEXT])
            change = estimate_difference(now[main], before[main])
            if fall.high < 0 and fall.mean < -TEXT_FALL * abs(before[TEXT].mean()):
                texts[candidate.name] = (
                    f"over-training: text following {fall.mean:+.3f} and {main} {change.mean:+.3f} since {earlier.name}"
                )
    return texts
