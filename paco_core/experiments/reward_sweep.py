"""The reward's training under several settings and seeds, each judged on the held-out rankings.

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

from paco_core.benchmarks import consistency_rank as bench
from paco_core.benchmarks.ranking_metrics import METRICS
from paco_core.benchmarks.statistics import Comparison, Estimate, compare, estimate
from paco_core.benchmarks.tables import ResultTable, difference, interval, number, write_tables
from paco_core.config.changes import changed
from paco_core.config.execution import how_fields
from paco_core.config.params import Params, RewardParams
from paco_core.config.references import model_at
from paco_core.data.records.panels import PanelStore
from paco_core.experiments.grid import Cell, Grid, OpenCell, Say, needed
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.content import content_of, folder_content
from paco_core.io.files import DataError, digest, write_json
from paco_core.io.open_clip_model import OpenClip
from paco_core.io.progress import Progress
from paco_core.reward_model import lora
from paco_core.reward_model.examples import read_examples
from paco_core.reward_model.network import Network
from paco_core.reward_model.scorer import Scorer
from paco_core.reward_model.training import ADAPTER, train
from paco_core.reward_model.yes_probability import PairScorer
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.runtime.placement import one_gpu
from paco_core.runtime.tracking import Tracker

ALPHAS = ("1/n", "0.01", "0.1", "0.3", "0.5", "0.9", "fast")
EXPERIMENT = "paco/sweep"
ABOUT = "The reward trained with several values of alpha and several seeds; a parent run holds the comparison."
VALIDATION = ("accuracy", "roc_auc", "calibration_error", "position_bias", "identical_score")


#: Settings that have a name instead of an alpha -> what they change.
NAMED: dict[str, dict[str, Any]] = {
    "default": {},
    "1/n": {"reward.loss": "plain", "reward.answers": "reasons"},
    "fast": {"reward.loss": "plain", "reward.answers": "decision"},
}


@dataclass(frozen=True)
class SweepSetting:
    """A name, and dotted keys of ``params.yaml`` with the values that it changes them to."""

    name: str
    changes: Mapping[str, Any]

    def applied(self, params: Params, seed: int) -> Params:
        """The parameters of a training.

        Raises:
            ParamsError: when a changed value does not fit the others.
        """
        return changed(params, {**self.changes, "reward.seed": seed, "reward.source": "train"})


def setting(name: str) -> SweepSetting:
    """What a point of the sweep means.

    ``1/n``: every token of an answer counts alike; a number: the share alpha of the decision token; ``fast``:
    answers are "Yes." and "No." alone (PaCo-Reward-Fast); ``default``: ``params.yaml`` as it is.

    Raises:
        DataError: for anything else.
    """
    if name in NAMED:
        return SweepSetting(name, NAMED[name])
    try:
        alpha = float(name)
    except ValueError:
        alpha = -1.0
    if not 0.0 <= alpha <= 1.0:
        raise DataError(f"alpha {name!r}: give a number from 0 to 1, 1/n, fast or default")
    return SweepSetting(name, {"reward.loss": "weighted", "reward.answers": "reasons", "reward.alpha": alpha})


@dataclass(frozen=True)
class SweepRow:
    """One line of the result: a setting over its seeds, or a judge that is not trained."""

    name: str
    seeds: int
    metrics: Mapping[str, Estimate]  # over prompts, of the mean over seeds
    spread: Mapping[str, float]  # standard deviation over seeds; NaN for one
    gain: Mapping[str, Comparison] | None  # over the base; None for the base itself
    validation: Mapping[str, float]  # means over seeds

    def as_dict(self) -> dict[str, Any]:
        return {
            "seeds": self.seeds,
            "metrics": {name: found.as_dict() for name, found in self.metrics.items()},
            "seed_standard_deviation": dict(self.spread),
            "gain": None if self.gain is None else {name: found.as_dict() for name, found in self.gain.items()},
            "validation": dict(self.validation),
        }


class Sweep:
    """A sweep below one folder: what all its cells share."""

    def __init__(self, root: Path, params: Params, out: Path, say: Say) -> None:
        self.root, self.params, self.out, self.say = root, params, out, say
        self.base = model_at(root, params.reward.base, "reward.base")
        codes = StageCodes.present(root)
        self.code = digest(
            [codes.of(stage, None).digest for stage in (paths.REWARD_LORA.name, paths.CONSISTENCY_RANK.name)]
        )
        bounds = params.consistency_rank
        self.table = needed(root, paths.PAIRS / "benchmark.parquet")
        self.labels = needed(root, paths.COT_LABELS)
        self.data = [folder_content(needed(root, folder)) for folder in (paths.PAIRS, paths.COT_LABELS, paths.GRIDS)]
        self.instances = bench.read_instances(self.table, bounds.max_instances, bounds.seed)
        self.panels = PanelStore.below(needed(root, paths.GRIDS), root / paths.PAIRS)

    def run(self, settings: Sequence[SweepSetting], seeds: Sequence[int]) -> list[SweepRow]:
        """Train and judge every cell that is not done yet; write the tables; log to MLflow.

        Cells that another command is training are left out of the tables.
        """
        tags = {"profile": self.params.profile, "paco.sweep": self.out.name}
        grid = Grid(self.root, self.out, EXPERIMENT, ABOUT, tags, self.say)
        cells = [self._cell(setting, seed) for setting in settings for seed in seeds]
        named = {"settings": [s.name for s in settings], "seeds": list(seeds)}
        gpu = one_gpu([self.params.reward.device], f"sweep in {self.root}", self.params, self.say)
        with grid.parent(named) as parent, gpu:
            judges = self._baselines()
            rows = self._rows(grid.run(parent, cells), judges)
            self._write(rows, parent)
        return rows

    def _cell(self, setting: SweepSetting, seed: int) -> Cell:
        reward = setting.applied(self.params, seed).reward
        settings = {"setting": setting.name, "seed": seed, "reward": reward.model_dump()}
        return Cell(setting.name, seed, settings, self._key(reward), partial(self._train, reward), self._note)

    def _note(self, cell: OpenCell, done: dict[str, Any]) -> None:
        judged = {"reward": bench.Judgement("", _scores(done))}
        figures = bench.evaluate(self.instances, judged, [], resamples=1)
        cell.tracker.metrics({name: value.mean for name, value in figures.estimates["reward"].items()})
        known = {name: value for name, value in done["validation"].items() if value is not None}
        cell.tracker.metrics({f"validation_best/{name}": float(value) for name, value in known.items()})

    def _train(self, reward: RewardParams, cell: OpenCell) -> dict[str, Any]:
        examples, validation = (
            read_examples(self.labels / f"{part}.parquet", self.panels.panel, reward.template, reward.answers)
            for part in ("train", "validation")
        )
        folder = cell.folder
        with Progress(len(examples) * reward.epochs, folder.name, "pairs", self.say) as progress:
            report = train(
                self.base, examples, validation, reward, folder, folder / "checkpoint", self.code,
                on_metrics=cell.tracker.metrics, progress=progress, say=self.say,
            )  # fmt: skip
        network = Network.load(self.base, **_loading(reward))
        lora.load(network.model, folder / ADAPTER)
        network.features.clear()
        judged = self._judge("", Scorer.from_network(network))
        return {"validation": report.metrics(), "scores": judged.scores}

    def _judge(self, label: str, scorer: PairScorer) -> bench.Judgement:
        return bench.judge_pairs(label, scorer, self.instances, self.panels, template=self.params.reward.template)

    def _baselines(self) -> dict[str, bench.Judgement]:
        """Judges that no setting changes: the base, CLIP-I where there is one, chance."""
        network = Network.load(self.base, **_loading(self.params.reward))
        judges = {"base": self._judge("Its base, untrained", Scorer.from_network(network))}
        if self.params.consistency_rank.clip is not None:
            clip = OpenClip(self.root / self.params.consistency_rank.clip, self.params.reward.device)
            judges["clip_i"] = bench.judge_embeddings("CLIP-I", clip, self.instances, self.panels)
        judges["random"] = bench.chance("Random order", self.instances)
        return judges

    def _rows(
        self, cells: Sequence[tuple[Cell, dict[str, Any]]], judges: Mapping[str, bench.Judgement]
    ) -> list[SweepRow]:
        """One row a setting, in the order of the cells, then one a baseline."""
        base = self._columns([judges["base"].scores])
        by_setting: dict[str, list[dict[str, Any]]] = {}
        for cell, done in cells:
            by_setting.setdefault(cell.name, []).append(done)
        rows = []
        for name, found in by_setting.items():
            seeds = np.array([[done["validation"].get(key) for key in VALIDATION] for done in found], dtype=float)
            validation = dict(zip(VALIDATION, seeds.mean(axis=0).tolist(), strict=True))
            rows.append(self._row(name, [_scores(done) for done in found], base, validation))
        return rows + [
            self._row(name, [judge.scores], None if name == "base" else base, {}) for name, judge in judges.items()
        ]

    def _columns(self, runs: Sequence[list[tuple[float, ...]]]) -> dict[str, np.ndarray]:
        """Metric -> (runs, instances)."""
        named = {str(number): bench.Judgement("", scores) for number, scores in enumerate(runs)}
        rows = bench.evaluate(self.instances, named, [], resamples=1).per_instance
        return {m: np.array([[getattr(row, m) for row in rows[name]] for name in named]) for m in METRICS}

    def _row(
        self,
        name: str,
        runs: Sequence[list[tuple[float, ...]]],
        base: Mapping[str, np.ndarray] | None,
        validation: Mapping[str, float],
    ) -> SweepRow:
        bounds, columns = self.params.consistency_rank, self._columns(runs)
        groups = [instance.prompt_id for instance in self.instances]
        draws: dict[str, Any] = {"groups": groups, "resamples": bounds.bootstrap, "seed": bounds.seed}
        means = {metric: values.mean(axis=0) for metric, values in columns.items()}
        spread = {m: float(np.nanmean(v, axis=1).std(ddof=1)) if len(v) > 1 else np.nan for m, v in columns.items()}
        gain = None if base is None else {m: compare(means[m], base[m].mean(axis=0), **draws) for m in METRICS}
        metrics = {m: estimate(values, **draws) for m, values in means.items()}
        return SweepRow(name, len(runs), metrics, spread, gain, validation)

    def _write(self, rows: Sequence[SweepRow], parent: Tracker) -> None:
        write_json(self.out / "results.json", plain({row.name: row.as_dict() for row in rows}))
        write_tables(self.out, f"Sweep {self.out.name}", tables(rows, len(self.instances)))
        for name in ("results.json", "results.md", "results.html"):
            parent.artifact(self.out / name)
        parent.metrics({f"{row.name}/{m}": found.mean for row in rows for m, found in row.metrics.items()})

    def _key(self, reward: RewardParams) -> str:
        bounds = self.params.consistency_rank
        return cell_key(reward, self.data, content_of(self.base), bounds.max_instances, bounds.seed, self.code)


def cell_key(reward: RewardParams, data: Sequence[str], base: str, limit: int | None, seed: int, code: str) -> str:
    """Of a cell's result.

    Held: the reward's parameters but for how it is trained; by content the pairs with their answers, the held-out
    rankings, and the pictures of both (``data``), and the base; how many rankings are drawn, and from which seed; code
    of training and benchmark.
    """
    return digest([reward.model_dump(exclude=how_fields(RewardParams)), list(data), base, limit, seed, code], 32)


def _scores(done: Mapping[str, Any]) -> list[tuple[float, ...]]:
    """Of each held-out instance, from a cell's result, where NaN is None."""
    return [tuple(np.nan if score is None else float(score) for score in row) for row in done["scores"]]


def tables(rows: Sequence[SweepRow], instances: int) -> list[ResultTable]:
    """The rankings, and the decision on validation pairs."""
    ranking = [
        [
            row.name, str(row.seeds), interval(row.metrics["accuracy"]), number(row.spread["accuracy"]),
            "" if row.gain is None else difference(row.gain["accuracy"]), interval(row.metrics["t1_b1"]),
            "" if row.gain is None else difference(row.gain["t1_b1"]), interval(row.metrics["tau"]),
        ]
        for row in rows
    ]  # fmt: skip
    head = ["setting", "seeds", "accuracy", "sd over seeds", "over base", "T1-B1", "over base", "tau"]
    note = (
        f"{instances} held-out rankings. Mean over seeds with a 95% bootstrap interval over prompts; differences "
        "are paired, p by sign flips over prompts. The interval does not include the variation between seeds: "
        "the standard deviation over seeds shows it."
    )
    decision = [[row.name, *(number(row.validation[key]) for key in VALIDATION)] for row in rows if row.validation]
    words = [name.replace("_", " ") for name in VALIDATION]
    return [
        ResultTable("Held-out rankings", head, ranking, [note]),
        ResultTable("Validation pairs, mean over seeds", ["setting", *words], decision),
    ]


def _loading(reward: RewardParams) -> dict[str, Any]:
    return {"device": reward.device, "dtype": reward.dtype, "pixels": (reward.min_pixels, reward.max_pixels)}
