"""The reward model trained in several variants and under several seeds, each measured on the held-out rankings.

The paper weighs the decision token by alpha = 0.1 and shows no other value (arXiv 2512.04784, section 3);
this is the sweep over alpha, a grid (:mod:`.grid`) of the stage ``consistency_rank``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from paco_core.benchmarks.ranking_metrics import METRICS
from paco_core.benchmarks.statistics import Estimate, compare, estimate
from paco_core.benchmarks.tables import ResultTable, interval, number, signed
from paco_core.config.params import Params
from paco_core.config.params_benchmarks import BASE, REWARD
from paco_core.experiments.grid import Cell, Result, Variant
from paco_core.io import paths
from paco_core.io.files import DataError, read_table

ALPHAS = ("1/n", "0.01", "0.1", "0.3", "0.5", "0.9", "fast")
VALIDATION = ("accuracy", "roc_auc", "calibration_error", "position_bias", "identical_score")
#: Variants that have a name instead of an alpha -> what they change.
NAMED: dict[str, dict[str, Any]] = {
    "default": {},
    "1/n": {"reward.loss": "plain", "reward.answers": "reasons"},
    "fast": {"reward.loss": "plain", "reward.answers": "decision"},
}


def variant(name: str) -> Variant:
    """What a point of the sweep means.

    ``1/n``: every token of an answer counts alike; a number: the share alpha of the decision token; ``fast``:
    answers are "Yes." and "No." alone (PaCo-Reward-Fast); ``default``: ``params.yaml`` as it is.

    Raises:
        DataError: for anything else.
    """
    if name in NAMED:
        return Variant(name, changes=NAMED[name])
    try:
        alpha = float(name)
    except ValueError:
        alpha = -1.0
    if not 0.0 <= alpha <= 1.0:
        raise DataError(f"alpha {name!r}: give a number from 0 to 1, 1/n, fast or default")
    weighted = {"reward.loss": "weighted", "reward.answers": "reasons", "reward.alpha": alpha}
    return Variant(name, changes=weighted)


def cell(variant: Variant, seed: int, changes: Mapping[str, Any]) -> Cell:
    """The training of a variant under a seed; ``changes`` are those of all cells."""
    values = {**changes, **variant.changes, "reward.seed": seed, "reward.source": "train"}
    return Cell(variant, seed, paths.CONSISTENCY_RANK.name, values)


@dataclass(frozen=True)
class SweepRow:
    """One line of the result: a variant over its seeds, or an evaluator that no variant changes."""

    seeds: int
    metrics: Mapping[str, Estimate]  # over prompts, of the mean over seeds
    seed_standard_deviation: Mapping[str, float]  # NaN for one seed
    gain: Mapping[str, Estimate] | None  # over the base; None for the base itself
    validation: Mapping[str, float]  # means over seeds; of what is trained


def rows_of(results: Sequence[Result], params: Params) -> dict[str, SweepRow]:
    """One row per variant, in the order of the results, then one for each evaluator that no variant changes."""
    tables = [read_table(result.folder(paths.CONSISTENCY_RANK) / "per_instance.parquet") for result in results]
    trained: dict[str, list[pd.DataFrame]] = {}
    validation: dict[str, list[dict[str, float]]] = {}
    for result, table in zip(results, tables, strict=True):
        name = result.cell.variant.name
        trained.setdefault(name, []).append(_scores(table, REWARD))
        validation.setdefault(name, []).append(result.metrics(paths.REWARD_LORA.name))
    fixed = {name: [_scores(tables[0], name)] for name in dict.fromkeys(tables[0]["method"]) if name != REWARD}
    base = fixed[BASE][0]
    draws: dict[str, Any] = {
        "groups": base["prompt_id"].tolist(),
        "resamples": params.consistency_rank.bootstrap,
        "seed": params.consistency_rank.seed,
    }
    rows = {}
    for name, scores in (trained | fixed).items():
        values = np.stack([table[list(METRICS)].to_numpy(float) for table in scores])  # (seeds, instances, metrics)
        mean, deviation = values.mean(axis=0), pd.DataFrame(np.nanmean(values, axis=1)).std()
        columns = dict(zip(METRICS, mean.T, strict=True))
        rows[name] = SweepRow(
            len(scores),
            {metric: estimate(column, **draws) for metric, column in columns.items()},
            dict(zip(METRICS, deviation.tolist(), strict=True)),
            None if name == BASE else {m: compare(column, base[m], **draws) for m, column in columns.items()},
            {m: float(np.mean([found[m] for found in validation[name]])) for m in VALIDATION if name in validation},
        )
    return rows


def _scores(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of an evaluator, in one order for all."""
    return table[table["method"] == method].sort_values("instance_id", ignore_index=True)


def tables(rows: Mapping[str, SweepRow]) -> list[ResultTable]:
    """The rankings, and the decision on validation pairs."""
    ranking = []
    for name, row in rows.items():
        deviation = number(row.seed_standard_deviation["accuracy"])
        accuracy, t1_b1 = (signed(row.gain[of]) if row.gain else "" for of in ("accuracy", "t1_b1"))
        cells = [interval(row.metrics["accuracy"]), deviation, accuracy, interval(row.metrics["t1_b1"]), t1_b1]
        ranking.append([name, str(row.seeds), *cells, interval(row.metrics["tau"])])
    head = ["setting", "seeds", "accuracy", "sd over seeds", "over base", "T1-B1", "over base", "tau"]
    note = (
        "Held-out rankings. Mean over seeds with a 95% bootstrap interval over prompts; differences are paired. "
        "The interval does not include the variation between seeds: the standard deviation over seeds shows it."
    )
    decision = [[name, *map(number, row.validation.values())] for name, row in rows.items() if row.validation]
    words = [name.replace("_", " ") for name in VALIDATION]
    return [
        ResultTable("Held-out rankings", head, ranking, [note]),
        ResultTable("Validation pairs, mean over seeds", ["setting", *words], decision),
    ]
