"""Problems that would stop a stage, as far as parameters and prompt files show them.

Each check calls the function that the stage itself calls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.benchmarks.unseen_prompts import only_test_file, unseen_prompts, validate_unseen_remain
from paco_core.config.params import Params
from paco_core.data.pairs.limits import held_out_units, validate_candidate_count, validate_validation_pairs
from paco_core.data.records.edit_records import of_part
from paco_core.data.records.panels import validate_divisible
from paco_core.data.records.prompt_content import contents_of_all
from paco_core.data.records.prompt_text import parse_layout
from paco_core.grpo.sizes import side_multiple_of
from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.rejected import Rejected
from paco_core.planning.plan import Problems, recipe_problems
from paco_core.planning.planned_prompts import build_planned_prompts, edits_of, sets_of
from paco_core.policies.base import validate_token_grid
from paco_core.policies.compiled import validate_compile
from paco_core.policies.families import (
    family_of,
    validate_pipeline_folder,
    validate_text_window,
)
from paco_core.policies.quantised import validate_base_format
from paco_core.policies.windows import validate_window
from paco_core.reward_model.quantised import validate_quantization
from paco_core.runtime.launchers import current_launcher
from paco_core.tasks.base import PlannedPrompts
from paco_core.tasks.edits import EDITS, validate_reference_counts
from paco_core.tasks.sets import SETS, read_sets
from paco_core.tasks.table import recipes_of, task_of

if TYPE_CHECKING:
    from paco_core.data.pairs.imported_pairs import ImportedPairs
    from paco_core.data.records.records import PromptRecord
    from paco_core.runtime.stage import Stage


def stage_problems(params: Params, root: Path, stages: Mapping[str, Stage]) -> list[str]:
    """Problems that would stop a stage, one line per problem.

    Args:
        stages: declarations of the stages of ``dvc.yaml``, by name.
    """
    idle = {name for name, stage in stages.items() if stage.skipped(params) is not None}
    problems = Problems()
    planned = _planned_prompts(problems, params, root)
    _prompts(problems, params, root, planned)
    _annotations(problems, params, root)
    _edits(problems, params, root, planned)
    _pairs(problems, params, root, [] if paths.ANNOTATIONS.name in idle else planned.prompts)
    _policies(problems, params, root, planned)
    if paths.T2IS_BENCH.name not in idle:
        _t2is_bench(problems, params, root)
    _viescore(problems, params, root)
    _rounds(problems, params)
    return problems


def _rounds(problems: Problems, params: Params) -> None:
    name = params.rounds.recipe
    if params.rounds.items and name not in (sets := recipes_of(SETS, params.policies)):
        problems.append(f"rounds.recipe: {name} does not generate sets; choose one of: {', '.join(sets) or 'none'}")
    elif params.rounds.items and sets[name].paints_stories:
        problems.append(
            f"rounds.recipe: {name} generates panels one by one, but a round generates complete grids; set its "
            "panels to together"
        )
    if params.rounds.items and params.grids.model != params.policies.recipes[name].model:
        problems.append(
            f"rounds.recipe: {name} trains {params.policies.recipes[name].model}, and grids.model is "
            f"{params.grids.model}; a round generates its grids with the policy, so set both to the same model"
        )
    if params.rounds.items and params.policies.recipes[name].transformer is not None:
        problems.append(
            f"policies.recipes.{name}.transformer: a round generates its grids with the transformer of grids.model; "
            "load the pipeline with this file in diffusers (from_single_file), save it with save_pretrained, set both "
            "models to its folder, and transformer to null"
        )


def _planned_prompts(problems: Problems, params: Params, root: Path) -> PlannedPrompts:
    """The prompts of the graph; none if their file is missing, which `paco check` reports, or invalid."""
    key = "prompts.source" if params.prompts.engine == "import" else "prompts"
    sets, edits = problems.attempt(key, sets_of, params, root), problems.attempt("edit_prompts", edits_of, params, root)
    return build_planned_prompts(params, sets or [], edits or [])


def _prompts(problems: Problems, params: Params, root: Path, planned: PlannedPrompts) -> None:
    target = params.diverse_prompts.target
    if target is not None and planned.prompts:
        from paco_core.data.prompts.diversify import validate_target

        problems.attempt("diverse_prompts", validate_target, planned.prompts, target)
    if params.grids.seeds and planned.prompts:
        problems.attempt("grids", validate_divisible, planned.prompts)
        problems.attempt("grids", validate_window, "grids", params.grids, root)


def _annotations(problems: Problems, params: Params, root: Path) -> None:
    excluded = set(params.annotations.exclude)
    if params.annotations.source == "people" and excluded:
        from paco_core.data.annotation import answer_file
        from paco_core.data.annotation.sources import validate_excluded

        try:
            annotators = {answer.annotator for answer in answer_file.read_answers(root)}
        except DataError:  # `paco check` reports the file itself
            return
        problems.attempt("annotations", validate_excluded, excluded, annotators)


def _edits(problems: Problems, params: Params, root: Path, planned: PlannedPrompts) -> None:
    for number, painter in enumerate(params.edits.painters):
        key = f"edits.painters.{number}"
        problems.attempt(key, validate_text_window, key, painter, root)
        problems.attempt(key, validate_pipeline_folder, root, painter.model, painter.family)
        if problems.attempt(key, family_of(painter.family).edits, "edits"):
            problems.attempt(key, validate_reference_counts, painter.family, of_part(planned.edits, "train"))
        if multiple := side_multiple_of(root / painter.model, painter.family):
            size = params.edits.size, params.edits.size
            problems.attempt(key, validate_token_grid, size, multiple)


def _pairs(problems: Problems, params: Params, root: Path, prompts: Sequence[PromptRecord]) -> None:
    pairs = params.pairs
    if prompts and params.annotations.source != "none":
        for layout in dict.fromkeys(record.layout for record in prompts):
            count = prod(parse_layout(layout))
            problems.attempt("pairs", validate_candidate_count, pairs.rule, count, f"layout {layout}")
        num_prompts = params.diverse_prompts.target or len(prompts)
        if pairs.split == "prompt":
            problems.attempt("pairs", _shares, params, num_prompts)
    imported = None
    if pairs.imported and (root / pairs.imported).is_dir():
        imported = problems.attempt("pairs.imported", _imported, root / pairs.imported)
    if pairs.editing.file and pairs.editing.source == "import" and (root / pairs.editing.file).is_file():
        from paco_core.data.pairs.editing import editing_pairs

        first = pairs.editing.model_copy(update={"count": 1})  # one valid row is enough
        problems.attempt("pairs.editing", editing_pairs, first, root)
    if (stories := pairs.characters.stories) is not None and (root / stories).is_file():
        problems.attempt("pairs.characters.stories", _usable_stories, root / stories)
    if params.reward.source == "train" and pairs.validation_share == 0:
        num_imported = 0 if imported is None else len(imported.held_out)
        problems.attempt("reward", validate_validation_pairs, num_imported)


def _shares(params: Params, prompts: int) -> None:
    left = prompts - held_out_units(prompts, params.pairs.benchmark_share, "benchmark")
    if left:
        held_out_units(left, params.pairs.validation_share, "validation")


def _usable_stories(file: Path) -> None:
    from paco_core.data.pairs.character_stories import read_stories, validate_usable

    rejected = Rejected()
    validate_usable(file, read_stories(file, rejected, heads=True), rejected)


def _imported(folder: Path) -> ImportedPairs:
    from paco_core.data.pairs.imported_pairs import imported_pairs

    return imported_pairs(folder)


def _policies(problems: Problems, params: Params, root: Path, planned: PlannedPrompts) -> None:
    processes = problems.attempt("policies", _processes, params, root)
    if params.serving.engine == "transformers":
        problems.attempt("serving.quantization", validate_quantization, params.serving.quantization)
    for name, recipe in params.policies.recipes.items():
        if not (planned.prompts or recipe.prompts if task_of(recipe) is SETS else planned.edits):
            continue  # it has no prompts, about which `paco check` prints a remark
        problems += recipe_problems(params, name, root, processes or 1, planned)
        problems.attempt(f"policies.recipes.{name}", validate_base_format, recipe.base)
        if recipe.transformer is not None:
            from paco_core.policies.transformer import validate_single_file

            problems.attempt(f"policies.recipes.{name}.transformer", validate_single_file, recipe.family)
        problems.attempt(f"policies.recipes.{name}", validate_compile, recipe.compile)
    if recipes_of(SETS, params.policies):
        problems.attempt("t2is", _unseen, params, root, planned)


def _processes(params: Params, root: Path) -> int:
    """Number of training processes of the launcher."""
    if current_launcher() != "accelerate":
        return 1
    from paco_core.runtime.launchers.accelerated import configured_processes

    return configured_processes(root, params.policies.device)[0]


def _unseen(params: Params, root: Path, planned: PlannedPrompts) -> None:
    """Check that ``t2is`` has prompts on which no policy is trained."""
    file = only_test_file(params)
    recipe = next(iter(recipes_of(SETS, params.policies).values()))
    # Problems of the split itself are reported with the recipe.
    split = Problems().attempt("t2is", SETS.plan_split, recipe, planned, lambda path: root / path)
    if split is None or (file is None and (params.prompts.engine == "openai" or params.diverse_prompts.threshold)):
        return  # prompts of a language model and the selection by a threshold are not known yet
    if file is None and planned.num_diverse < len(planned.prompts):
        return validate_unseen_remain(planned.prompts, len(split.trained))
    tested = planned.prompts if file is None else read_sets(root / file)
    unseen_prompts(tested, contents_of_all(split.trained), params.t2is.prompts, params.t2is.seed)


def _viescore(problems: Problems, params: Params, root: Path) -> None:
    judged = params.gedit.viescore
    if judged is not None and recipes_of(EDITS, params.policies):
        from paco_core.benchmarks.viescore_prompts import wording

        problems.attempt("gedit.viescore", wording, judged.prompts, root)


def _t2is_bench(problems: Problems, params: Params, root: Path) -> None:
    from paco_core.benchmarks.t2is_bench.questions import read_criteria, read_panels, validate_texts

    bench = params.t2is_bench
    if params.world != "storybook" and bench.alignment is not None:
        problems.attempt("t2is_bench.alignment", validate_texts, bench.texts)
    for key, file, read in (("criteria", bench.criteria, read_criteria), ("texts", bench.texts, read_panels)):
        if file is not None and (root / file).is_file():
            problems.attempt(f"t2is_bench.{key}", read, root / file, Rejected())
