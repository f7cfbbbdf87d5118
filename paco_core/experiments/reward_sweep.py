"""The reward's training in several variants and under several seeds, each judged on the held-out rankings.

The paper weighs the decision token by alpha = 0.1 and shows no other value (arXiv 2512.04784, section 3);
this is the sweep over alpha, a grid (:mod:`.grid`) that goes on where it was stopped, within a training too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from paco_core.benchmarks import consistency_rank as bench
from paco_core.benchmarks.ranking_metrics import METRICS
from paco_core.benchmarks.statistics import Estimate
from paco_core.benchmarks.tables import ResultTable, interval, number, signed, write_tables
from paco_core.config.changes import changed
from paco_core.config.params import Params, RewardParams
from paco_core.config.references import model_at
from paco_core.config.resolved import resolved_section
from paco_core.data.records.panels import PanelStore
from paco_core.experiments.grid import Cell, Grid, Variant, needed, say
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.content import content_of, folder_content
from paco_core.io.files import DataError, digest, write_json
from paco_core.io.open_clip_model import OpenClip
from paco_core.io.progress import Progress
from paco_core.reward_model import lora
from paco_core.reward_model.examples import read_examples
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.training import ADAPTER, train
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.tracking import Tracker

ALPHAS = ("1/n", "0.01", "0.1", "0.3", "0.5", "0.9", "fast")
ABOUT = "The reward trained with several values of alpha and several seeds; a parent run holds the comparison."
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


@dataclass(frozen=True)
class SweepRow:
    """One line of the result: a variant over its seeds, or a judge that is not trained."""

    seeds: int
    metrics: Mapping[str, Estimate]  # over prompts, of the mean over seeds
    seed_standard_deviation: Mapping[str, float]  # NaN for one seed
    gain: Mapping[str, Estimate] | None  # over the base; None for the base itself
    validation: Mapping[str, float]  # means over seeds; of what is trained

    def as_dict(self) -> dict[str, Any]:
        gain = None if self.gain is None else {metric: found.as_dict() for metric, found in self.gain.items()}
        return dict(plain({**vars(self), "gain": gain}))


class Sweep:
    """A sweep below one folder: what all its cells share."""

    def __init__(self, root: Path, params: Params, out: Path) -> None:
        self.root, self.params, self.out = root, params, out
        self.base = model_at(root, params.reward.base, "reward.base")
        codes = StageCodes.present(root)
        self.code = digest(
            [codes.of(stage, None).digest for stage in (paths.REWARD_LORA.name, paths.CONSISTENCY_RANK.name)]
        )
        bounds = params.consistency_rank
        table = needed(root, paths.PAIRS / "benchmark.parquet")
        self.labels = needed(root, paths.COT_LABELS)
        self.data = [folder_content(needed(root, folder)) for folder in (paths.PAIRS, paths.COT_LABELS, paths.GRIDS)]
        self.instances = bench.read_instances(table, bounds.max_instances, bounds.seed)
        self.panels = PanelStore.below(needed(root, paths.GRIDS), root / paths.PAIRS)

    def run(self, variants: Sequence[Variant], seeds: Sequence[int]) -> None:
        """Train and judge every cell that is not done yet; write the tables; log to MLflow.

        Cells that another command is training are left out of the tables.
        """
        grid = Grid(self.root, self.out, "sweep", ABOUT, self.params)
        cells = [self._cell(variant, seed) for variant in variants for seed in seeds]
        with grid.opened(cells, self.params.reward.device) as parent:
            judges = self._baselines()
            rows = self._rows(grid.run(parent, cells), judges)
            write_json(self.out / "results.json", {name: row.as_dict() for name, row in rows.items()})
            write_tables(self.out, f"Sweep {self.out.name}", tables(rows, len(self.instances)))
            for name in ("results.json", "results.md", "results.html"):
                parent.artifact(self.out / name)
            parent.metrics({f"{name}/{m}": e.mean for name, row in rows.items() for m, e in row.metrics.items()})

    def _cell(self, variant: Variant, seed: int) -> Cell:
        changes = {**variant.changes, "reward.seed": seed, "reward.source": "train"}
        reward, bounds = changed(self.params, changes).reward, self.params.consistency_rank
        key = cell_key(reward, self.data, content_of(self.base), bounds.max_instances, bounds.seed, self.code)
        settings = {"variant": variant.name, "seed": seed, "reward": reward.model_dump()}
        return Cell(variant, seed, key, settings, partial(self._train, reward), self._figures)

    def _figures(self, _folder: Path, done: dict[str, Any]) -> dict[str, float]:
        judged = bench.evaluate(self.instances, {"reward": _judgement(done)}, [], resamples=1).estimates["reward"]
        best = {f"validation_best/{name}": v for name, v in done["validation"].items() if v is not None}
        return {name: found.mean for name, found in judged.items()} | best

    def _train(self, reward: RewardParams, folder: Path, tracker: Tracker) -> dict[str, Any]:
        examples, validation = (
            read_examples(self.labels / f"{part}.parquet", self.panels.panel, reward.template, reward.answers)
            for part in ("train", "validation")
        )
        with Progress(len(examples) * reward.epochs, folder.name, "pairs", say) as progress:
            report = train(
                self.base, examples, validation, reward, folder, folder / "checkpoint", self.code,
                on_metrics=tracker.metrics, progress=progress, say=say,
            )  # fmt: skip
        return {"validation": report.metrics(), "scores": self._judge("", reward, folder / ADAPTER).scores}

    def _judge(self, label: str, reward: RewardParams, adapter: Path | None = None) -> bench.Judgement:
        scorer = Scorer.configured(self.base, reward)
        if adapter is not None:
            lora.load(scorer.network.model, adapter)
            scorer.network.features.clear()
        template, share = self.params.reward.template, self.params.serving.max_failed_share
        judged = bench.judge_pairs(label, scorer, self.instances, self.panels, template=template)
        return bench.validate_judgement(judged, share)

    def _baselines(self) -> dict[str, bench.Judgement]:
        """Judges that no variant changes: the base, CLIP-I where there is one, chance."""
        judges = {"base": self._judge("Its base, untrained", self.params.reward)}
        if self.params.consistency_rank.clip is not None:
            clip = OpenClip(self.root / self.params.consistency_rank.clip, self.params.reward.device)
            judges["clip_i"] = bench.judge_embeddings("CLIP-I", clip, self.instances, self.panels)
        judges["random"] = bench.chance("Random order", self.instances)
        return judges

    def _rows(
        self, cells: Sequence[tuple[Cell, Mapping[str, Any]]], judges: Mapping[str, bench.Judgement]
    ) -> dict[str, SweepRow]:
        """One row a variant, in the order of the cells, then one a baseline."""
        names, metrics = [*(cell.variant.name for cell, _ in cells), *judges], list(METRICS)
        judged = [*(_judgement(done) for _, done in cells), *judges.values()]
        by_run = {str(place): judgement for place, judgement in enumerate(judged)}
        table = bench.evaluate(self.instances, by_run, [], resamples=1).table()
        table["name"] = [names[int(place)] for place in table["method"]]
        means = table.groupby(["name", "instance_id"])[metrics].mean(skipna=False)
        spread: Any = table.groupby(["name", "method"])[metrics].mean().groupby("name").std().to_dict("index")
        reported = [done["validation"] for _, done in cells]
        trained = pd.DataFrame(reported, names[: len(cells)], list(VALIDATION), dtype=float)
        validation: Any = trained.groupby(level=0).mean(skipna=False).to_dict("index")
        columns = {name: {metric: means.loc[name][metric].tolist() for metric in metrics} for name in names}
        bounds, others = self.params.consistency_rank, [(name, "base") for name in columns if name != "base"]
        found, gains = bench.intervals(self.instances, columns, others, resamples=bounds.bootstrap, seed=bounds.seed)
        return {
            name: SweepRow(
                names.count(name), found[name], spread[name], gains.get(f"{name} - base"), validation.get(name, {})
            )
            for name in columns
        }


def cell_key(reward: RewardParams, data: Sequence[str], base: str, limit: int | None, seed: int, code: str) -> str:
    """Of a cell's result.

    Held: the reward's parameters but for how it is trained; by content the pairs with their answers, the held-out
    rankings, and the pictures of both (``data``), and the base; how many rankings are drawn, and from which seed; code
    of training and benchmark.
    """
    return digest([resolved_section(reward), list(data), base, limit, seed, code], 32)


def _judgement(done: Mapping[str, Any]) -> bench.Judgement:
    """The scores of a cell's result, where NaN is None."""
    return bench.Judgement("", [tuple(np.nan if s is None else float(s) for s in row) for row in done["scores"]])


def tables(rows: Mapping[str, SweepRow], instances: int) -> list[ResultTable]:
    """The rankings, and the decision on validation pairs."""
    ranking = []
    for name, row in rows.items():
        spread = number(row.seed_standard_deviation["accuracy"])
        accuracy, t1_b1 = (signed(row.gain[of]) if row.gain else "" for of in ("accuracy", "t1_b1"))
        cells = [interval(row.metrics["accuracy"]), spread, accuracy, interval(row.metrics["t1_b1"]), t1_b1]
        ranking.append([name, str(row.seeds), *cells, interval(row.metrics["tau"])])
    head = ["setting", "seeds", "accuracy", "sd over seeds", "over base", "T1-B1", "over base", "tau"]
    note = (
        f"{instances} held-out rankings. Mean over seeds with a 95% bootstrap interval over prompts; differences "
        "are paired. The interval does not include the variation between seeds: "
        "the standard deviation over seeds shows it."
    )
    decision = [[name, *map(number, row.validation.values())] for name, row in rows.items() if row.validation]
    words = [name.replace("_", " ") for name in VALIDATION]
    return [
        ResultTable("Held-out rankings", head, ranking, [note]),
        ResultTable("Validation pairs, mean over seeds", ["setting", *words], decision),
    ]
