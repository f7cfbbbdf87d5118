"""One cell of the table: a variant trained under a seed by the stage's own code, examined, and kept."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.config.execution import how_fields
from paco_core.config.params import Params, PolicyRecipe
from paco_core.config.references import contents
from paco_core.experiments.grid import RESULT, Cell, OpenCell, needed
from paco_core.experiments.reproduction.exam import ABOUT, Exam, read_table
from paco_core.experiments.reproduction.variants import VARIANTS, Variant
from paco_core.grpo.outcome import Reports
from paco_core.grpo.recipe import Place
from paco_core.io import paths
from paco_core.io.files import DataError, digest, folder_digest, read_json
from paco_core.io.progress import Progress
from paco_core.policies.cuts import report
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.tasks.training import train_recipe

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.grpo.outcome import Outcome

LAST_EPOCHS = 5  # whose mean stands for the end of a training
Say = Callable[[str], None]


@dataclass(frozen=True)
class FinishedCell:
    """A finished cell as it lies on the disk."""

    variant: str
    seed: int
    run: str | None  # of MLflow, that trained it
    basis: str
    examined: str  # key of the examination of its bare model
    changes: Mapping[str, Any]
    training: Mapping[str, Any]
    settings: Mapping[str, Any]
    folder: Path

    @property
    def recipe(self) -> str:
        return str(self.settings["recipe"])

    @property
    def table(self) -> pd.DataFrame:
        return read_table(self.folder)


def kept_cells(out: Path) -> list[FinishedCell]:
    """Finished cells below a folder, in the order of the variants and seeds; other folders are passed over."""
    names = [variant.name for variant in VARIANTS]
    found, parts = [], [field.name for field in fields(FinishedCell) if field.name != "folder"]
    for path in sorted((out / "cells").glob(f"*/{RESULT}")):
        kept = read_json(path)
        try:
            found.append(FinishedCell(**{name: kept[name] for name in parts}, folder=path.parent))
        except KeyError as error:
            raise DataError(f"{path}: has no {error}; remove it and run `paco reproduce` again") from None
    return sorted((c for c in found if c.variant in names), key=lambda c: (names.index(c.variant), c.seed))


def of_recipes(cells: Sequence[FinishedCell]) -> dict[str, list[FinishedCell]]:
    """The cells of each recipe, in their order."""
    found: dict[str, list[FinishedCell]] = {}
    for cell in cells:
        found.setdefault(cell.recipe, []).append(cell)
    return found


class Trainings:
    """Trains and examines the cells of one recipe.

    ``basis`` names by content what all its cells share: settings before a variant changes them, prompts, how the judge
    is asked while it trains, the examination (:meth:`Exam.identity`), code. Cells of different bases are never put into
    one table.
    """

    def __init__(self, root: Path, params: Params, recipe: str, out: Path, say: Say) -> None:
        self.root, self.params, self.recipe, self.out, self.say = root, params, recipe, out, say
        self.exam = Exam(root, params, recipe)
        policies, numbers = params.policies, self.exam.numbers
        self.settings = {
            "profile": params.profile,
            "world": params.world,
            "recipe": recipe,
            recipe: policies.recipes[recipe].model_dump(exclude={"seed", *how_fields(PolicyRecipe)}),
            "benchmark": self.exam.task.benchmark,
            self.exam.task.benchmark: numbers.model_dump(exclude={"bootstrap"}),
            "threads": params.threads,
            "prompts": len(self.exam.cases.records),
        }
        self.examined = self.exam.identity()
        trained_on = folder_digest(needed(root, self.exam.task.prompts))
        self.code = StageCodes.present(root).of(paths.POLICIES.name, recipe).digest
        settings = {k: v for k, v in self.settings.items() if k != "threads"}
        self.basis = digest([settings, scored_by(params), self.examined, trained_on, self.code], 32)

    def key(self, variant: Variant, seed: int) -> str:
        """Of a cell's result. Held: the basis, the variant's parameters, and what its recipe names, by content."""
        recipe = variant.applied(self.params, seed).policies.recipes[self.recipe]
        return digest(
            [self.basis, recipe.model_dump(exclude=how_fields(PolicyRecipe)), contents(self.root, recipe)], 32
        )

    def cell(self, variant: Variant, seed: int) -> Cell:
        """One cell of the grid."""
        recipe = variant.applied(self.params, seed).policies.recipes[self.recipe]
        settings = {"variant": variant.name, "recipe": recipe.model_dump()}
        compute = partial(self.compute, variant, seed)
        return Cell(variant.name, seed, settings, self.key(variant, seed), compute, _note)

    def before(self, cell: OpenCell) -> None:
        """Examine the recipe's bare model, once for all cells."""

        def compute(cell: OpenCell) -> dict[str, Any]:
            with Progress(self.exam.pictures, f"{self.recipe} bare", "pictures", self.say) as progress:
                cuts = self.exam.examine(None, cell.folder, progress.advance)
            return {"recipe": self.recipe, **report(cuts, self.say)}

        cell.once(self.examined_key, compute)

    @property
    def examined_key(self) -> str:
        return digest(self.examined, 32)

    def compute(self, variant: Variant, seed: int, cell: OpenCell) -> dict[str, Any]:
        """Train, going on after a kill, and examine."""
        outcome = self._train(variant.applied(self.params, seed), cell, f"{variant.name}, seed {seed}")
        with Progress(self.exam.pictures, f"{variant.name}, seed {seed}", "pictures", self.say) as progress:
            cuts = self.exam.examine(cell.folder / "policy" / "adapter", cell.folder, progress.advance)
        return {
            **report(cuts, self.say),
            "variant": variant.name,
            "seed": seed,
            "basis": self.basis,
            "examined": self.examined_key,
            "changes": dict(variant.changes),
            "settings": self.settings,
            "training": _training(outcome),
        }

    def _train(self, params: Params, cell: OpenCell, label: str) -> Outcome:
        recipe = params.policies.recipes[self.recipe]
        samples = recipe.prompts_per_epoch * recipe.group_size

        def metrics(values: Mapping[str, float], epoch: int) -> None:
            logged = {**values, "epoch": epoch, "samples_seen": epoch * samples}
            cell.tracker.metrics(logged, epoch * recipe.updates_per_epoch)

        with Progress(recipe.epochs, label, "epochs", self.say) as progress:
            reports = Reports(
                say=self.say,
                metrics=metrics,
                picture=lambda image, key, epoch: cell.tracker.image(image, key, epoch * recipe.updates_per_epoch),
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            )
            folder = cell.folder / "policy"
            folder.mkdir(parents=True, exist_ok=True)
            place = Place(
                self.root,
                folder,
                folder.relative_to(self.root),
                cell.folder / "checkpoint",
                lambda path: needed(self.root, path),
            )
            outcome, _ = train_recipe(params, self.recipe, place, self.code, reports)
        return outcome


def scored_by(params: Params) -> list[object]:
    """How a served judge computes its scores, and is asked."""
    serving = params.serving
    return [serving.program, serving.dtype, serving.device, serving.both_orders, serving.picture_format]


def _note(cell: OpenCell, done: dict[str, Any]) -> None:
    """Log a cell's figures to its run."""
    cell.tracker.tags({"paco.trained_by": str(done["run"])})
    known = {name: v for name, v in done["training"].items() if isinstance(v, int | float)}
    cell.tracker.metrics({f"training/{name}": float(value) for name, value in known.items()})
    means = read_table(cell.folder).drop(columns=ABOUT).groupby("size").mean()
    cell.tracker.metrics({f"{size}/{name}": float(v) for name in means for size, v in means[name].items()})


def _training(outcome: Outcome) -> dict[str, Any]:
    """What is reported of a training beside its examination.

    ``seconds``: sampling, waiting for scores and optimising, summed over epochs; evaluations are not counted.
    ``processor_seconds``: of the training process in the same time, without the reward server.
    """
    epochs = outcome.rows[1:]
    last = epochs[-LAST_EPOCHS:]

    def mean(name: str) -> float:
        values = [row[name] for row in last if name in row]
        return float(np.mean(values)) if values else float("nan")

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
