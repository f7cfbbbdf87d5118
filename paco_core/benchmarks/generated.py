"""Generated images of the benchmarks t2is and gedit: unseen prompts, images before and after training, measures.

The measures are functions here and not methods of a task, because trainings import the tasks: a changed measure must
not train the policies again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from paco_core.benchmarks.edit_changes import EDIT_MEASURES
from paco_core.benchmarks.unseen_prompts import only_test_file, unseen_prompts
from paco_core.config.measures import COPIES, PANEL_DIVERSITY
from paco_core.data.image_measures import panel_diversity
from paco_core.data.records.edit_records import EditRecord, connected_groups, of_part, read_edit_prompts
from paco_core.data.records.prompt_content import untrained
from paco_core.grpo.image_alarm import copied_share
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.policies.base import load_recipe_policy
from paco_core.policies.encodings import cache_folder
from paco_core.reward_model.scorer import Scorer
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch, validate_failed_share
from paco_core.rewards.characters import Characters
from paco_core.rewards.consistency import ConsistencyMeasure
from paco_core.rewards.editing import QUESTIONS, Editing
from paco_core.rewards.registry import reward_kind
from paco_core.rewards.sources import Sources
from paco_core.sampling.generated_image import GeneratedImage
from paco_core.sampling.generation import generate_before_and_after, generate_sizes
from paco_core.sampling.separate_panels import generate_separate_panels
from paco_core.tasks.edits import EDITS
from paco_core.tasks.sets import SETS, read_sets
from paco_core.tasks.table import recipes_of, task_of

if TYPE_CHECKING:
    from paco_core.config.params import Params, PolicyRecipe
    from paco_core.data.records.records import PromptRecord
    from paco_core.grpo.scoring import Reference
    from paco_core.policies.base import Policy
    from paco_core.rewards.base import RewardFunction
    from paco_core.tasks.base import GoldMeasure, Read, Task


@dataclass(frozen=True)
class Cases:
    """Prompts of a task, each with every seed and ``steps`` sampling steps; ``reference`` loads the images to edit.

    ``separately``: sets are also generated one panel at a time, by the policy before training.
    """

    task: Task
    records: Sequence[PromptRecord]
    seeds: Sequence[int]
    steps: int
    reference: Reference | None = None
    separately: bool = False

    def generate(
        self,
        policy: Policy,
        name: str,
        recipe: PolicyRecipe,
        *,
        when: str,
        advance: Callable[[int], object] = lambda _count: None,
    ) -> list[GeneratedImage]:
        """Every case at every evaluation size of the recipe, by the policy as it is."""
        return generate_sizes(
            policy,
            name,
            recipe,
            self.records,
            when=when,
            seeds=self.seeds,
            steps=self.steps,
            reference=self.reference,
            advance=advance,
        )

    def count_images(self, recipes: Mapping[str, PolicyRecipe]) -> int:
        """How many images :meth:`generate_before_and_after` makes."""
        sizes = sum(len(recipe.eval_sizes) for recipe in recipes.values())
        panels = sum(rows * columns for rows, columns in (r.grid for r in self.records)) if self.separately else 0
        return (2 * len(self.records) + panels) * len(self.seeds) * sizes

    def generate_before_and_after(
        self,
        recipes: Mapping[str, PolicyRecipe],
        adapters: Mapping[str, Path],
        root: Path,
        advance: Callable[[int], object],
    ) -> list[GeneratedImage]:
        """Every case at every evaluation size, by each recipe's base and with its adapter, from equal noise.

        Raises:
            DataError: when an adapter is missing.
        """
        images: list[GeneratedImage] = []
        for name, recipe in recipes.items():
            policy = load_recipe_policy(recipe, root, cache=cache_folder(root))
            if self.separately:
                images += generate_separate_panels(
                    policy, name, recipe, self.records, seeds=self.seeds, steps=self.steps, advance=advance
                )
            images += generate_before_and_after(
                policy,
                name,
                recipe,
                adapters[name],
                self.records,
                seeds=self.seeds,
                steps=self.steps,
                reference=self.reference,
                advance=advance,
            )
        return images


def unseen_cases(read: Read, params: Params, recipe: str, trained: Collection[str]) -> Cases:
    """Cases of a recipe's benchmark that share no content with a training prompt; equal for equal parameters.

    Args:
        trained: as :func:`paco_core.grpo.prompt_split.trained_prompts` returns it.

    Raises:
        DataError: when none is left, or the graph has not made the prompts yet.
    """
    unseen = unseen_edits if task_of(params.policies.recipes[recipe]) is EDITS else unseen_sets
    return unseen(read, params, trained)


def unseen_sets(read: Read, params: Params, trained: Collection[str]) -> Cases:
    """Prompts of sets that share no content with ``trained``; if recipes name files, prompts of the file to test on.

    Raises:
        DataError: when none is left, or recipes name different files.
    """
    bench, file = params.t2is, only_test_file(params)
    records = read_sets(read(paths.PROMPTS) / "prompts.jsonl" if file is None else read(Path(file)))
    unseen = unseen_prompts(records, trained, bench.prompts, bench.seed)
    return Cases(SETS, unseen, bench.seeds, bench.steps, separately=bench.separately)


def unseen_edits(read: Read, params: Params, trained: Collection[str]) -> Cases:
    """Editing prompts that were held back from training, of no reference image in ``trained``.

    Raises:
        DataError: when none is left.
    """
    bench = params.gedit
    records, reference = read_edit_prompts(read(paths.EDIT_PROMPTS))
    records = sorted(of_part(untrained(records, trained), "unseen"), key=lambda record: record.idx)
    if not records or not bench.prompts:
        raise DataError("every editing prompt was trained on, none is left to test; raise edit_prompts.unseen")
    chosen = random.Random(bench.seed).sample(records, min(bench.prompts, len(records)))
    return Cases(EDITS, chosen, bench.seeds, bench.steps, reference)


def measure_images(
    images: Sequence[GeneratedImage], cases: Cases, root: Path, params: Params, reward_model: Path
) -> pd.DataFrame:
    """Measure images of the cases by a reward model, and by the embedded world's truth if the world has one.

    Args:
        reward_model: folder of a merged reward model, which scores in this process.

    Returns:
        One row per image: policy, size, when, prompt_id, seed, of edits also picture, task_type and language, and a
        column per measure (NaN = failed).

    Raises:
        DataError: when more than ``execution.serving.max_failed_share`` of the images have no score.
    """
    gold = cases.task.truth(params, root / str(params.annotations.model))
    if cases.reference is None:
        functions = set_measures(root, params, reward_model)
        table, names = measure_sets(images, functions, gold), [function.name for function in functions]
        causes = {
            f"{function.name}: {cause}": count for function in functions for cause, count in function.causes.items()
        }
    else:
        editing = Editing(Scorer.configured(reward_model, params.reward))
        table, names = measure_edits(images, cases.reference, editing, gold), ["editing", *QUESTIONS]
        causes = dict(editing.causes)
    validate_measures(table, names, params.serving.max_failed_share, causes)
    return table


class PanelDiversity:
    """How different the panels of a set are: 0 = one image four times, the sign of a collapsed policy.

    NaN for a set of one panel.
    """

    name = PANEL_DIVERSITY

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        values = [panel_diversity(panels) if len(panels) > 1 else np.nan for panels in batch.panels]
        return np.array(values, dtype=np.float64)


def set_measures(root: Path, params: Params, reward_model: Path) -> list[RewardFunction]:
    """Consistency, panel diversity, and of the rewards `characters` and `clip_t` those that a recipe has."""
    terms = [recipe.rewards.terms for recipe in recipes_of(SETS, params.policies).values()]
    scorer = Scorer.configured(reward_model, params.reward)
    measures: list[RewardFunction] = [ConsistencyMeasure(scorer), PanelDiversity()]
    if any(reward_kind(name, term) == Characters.name for recipe in terms for name, term in recipe.items()):
        measures.append(Characters(scorer))
    clip = next((recipe["clip_t"] for recipe in terms if "clip_t" in recipe), None)
    return [*measures, registry.build_reward("clip_t", clip, Sources(root=root))] if clip else measures


def measure_sets(
    images: Sequence[GeneratedImage], measures: Sequence[RewardFunction], gold: GoldMeasure | None = None
) -> pd.DataFrame:
    """The table of :func:`measure_images` for sets; ``copies`` if records have characters."""
    batch = RewardBatch([p.record for p in images], [p.panels for p in images])
    columns = {function.name: function(batch) for function in measures}
    if any(record.characters for record in batch.records):
        columns[COPIES] = np.array(list(map(copied_share, batch.records, batch.panels)), dtype=np.float64)
    columns |= {} if gold is None else gold.measure(batch)
    return pd.DataFrame({**_identity(images), **columns})


def measure_edits(
    images: Sequence[GeneratedImage], reference: Reference, editing: Editing, gold: GoldMeasure | None = None
) -> pd.DataFrame:
    """The table of :func:`measure_images` for edits."""
    pixels = [p.image for p in images]
    records = [p.record for p in images if isinstance(p.record, EditRecord)]
    batch = RewardBatch(records, [[image] for image in pixels], pixels, [reference(record) for record in records])
    answers = editing.answers(batch)
    columns = {"editing": np.sqrt(np.prod(list(answers.values()), axis=0)), **answers}
    columns |= {} if gold is None else gold.measure(batch)
    group_of = connected_groups(record.references for record in records)
    return pd.DataFrame(
        {
            **_identity(images),
            "picture": [group_of[record.references[0]] for record in records],
            "task_type": [record.task_name for record in records],
            "language": [record.language for record in records],
            **{name: columns[name] for name in EDIT_MEASURES if name in columns},
        }
    )


def _identity(images: Sequence[GeneratedImage]) -> dict[str, Any]:
    return {
        "policy": [p.policy for p in images],
        "size": [p.size for p in images],
        "when": [p.when for p in images],
        "prompt_id": [p.record.idx for p in images],
        "seed": [p.seed for p in images],
    }


def validate_measures(
    table: pd.DataFrame, measures: Sequence[str], max_failed_share: float, causes: Mapping[str, int]
) -> None:
    """Check that each policy has enough scores of each measure at each size, before and after training.

    Args:
        table: one row per image with ``policy``, ``size``, ``when`` and the measures, NaN where an image has no score.
        causes: number of failures by cause.

    Raises:
        DataError: when more than ``max_failed_share`` of the images have no score.
    """
    for cell, rows in table.groupby(["policy", "size", "when"]):
        policy, size, phase = map(str, cell)
        for name in measures:
            subject = f"{name} of {policy} at {size} px, {phase} training"
            validate_failed_share(int(rows[name].isna().sum()), len(rows), max_failed_share, subject, causes)
