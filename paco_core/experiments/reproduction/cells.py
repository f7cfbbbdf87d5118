"""One cell of the table: a variant trained under a seed by the stage's own code, examined, and kept."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.config.execution import how_fields
from paco_core.config.params import Params, PolicyRecipe
from paco_core.config.references import contents
from paco_core.experiments.grid import RESULT, Cell, Variant, kept_result, needed, once, say
from paco_core.experiments.reproduction.exam import Exam, measured
from paco_core.experiments.reproduction.variants import VARIANTS, applied
from paco_core.grpo.outcome import Reports
from paco_core.grpo.recipe import Place
from paco_core.io import paths
from paco_core.io.answer import plain
from paco_core.io.file_locks import locked
from paco_core.io.files import DataError, digest, folder_digest, read_json
from paco_core.io.progress import Progress
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.tasks.training import train_recipe

if TYPE_CHECKING:
    from paco_core.grpo.outcome import Outcome
    from paco_core.runtime.tracking import Tracker

LAST_EPOCHS = 5  # whose mean stands for the end of a training
PARTS = ("variant", "seed", "run", "basis", "changes", "training", "settings")  # of the result of a finished cell


@dataclass(frozen=True, eq=False)
class KeptCell:
    """A finished cell.

    Attributes:
        result: its parts; of these ``run`` is the MLflow run that trained it, ``training`` what is reported of that.
        fits: whether it rests on the basis on which its recipe's bare model was examined last, and its variant changes
            the same keys now. Only cells that fit stand in one table.
    """

    variant: Variant
    seed: int
    folder: Path
    result: Mapping[str, Any]
    fits: bool


def before_folder(out: Path, recipe: object) -> Path:
    """Where the examination of a recipe's bare model lies."""
    return out / "before" / str(recipe)


def kept_cells(out: Path) -> list[KeptCell]:
    """Finished cells below a folder, in the order of the variants and seeds; other folders are passed over.

    Raises:
        DataError: when a result lacks a part.
    """
    found, variants = [], {variant.name: variant for variant in VARIANTS}
    for path in (out / "cells").glob(f"*/{RESULT}"):
        kept = read_json(path)
        if missing := [name for name in PARTS if name not in kept]:
            raise DataError(f"{path}: has no {missing[0]!r}; remove it and run `paco reproduce` again")
        if variant := variants.get(kept["variant"]):
            bare = kept_result(before_folder(out, variant.recipe), kept["basis"])
            fits = bare is not None and kept["changes"] == plain(variant.changes)
            found.append(KeptCell(variant, kept["seed"], path.parent, kept, fits))
    return sorted(found, key=lambda cell: (VARIANTS.index(cell.variant), cell.seed))


class Trainings:
    """Trains and examines the cells of one recipe.

    ``basis`` names by content what all its cells and the examination of its bare model share: settings before a variant
    changes them, prompts, how the judge is asked while it trains, the examination (:meth:`Exam.identity`), code.
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
        trained_on = folder_digest(needed(root, task.prompts))
        self.code = StageCodes.present(root).of(paths.POLICIES.name, recipe).digest
        self.basis = digest([settings, scored_by(params), self.exam.identity(), trained_on, self.code], 32)
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

    def before(self, out: Path, tracker: Tracker) -> None:
        """Examine the recipe's bare model, once for all cells below ``out``."""
        folder = before_folder(out, self.recipe)
        with locked(folder.with_name(f".{self.recipe}.lock")):
            once(folder, self.basis, tracker, lambda place, _: self.exam.examine(None, place))

    def _compute(self, variant: Variant, params: Params, folder: Path, tracker: Tracker) -> dict[str, Any]:
        """Train, going on after a kill, and examine."""
        outcome = self._train(params, folder, tracker)
        return self.exam.examine(folder / "policy" / "adapter", folder) | {
            "variant": variant.name,
            "seed": params.policies.recipes[self.recipe].seed,
            "basis": self.basis,
            "changes": dict(variant.changes),
            "settings": self.settings,
            "training": _training(outcome),
        }

    def _train(self, params: Params, cell: Path, tracker: Tracker) -> Outcome:
        recipe = params.policies.recipes[self.recipe]
        samples, updates = recipe.pictures_an_epoch, recipe.updates_per_epoch
        folder = cell / "policy"
        folder.mkdir(parents=True, exist_ok=True)
        place = Place(self.root, folder, folder.relative_to(self.root), cell / "checkpoint", partial(needed, self.root))
        with Progress(recipe.epochs, cell.name, "epochs", say) as progress:
            reports = Reports(
                say=say,
                metrics=lambda values, epoch: tracker.metrics(
                    {**values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates
                ),
                picture=lambda image, key, epoch: tracker.image(image, key, epoch * updates),
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            )
            return train_recipe(params, self.recipe, place, self.code, reports)[0]


def scored_by(params: Params) -> list[object]:
    """How a served judge computes its scores, and is asked."""
    serving = params.serving
    return [serving.program, serving.dtype, serving.device, serving.both_orders, serving.picture_format]


def _figures(folder: Path, done: Mapping[str, Any]) -> dict[str, float]:
    """A cell's figures for its run."""
    known = {f"training/{name}": float(v) for name, v in done["training"].items() if isinstance(v, int | float)}
    means = measured(folder).groupby("size").mean()
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

    seconds = {part: outcome.seconds.get(f"seconds/{part}", 0.0) for part in ("sample", "wait_for_scores", "optimise")}
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
