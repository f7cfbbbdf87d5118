"""`paco reproduce`: train the variants, examine them, write the report; go on where it was stopped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paco_core.benchmarks.tables import ResultTable
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.experiments.grid import Grid, Variant, begin, folder_of, say
from paco_core.experiments.reproduction import report
from paco_core.experiments.reproduction.cells import Trainings
from paco_core.experiments.reproduction.summary import kept_cells
from paco_core.experiments.reproduction.variants import VARIANTS, applied, chosen
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.file_locks import locked
from paco_core.io.files import DataError

ABOUT = "Policies and their ablations, each trained with several seeds; a parent run holds the report."
FOLDER = paths.DATA / "reproduce"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class ReproduceOptions:
    """What is asked for on the command line."""

    variants: Sequence[str] | None = None
    seeds: Sequence[int] = SEEDS
    changes: Sequence[str] = field(default=())  # key=value of params.yaml, for all cells
    name: str = "ablation"


def listing(root: Path, options: ReproduceOptions) -> Answer:
    """The variants, their recipes, the keys they change, and which seeds of each are kept."""
    recipes = load(root / PARAMS_FILE).policies.recipes
    kept = kept_cells(folder_of(root / FOLDER, options.name))
    rows = [
        [
            variant.name,
            variant.recipe if variant.recipe in recipes else f"{variant.recipe} (not in {PARAMS_FILE})",
            variant.title,
            ", ".join(f"{key}: {value}" for key, value in variant.changes.items()) or "nothing",
            ", ".join(str(cell.seed) for cell in kept if cell.variant is variant) or "none",
        ]
        for variant in _reported(options, recipes)
    ]
    head = ["variant", "recipe", "what it is", "changes", "kept"]
    table = ResultTable(f"Variants, and seeds kept in {FOLDER / options.name}", head, rows)
    return Answer(table.markdown(), table)


def _reported(options: ReproduceOptions, recipes: Collection[str]) -> Sequence[Variant]:
    """The variants to report: those of absent recipes, too, unless some are named."""
    return VARIANTS if options.variants is None else chosen(options.variants, recipes)


def report_only(root: Path, options: ReproduceOptions) -> Answer:
    """Write the report again from what is kept, with nothing but the kept results.

    Raises:
        DataError: when nothing is kept, or what is kept cannot stand in one table.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(options.changes))
    out = folder_of(root / FOLDER, options.name)
    variants = _reported(options, params.policies.recipes)
    with _writing(out):
        cells = [cell for cell in kept_cells(out) if cell.variant in variants]
        if others := [cell.folder.name for cell in cells if not cell.fits]:
            raise DataError(
                f"cells in {out / 'cells'} have different settings, prompts, reward or models than the examination of "
                f"their bare model in {out / 'before'} ({', '.join(others)}); remove those that are out of date, run "
                "`paco reproduce` again for the others, or give another --name"
            )
        return report.write(out, cells, params)


def _writing(out: Path) -> AbstractContextManager[None]:
    """One command at a time reads what is kept and writes the report."""
    return locked(out / ".report.lock")


def reproduce(root: Path, options: ReproduceOptions) -> Answer:
    """Run what is asked for below ``data/reproduce/NAME`` and return the report as Markdown.

    Raises:
        DataError: when the graph has not made the reward or the prompts yet, when a variant is unknown or its
            numbers cannot work; before anything is trained.
        ParamsError: when the changed parameters are invalid.
    """
    from paco_core.planning.plan import refuse_impossible

    params = begin(root, options.changes, options.seeds)
    variants, out = chosen(options.variants, params.policies.recipes), folder_of(root / FOLDER, options.name)
    for absent in (variant for variant in VARIANTS if options.variants is None and variant not in variants):
        say(f"{absent.name} is left out: {PARAMS_FILE} has no recipe {absent.recipe}")
    for variant in variants:
        refuse_impossible(applied(variant, params, 0), str(variant.recipe), root)
    trainings = {name: Trainings(root, params, name) for name in dict.fromkeys(str(v.recipe) for v in variants)}
    grid = Grid(root, out, "reproduce", ABOUT, params)
    # Seed by seed, so that an early stop leaves a whole table, and a busy hour slows no variant alone.
    cells = [trainings[str(v.recipe)].cell(v, seed) for seed in options.seeds for v in variants]
    left = [cell for cell in cells if grid.kept(cell) is None]
    say(f"reproduce {options.name}: {len(cells)} cells, {len(cells) - len(left)} kept, {len(left)} to train")
    for variant in variants:
        if seeds := [str(cell.seed) for cell in left if cell.variant is variant]:
            say(f"  {variant.name}: seeds {', '.join(seeds)}")

    def write() -> Answer:
        with _writing(out):
            kept = kept_cells(out)
            fitting = [cell for cell in kept if cell.fits]
            if len(fitting) < len(kept):
                say(f"{len(kept) - len(fitting)} kept cells have other settings or data and are left out of the report")
            return report.write(out, fitting, params)

    server = _reward_server(root, params) if left else nullcontext()
    paints = left or not all(of.is_examined(out) for of in trainings.values())
    with grid.opened(cells, params.policies.device if paints else None) as parent, server:
        for of in trainings.values():
            of.before(out, parent)
        grid.run(parent, cells, on_fresh=write)
        text = write()
        for suffix in ("md", "html", "json"):
            parent.artifact(out / f"{report.NAME}.{suffix}")
    return text


def _reward_server(root: Path, params: Params) -> AbstractContextManager[Any]:
    """One server of the reward for all cells; each cell leases it again."""
    from paco_core.serving.servers.endpoint import RewardEndpoint

    return RewardEndpoint.lease(root / paths.REWARD_MERGED, params.serving, root, wait=False)
