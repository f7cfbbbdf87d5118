"""The cells of one recipe: a variant trained under a seed by the stage's own code, then examined.

Every trained policy sits the examination that the bare model sat: the same unseen cases, noise, sizes and measures.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paco_core.benchmarks import gedit
from paco_core.benchmarks.unseen import measuring, unseen_cases
from paco_core.config.params import Params
from paco_core.config.references import contents, model_content
from paco_core.config.resolved import resolved_section
from paco_core.data.records.edit_records import EditRecord
from paco_core.experiments.grid import RESULT, Cell, Variant, kept_result, needed, once, say
from paco_core.experiments.reproduction.variants import applied
from paco_core.grpo.trainer import Reports, RunContext
from paco_core.io import files, paths
from paco_core.io.atomic import atomic
from paco_core.io.content import folder_content
from paco_core.io.file_locks import locked
from paco_core.io.files import digest, folder_digest, write_json
from paco_core.io.pictures import in_a_row, reference_digests
from paco_core.io.progress import Progress
from paco_core.painting.painted import AFTER, BEFORE, cuts_of
from paco_core.policies.base import load_recipe
from paco_core.policies.cuts import report
from paco_core.policies.encodings import cache_folder
from paco_core.runtime.code.stage_code import StageCodes
from paco_core.tasks.table import task_of
from paco_core.tasks.training import train_recipe

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.grpo.trainer import Outcome
    from paco_core.painting.painted import Painted
    from paco_core.runtime.tracking import Tracker

LAST_EPOCHS = 5  # whose mean stands for the end of a training
TABLE, PICTURES = "table.parquet", "pictures"
CAPTIONS, REFERENCE = "captions.json", "reference"  # among the pictures; references of edits alone
SHOWN = 4  # prompts whose pictures are kept for the page


def before_folder(out: Path, recipe: object) -> Path:
    """Where the examination of a recipe's bare model lies."""
    return out / "before" / str(recipe)


class Trainings:
    """Trains and examines the cells of one recipe.

    The examination: pictures of prompts that no seed can have trained on, measured as ``t2is`` or ``gedit`` measures.
    ``basis`` names by content what all cells and the examination of the bare model share: settings before a variant
    changes them, prompts, how the judge is asked while it trains, :meth:`examination`, code.

    Raises:
        DataError: when the reward, the prompts or a model is missing, naming the stage to run; when no prompt
            is left over.
    """

    def __init__(self, root: Path, params: Params, recipe: str) -> None:
        self.root, self.params, self.recipe = root, params, recipe
        self.rule = params.policies.recipes[recipe]
        self.task = task_of(self.rule)
        self.judge = needed(root, paths.REWARD_MERGED)
        read = partial(needed, root)
        self.cases = unseen_cases(read, params, recipe, self.task.seen(self.rule, read))
        settings = {
            "profile": params.profile,
            "world": params.world,
            "recipe": recipe,
            recipe: {name: value for name, value in resolved_section(self.rule).items() if name != "seed"},
            "benchmark": self.task.benchmark,
            self.task.benchmark: self.task.numbers(params).model_dump(exclude={"bootstrap"}),
            "prompts": len(self.cases.records),
        }
        trained_on = folder_digest(needed(root, self.task.prompts))
        self.code = StageCodes.present(root).of(paths.POLICIES.name, recipe).digest
        self.basis = digest([settings, scored_by(params), self.examination(), trained_on, self.code], 32)
        self.settings = {**settings, "threads": params.threads}

    def examination(self) -> dict[str, Any]:
        """What the figures depend on beside the trained weights.

        Held: records whole, and the pixels of what is edited; seeds, steps, sizes, guidance and length of texts; number
        format and device of painter and judge; code of the benchmark; by content the judge, all models and files that
        the recipe names, and the annotator.
        """
        rule, reward = self.rule, self.params.reward
        sizes = [rule.eval_sizes, rule.reference_size, rule.record_size]
        records, reference = self.cases.records, self.cases.reference
        return {
            "prompts": [record.model_dump() for record in records],
            "references": [] if reference is None else reference_digests([reference(record) for record in records]),
            "painting": [self.cases.seeds, self.cases.steps, *sizes, rule.guidance, rule.max_sequence_length],
            "painter": [rule.dtype, rule.device],
            "measuring": [self.params.world, reward.device, reward.dtype, reward.min_pixels, reward.max_pixels],
            "code": StageCodes.present(self.root).of(self.task.benchmark, None).digest,
            "judge": folder_content(self.judge),
            "named": contents(self.root, rule),
            "annotator": model_content(self.root, str(self.params.annotations.model)),
        }

    def cell(self, variant: Variant, seed: int) -> Cell:
        """One cell of the grid.

        Held by its key: the basis, the variant's parameters, and what its recipe names, by content.
        """
        params = applied(variant, self.params, seed)
        recipe = params.policies.recipes[self.recipe]
        computed = resolved_section(recipe)
        key = digest([self.basis, computed, contents(self.root, recipe)], 32)
        settings = {"variant": variant.name, "recipe": recipe.model_dump()}
        return Cell(variant, seed, key, settings, partial(self._compute, variant, params), _figures)

    def is_examined(self, out: Path) -> bool:
        """Whether :meth:`before` has nothing left to do."""
        return kept_result(before_folder(out, self.recipe), self.basis) is not None

    def before(self, out: Path, tracker: Tracker) -> None:
        """Examine the recipe's bare model, once for all cells below ``out``."""
        folder = before_folder(out, self.recipe)
        with locked(folder.with_name(f".{self.recipe}.lock")):
            once(folder, self.basis, tracker, lambda place, _: self._examine(None, place))

    def _compute(self, variant: Variant, params: Params, folder: Path, tracker: Tracker) -> dict[str, Any]:
        """Train, going on after a kill, and examine."""
        outcome = self._train(params, folder, tracker)
        return self._examine(folder / "policy" / "adapter", folder) | {
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
        with Progress(recipe.epochs, cell.name, "epochs", say) as progress:
            reports = Reports(
                say=say,
                metrics=lambda values, epoch: tracker.metrics(
                    {**values, "epoch": epoch, "samples_seen": epoch * samples}, epoch * updates
                ),
                picture=lambda image, key, epoch: tracker.image(image, key, epoch * updates),
                epoch=lambda done, note: progress.advance(done - progress.done, note),
            )
            context = RunContext(
                root=self.root,
                out=folder,
                final=folder.relative_to(self.root),
                checkpoints=cell / "checkpoint",
                read=partial(needed, self.root),
                code=self.code,
                reports=reports,
            )
            return train_recipe(params, self.recipe, context)[0]

    def _examine(self, adapter: Path | None, folder: Path) -> dict[str, Any]:
        """Paint with the bare model (None) or an adapter; write ``table.parquet`` and some pictures to ``folder``.

        Models are loaded anew each time: trainings in between need the memory.

        Returns:
            The recipe's name, and what was cut off prompts.
        """
        policy = load_recipe(self.rule, self.root, cache=cache_folder(self.root))
        if adapter is not None:
            policy.load_adapter(adapter)
        when = BEFORE if adapter is None else AFTER
        pictures = len(self.cases.records) * len(self.cases.seeds) * len(self.rule.eval_sizes)
        with Progress(pictures, folder.name, "pictures", say) as progress:
            painted = self.cases.painted_by(policy, self.recipe, self.rule, when=when, advance=progress.advance)
        table = measuring(self.root, self.params, self.judge, self.cases)(painted)
        # Edits of one picture stand or fall together; a set stands alone.
        table = table.assign(group=table[self.task.group])
        (folder / RESULT).unlink(missing_ok=True)  # of other settings: it must not stand beside this table
        with atomic(folder / PICTURES, replace=True) as part:
            self._keep(painted, part)
        with atomic(folder / TABLE) as part:
            table.drop(columns=["policy", "when", *gedit.ABOUT], errors="ignore").to_parquet(part, index=False)
        return {"recipe": self.recipe, **report(cuts_of(painted), say)}

    def _keep(self, painted: list[Painted], folder: Path) -> None:
        """Pictures of the first prompts with the first seed, by size; what they are of; of edits, what was edited."""
        shown = {record.idx: record for record in self.cases.records[:SHOWN]}
        for p in painted:
            if p.record.idx in shown and p.seed == self.cases.seeds[0]:
                (folder / str(p.size)).mkdir(parents=True, exist_ok=True)
                p.image.save(folder / str(p.size) / f"{p.record.idx}.png")
        captions = {idx: of.prompt if isinstance(of, EditRecord) else of.theme for idx, of in shown.items()}
        write_json(folder / CAPTIONS, captions)
        if self.cases.reference is not None:
            (folder / REFERENCE).mkdir()
            for idx, record in shown.items():
                in_a_row(self.cases.reference(record)).save(folder / REFERENCE / f"{idx}.png")


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


def measured(folder: Path) -> pd.DataFrame:
    """What an examination left in a folder: a column a measure, a row a picture, by ``size`` and ``group``.

    Raises:
        DataError: when it is missing or damaged.
    """
    again = f"remove {folder / RESULT} and run `paco reproduce` again"
    table = files.read_table(folder / TABLE, remedy=again)
    return table.drop(columns=["prompt_id", "seed"]).set_index(["size", "group"])
