"""Sweep over the share alpha of the decision token: reward models under several seeds, on the held-out rankings.

The paper weighs the decision token by alpha = 0.1 and shows no other value (arXiv 2512.04784, section 3). A sweep is a
grid (:mod:`.grid`) of the stage ``consistency_rank``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paco_core.benchmarks.ranking_metrics import METRICS
from paco_core.benchmarks.statistics import estimate, estimate_difference
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, write_result_tables
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import Params
from paco_core.config.params_benchmarks import BASE, REWARD
from paco_core.experiments.grid import Cell, Grid, Result, Variant, begin, experiment_folder, needed
from paco_core.io import paths
from paco_core.io.answer import Answer, to_jsonable
from paco_core.io.files import DataError, read_json, read_table, write_json

ALPHAS = ("1/n", "0.01", "0.1", "0.3", "0.5", "0.9", "fast")
VALIDATION = ("accuracy", "roc_auc", "calibration_error", "position_bias", "identical_score")
#: Variants that have a name instead of an alpha -> what they change.
VARIANTS: dict[str, dict[str, Any]] = {
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
    if name in VARIANTS:
        return Variant(name, changes=VARIANTS[name])
    try:
        alpha = float(name)
    except ValueError:
        alpha = -1.0
    if not 0.0 <= alpha <= 1.0:
        raise DataError(f"alpha {name!r}: give a number from 0 to 1, 1/n, fast or default")
    weighted = {"reward.loss": "weighted", "reward.answers": "reasons", "reward.alpha": alpha}
    return Variant(name, changes=weighted)


def build_sweep_cell(variant: Variant, seed: int, changes: Mapping[str, Any]) -> Cell:
    """The training of a variant under a seed; ``changes`` are those of all cells."""
    values = {**changes, **variant.changes, "reward.seed": seed, "reward.source": "train"}
    return Cell(variant, seed, paths.CONSISTENCY_RANK.name, values)


def run_reward_sweep(
    root: Path, alphas: Sequence[str] | None, seeds: Sequence[int], changes: Sequence[str], name: str
) -> Answer:
    """Run a sweep, write its tables below ``data/sweeps/NAME`` and return them as Markdown.

    Args:
        alphas: see :func:`variant`; :data:`ALPHAS` when None.
        changes: further ``key=value`` of ``params.yaml``, dotted keys, for all cells.

    Raises:
        DataError: for a setting or change that means nothing, a name that is none, when the pairs were not made yet, or
            an experiment fails.
        ParamsError: when the changed parameters are invalid.
    """
    out = experiment_folder(root / paths.DATA / "sweeps", name)
    names = list(alphas or ALPHAS)
    variants = [variant(setting) for setting in names]
    if len(set(names)) < len(names):
        raise DataError(f"a setting is given twice: {', '.join(names)}")
    params = begin(root, changes, seeds)
    cells = [build_sweep_cell(setting, seed, changes_of(changes)) for setting in variants for seed in seeds]
    for planned_cell in cells:
        changed(params, planned_cell.changes)
    needed(root, paths.PAIRS / "benchmark.parquet")
    results = Grid(root, out).run(cells)
    if not results:
        raise DataError(f"no cell of {name} is finished yet: another command is training them")
    rows = summarise_sweep(results, params)
    write_json(out / "results.json", to_jsonable(rows))
    write_result_tables(out, f"Sweep {out.name}", sweep_tables(rows))
    return Answer((out / "results.md").read_text(encoding="utf-8"), read_json(out / "results.json"))


def summarise_sweep(results: Sequence[Result], params: Params) -> dict[str, dict[str, Any]]:
    """One row per variant, in the order of the results, then one for each evaluator that no variant changes.

    Of a row: ``seeds``; ``metrics``, an Estimate over prompts, of the mean over seeds; ``seed_standard_deviation``,
    NaN for one seed; ``gain`` over the base, None for the base itself; ``validation``, means over seeds, of what is
    trained.
    """
    tables = [read_table(result.folder(paths.CONSISTENCY_RANK) / "per_instance.parquet") for result in results]
    trained: dict[str, list[pd.DataFrame]] = {}
    validation: dict[str, list[dict[str, float]]] = {}
    for result, table in zip(results, tables, strict=True):
        name = result.cell.variant.name
        trained.setdefault(name, []).append(_scores(table, REWARD))
        validation.setdefault(name, []).append(result.metrics(paths.REWARD_LORA.name))
    fixed = {name: [_scores(tables[0], name)] for name in dict.fromkeys(tables[0]["method"]) if name != REWARD}
    base = fixed[BASE][0]
    bootstrap: dict[str, Any] = {
        "groups": base["prompt_id"].tolist(),
        "resamples": params.consistency_rank.bootstrap,
        "seed": params.consistency_rank.seed,
    }
    rows = {}
    for name, scores in (trained | fixed).items():
        values = np.stack([table[list(METRICS)].to_numpy(float) for table in scores])  # (seeds, instances, metrics)
        deviation = pd.DataFrame(np.nanmean(values, axis=1)).std()
        columns = dict(zip(METRICS, values.mean(axis=0).T, strict=True))
        gain = {metric: estimate_difference(column, base[metric], **bootstrap) for metric, column in columns.items()}
        rows[name] = {
            "seeds": len(scores),
            "metrics": {metric: estimate(column, **bootstrap) for metric, column in columns.items()},
            "seed_standard_deviation": dict(zip(METRICS, deviation.tolist(), strict=True)),
            "gain": None if name == BASE else gain,
            "validation": {
                metric: float(np.mean([of_seed[metric] for of_seed in validation[name]]))
                for metric in VALIDATION
                if name in validation
            },
        }
    return rows


def _scores(table: pd.DataFrame, method: str) -> pd.DataFrame:
    """The rows of an evaluator, in one order for all."""
    return table[table["method"] == method].sort_values("instance_id", ignore_index=True)


def sweep_tables(rows: Mapping[str, Mapping[str, Any]]) -> list[ResultTable]:
    """The rankings, and the decision on validation pairs."""
    ranking = []
    for name, row in rows.items():
        metrics, gain = row["metrics"], row["gain"]
        accuracy, t1_b1 = (signed(gain[metric]) if gain else "" for metric in ("accuracy", "t1_b1"))
        deviation = number(row["seed_standard_deviation"]["accuracy"])
        cells = [interval(metrics["accuracy"]), deviation, accuracy, interval(metrics["t1_b1"]), t1_b1]
        ranking.append([name, str(row["seeds"]), *cells, interval(metrics["tau"])])
    head = ["setting", "seeds", "accuracy", "sd over seeds", "over base", "T1-B1", "over base", "tau"]
    note = (
        "Held-out rankings. Mean over seeds with a 95% bootstrap interval over prompts; differences are paired. "
        "The interval does not include the variation between seeds: the standard deviation over seeds shows it."
    )
    decision = [[name, *map(number, row["validation"].values())] for name, row in rows.items() if row["validation"]]
    words = [name.replace("_", " ") for name in VALIDATION]
    return [
        ResultTable("Held-out rankings", head, ranking, [note]),
        ResultTable("Validation pairs, mean over seeds", ["setting", *words], decision),
    ]
