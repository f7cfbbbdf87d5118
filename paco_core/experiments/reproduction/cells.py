"""One cell of the table: a variant trained under a seed by the stage's own code, examined, and kept."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.config.execution import how_fields
from paco_core.config.params import Params, PolicyRecipe
from paco_core.config.references import contents
from paco_core.experiments.grid import RESULT, Cell, Variant, needed, once, say
from paco_core.experiments.reproduction.exam import ABOUT, Exam, read_table
from paco_core.experiments.reproduction.variants import VARIANTS, applied
from paco_core.grpo.outcome import Reports
from paco_core.grpo.recipe import Place
from paco_core.io import paths
from paco_core.io.files import DataError, digest, folder_digest, read_json
from paco_core.io.progress import Progress
from paco_core.policies.cuts import report
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.tasks.training import train_recipe

if TYPE_CHECKING:
    from paco_core.grpo.outcome import Outcome
    from paco_core.runtime.tracking import Tracker

LAST_EPOCHS = 5  # whose mean stands for the end of a training
#: Of a finished cell: what it is; the MLflow run that trained it; what all cells of its table rest on, and the key of
#: the examination of its bare model; what the variant changed; what is reported of the training; the settings.
PARTS = ("variant", "seed", "run", "basis", "examined", "changes", "training", "settings")
Kept = dict[str, Any]  # the parts of a finished cell, its recipe and its folder


def kept_cells(out: Path) -> list[Kept]:
    """Finished cells below a folder, in the order of the variants and seeds; other folders are passed over.

    Raises:
        DataError: when a result lacks a part.
    """
    names, found = [variant.name for variant in VARIANTS], []
    for path in sorted((out / "cells").glob(f"*/{RESULT}")):
        kept = read_json(path)
        if missing := [name for name in PARTS if name not in kept]:
            raise DataError(f"{path}: has no {missing[0]!r}; remove it and run `paco reproduce` again")
        found.append({**kept, "recipe": kept["settings"]["recipe"], "folder": path.parent})
    known = [cell for cell in found if cell["variant"] in names]
    return sorted(known, key=lambda cell: (names.index(cell["variant"]), cell["seed"]))


def by(part: str, cells: Sequence[Kept]) -> dict[str, list[Kept]]:
    """The cells that agree in a part, in their order."""
    return {value: [cell for cell in cells if cell[part] == value] for value in dict.fromkeys(c[part] for c in cells)}


class Trainings:
    """Trains and examines the cells of one recipe.

    ``basis`` names by content what all its cells share: settings before a variant changes them, prompts, how the judge
    is asked while it trains, the examination (:meth:`Exam.identity`), code. Cells of different bases are never put into
    one table.
    """

    def __init__(self, root: Path, params: Params, recipe: str) -> None:
        self.root, self.params, self.recipe = root, params, recipe
        self.exam = Exam(root, params, recipe)
        task = self.exam.task
        settings = {
            "profile": params.profile,
            "world": params.world,
            "recipe": recipe,
            recipe: params.policies.recipes[recipe].model_dump(exclude={"seed", *how_fields(PolicyRecipe)}),
            "benchmark": task.benchmark,
            task.benchmark: task.numbers(params).model_dump(exclude={"bootstrap"}),
            "prompts": len(self.exam.cases.records),
        }
        examined = self.exam.identity()
        trained_on = folder_digest(needed(root, task.prompts))
        self.code = StageCodes.present(root).of(paths.POLICIES.name, recipe).digest
        self.examined = digest(examined, 32)
        self.basis = digest([settings, scored_by(params), examined, trained_on, self.code], 32)
        self.settings = {**settings, "threads": params.threads}

    def cell(self, variant: Variant, seed: int) -> Cell:
        """One cell of the grid.

        Held by its key: the basis, the variant's parameters, and what its recipe names, by content.
        """
        params = applied(variant, self.params, seed)
        recipe = params.policies.recipes[self.recipe]
        computed = recipe.model_dump(exclude=how_fields(PolicyRecipe))
        key = digest([self.basis, computed, contents(self.root, recipe)], 32)
        settings = {"variant": variant.name, "recipe": recipe.model_dump()}
        return Cell(variant, seed, key, settings, partial(self._compute, variant, params), _figures)

    def before(self, folder: Path, tracker: Tracker) -> None:
        """Examine the recipe's bare model, once for all cells."""
        once(folder, self.examined, tracker, lambda place, _: self._examine(None, place, f"{self.recipe} bare"))

    def _examine(self, adapter: Path | None, folder: Path, label: str) -> dict[str, Any]:
        with Progress(self.exam.pictures, label, "pictures", say) as progress:
            cuts = self.exam.examine(adapter, folder, progress.advance)
        return {"recipe": self.recipe, **report(cuts, say)}

    def _compute(self, variant: Variant, params: Params, folder: Path, tracker: Tracker) -> dict[str, Any]:
        """Train, going on after a kill, and examine."""
        seed = params.policies.recipes[self.recipe].seed
        label = f"{variant.name}, seed {seed}"
        outcome = self._train(params, folder, tracker, label)
        return self._examine(folder / "policy" / "adapter", folder, label) | {
            "variant": variant.name,
            "seed": seed,
            "basis": self.basis,
            "examined": self.examined,
            "changes": dict(variant.changes),
            "settings": self.settings,
            "training": _training(outcome),
        }

    def _train(self, params: Params, cell: Path, tracker: Tracker, label: str) -> Outcome:
        recipe = params.policies.recipes[self.recipe]
        samples, updates = recipe.prompts_per_epoch * recipe.group_size, recipe.updates_per_epoch

        def metrics(values: Mapping[str, float], epoch: int) -> None:
            tracker.metrics({**values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates)

        with Progress(recipe.epochs, label, "epochs", say) as progress:
            reports = Reports(
                say=say,
                metrics=metrics,
                picture=lambda image, key, epoch: tracker.image(image, key, epoch * updates),
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            )
            folder = cell / "policy"
            folder.mkdir(parents=True, exist_ok=True)
            read = partial(needed, self.root)
            place = Place(self.root, folder, folder.relative_to(self.root), cell / "checkpoint", read)
            outcome, _ = train_recipe(params, self.recipe, place, self.code, reports)
        return outcome


def scored_by(params: Params) -> list[object]:
    """How a served judge computes its scores, and is asked."""
    serving = params.serving
    return [serving.program, serving.dtype, serving.device, serving.both_orders, serving.picture_format]


def _figures(folder: Path, done: dict[str, Any]) -> dict[str, float]:
    """A cell's figures for its run."""
    known = {f"training/{name}": float(v) for name, v in done["training"].items() if isinstance(v, int | float)}
    means = read_table(folder).drop(columns=ABOUT).groupby("size").mean()
    return known | {f"{size}/{name}": float(v) for name in means for size, v in means[name].items()}


def _training(outcome: Outcome) -> dict[str, Any]:
    """What is reported of a training beside its examination.

    ``seconds``: sampling, waiting for scores and optimising, summed over epochs; evaluations are not counted.
    ``processor_seconds``: of the training process in the same time, without the reward server.
    """
    epochs = outcome.rows[1:]

    def mean(name: str) -> float:
        values = [row[name] for row in epochs[-LAST_EPOCHS:] if name in row]
        return float(np.mean(values)) if values else np.nan

    parts = ("sample", "wait_for_scores", "optimise")
    seconds = {name: outcome.seconds.get(f"seconds/{name}", 0.0) for name in parts}
    return {
        "epochs": len(epochs),
        "stopped": outcome.stopped,
        "seconds": sum(seconds.values()),
        "seconds_of": seconds,
        "processor_seconds": outcome.seconds.get("seconds/processor", 0.0),
        "reward_ratio": mean("reward_ratio"),
        "panel_diversity": mean("panel_diversity"),
        "clip_fraction": mean("update/clip_fraction"),
        "load_average": os.getloadavg()[1],
        "ended": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
