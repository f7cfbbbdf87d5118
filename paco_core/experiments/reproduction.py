"""`paco reproduce`: variants of recipes under several seeds, measured and reported; it resumes where it stopped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dvc_project.file_locks import locked
from paco_core.benchmarks.tables import ResultTable
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.experiments.grid import Cell, Grid, Result, Variant, begin, experiment_folder, log, needed
from paco_core.experiments.reproduction_report import write_reproduction_report
from paco_core.experiments.variants import VARIANTS, build_recipe_cell, select_variants
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.planning.plan import validate_recipe_plan
from paco_core.tasks.table import task_of

FOLDER = paths.DATA / "reproduce"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class ReproduceOptions:
    """The options of the command line."""

    variants: Sequence[str] | None = None
    seeds: Sequence[int] = SEEDS
    changes: Sequence[str] = field(default=())  # key=value of params.yaml, for all cells
    name: str = "ablation"


def listing(root: Path, options: ReproduceOptions) -> Answer:
    """The variants, their recipes, the keys they change, and which seeds of each have run."""
    recipes = load(root / PARAMS_FILE).policies.recipes
    grid = Grid(root, experiment_folder(root / FOLDER, options.name))
    rows = [
        [
            variant.name,
            variant.recipe if variant.recipe in recipes else f"{variant.recipe} (not in {PARAMS_FILE})",
            variant.title,
            ", ".join(f"{key}: {value}" for key, value in variant.changes.items()) or "nothing",
            ", ".join(map(str, grid.seeds(variant))) or "none",
        ]
        for variant in _reported(options, recipes)
    ]
    head = ["variant", "recipe", "what it is", "changes", "seeds that have run"]
    table = ResultTable(f"Variants of {options.name}", head, rows)
    return Answer(table.markdown(), table)


def _reported(options: ReproduceOptions, recipes: Collection[str]) -> Sequence[Variant]:
    """The variants to report: those of absent recipes, too, unless some are named."""
    return VARIANTS if options.variants is None else select_variants(options.variants, recipes)


def report_only(root: Path, options: ReproduceOptions) -> Answer:
    """Write the report again from the experiments of earlier commands; see :func:`_finished`.

    Raises:
        DataError: when there is none.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(options.changes))
    grid = Grid(root, experiment_folder(root / FOLDER, options.name))
    return _write(grid, _reported(options, params.policies.recipes), params, options)


def _write(grid: Grid, variants: Sequence[Variant], params: Params, options: ReproduceOptions) -> Answer:
    """Write the report; one command at a time does."""
    with locked(grid.out / ".report.lock"):
        return write_reproduction_report(grid.out, _finished(grid, variants, params, options), params)


def _finished(grid: Grid, variants: Sequence[Variant], params: Params, options: ReproduceOptions) -> list[Result]:
    """All seeds of the variants that have run with the tracked files and the ``--set`` of this command."""
    changes = changes_of(options.changes)
    trained = [variant for variant in variants if variant.recipe in params.policies.recipes]
    return grid.results([build_recipe_cell(v, params, seed, changes) for v in trained for seed in grid.seeds(v)])


def run_reproduction(root: Path, options: ReproduceOptions) -> Answer:
    """Run the variants, write the report below ``data/reproduce/NAME`` and return it as Markdown.

    Raises:
        DataError: when the graph has not made the reward or the prompts yet, when a variant is unknown or its
            numbers cannot work; before anything is trained. When an experiment fails.
        ParamsError: when the changed parameters are invalid.
    """
    params = begin(root, options.changes, options.seeds)
    variants, out = (
        select_variants(options.variants, params.policies.recipes),
        experiment_folder(root / FOLDER, options.name),
    )
    for absent in (variant for variant in VARIANTS if options.variants is None and variant not in variants):
        log(f"{absent.name} is left out: {PARAMS_FILE} has no recipe {absent.recipe}")
    # Seed by seed, so that an early stop leaves a complete table, and a busy hour slows no variant alone.
    changes = changes_of(options.changes)
    cells = [build_recipe_cell(variant, params, seed, changes) for seed in options.seeds for variant in variants]
    for planned_cell in cells:
        _check(root, params, planned_cell)
    grid = Grid(root, out)
    completed = len(grid.results(cells))
    log(f"reproduce {options.name}: {len(cells)} cells, {completed} have run, {len(cells) - completed} to train")
    grid.run(cells, on_fresh=lambda: _write(grid, VARIANTS, params, options))
    return _write(grid, VARIANTS, params, options)


def _check(root: Path, params: Params, cell: Cell) -> None:
    """Raise DataError if the stages before a cell's have not run, or its parameters cannot work."""
    task = task_of(params.policies.recipe(str(cell.variant.recipe)))
    for path in (paths.REWARD_MERGED, task.prompts):
        needed(root, path)
    validate_recipe_plan(changed(params, cell.changes), str(cell.variant.recipe), root)
