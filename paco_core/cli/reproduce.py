"""`paco reproduce`: train the variants, examine them, write the report; go on where it was stopped."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from paco_core.benchmarks.tables import ResultTable
from paco_core.config.changes import changed, changes_of
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.experiments.grid import Cell, Grid, OpenCell, begin, folder_of, say
from paco_core.experiments.reproduction import report
from paco_core.experiments.reproduction.cells import FinishedCell, Trainings, kept_cells, of_recipes
from paco_core.experiments.reproduction.variants import VARIANTS, Variant, chosen
from paco_core.io import paths
from paco_core.io.answer import Answer
from paco_core.io.file_locks import locked
from paco_core.runtime.placement import one_gpu

EXPERIMENT = "paco/reproduce"
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
            ", ".join(str(cell.seed) for cell in kept if cell.variant == variant.name) or "none",
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
    names = [variant.name for variant in _reported(options, params.policies.recipes)]
    with _writing(out):
        return report.write(out, [cell for cell in kept_cells(out) if cell.variant in names], params)


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
    params = begin(root, options.changes, options.seeds)
    variants = chosen(options.variants, params.policies.recipes)
    if options.variants is None:
        _print_absent(variants)
    return _Table(root, params, variants, options).run()


def _print_absent(variants: Sequence[Variant]) -> None:
    for variant in VARIANTS:
        if variant not in variants:
            say(f"{variant.name} is left out: {PARAMS_FILE} has no recipe {variant.recipe}")


class _Table:
    """One table under way."""

    def __init__(self, root: Path, params: Params, variants: Sequence[Variant], options: ReproduceOptions) -> None:
        from paco_core.planning.plan import refuse_impossible

        self.root, self.params, self.variants, self.options = root, params, variants, options
        self.out = folder_of(root / FOLDER, options.name)
        for variant in variants:
            refuse_impossible(variant.applied(params, 0), variant.recipe, root)
        recipes = dict.fromkeys(variant.recipe for variant in variants)
        self.trainings = {recipe: Trainings(root, params, recipe, self.out, say) for recipe in recipes}

    def run(self) -> Answer:
        tags = {"profile": self.params.profile, "paco.reproduce": self.options.name}
        grid = Grid(self.root, self.out, EXPERIMENT, ABOUT, tags, say)
        # Seed by seed, so that an early stop leaves a whole table, and a busy hour slows no variant alone.
        cells = [self.trainings[v.recipe].cell(v, seed) for seed in self.options.seeds for v in self.variants]
        left = [cell for cell in cells if not grid.is_kept(cell)]
        self._announce(len(cells), left)
        settings = {"variants": [v.name for v in self.variants], "seeds": list(self.options.seeds)}
        with grid.parent(settings) as parent, ExitStack() as stack:
            if left:
                device, holder = self.params.policies.device, f"reproduce {self.options.name} in {self.root}"
                stack.enter_context(one_gpu([device], holder, self.params, say))
                self._hold_server(stack)
            for recipe, trainings in self.trainings.items():
                with locked(self.out / "before" / f".{recipe}.lock"):
                    trainings.before(OpenCell(report.before_folder(self.out, recipe), parent))
            grid.run(parent, cells, on_fresh=self._report)
            text = self._report()
            for suffix in ("md", "html", "json"):
                parent.artifact(self.out / f"{report.NAME}.{suffix}")
        return text

    def _report(self) -> Answer:
        with _writing(self.out):
            return report.write(self.out, self._finished(), self.params)

    def _hold_server(self, stack: ExitStack) -> None:
        """One server of the reward for all cells; each cell leases it again."""
        from paco_core.serving.servers.endpoint import RewardEndpoint

        folder = self.root / paths.REWARD_MERGED
        stack.enter_context(RewardEndpoint.lease(folder, self.params.serving, self.root, wait=False))

    def _finished(self) -> list[FinishedCell]:
        """Finished cells that rest on what their table rests on; others of an earlier setting are left out, aloud.

        Cells of a recipe that this command was not asked for stay in the report, when they go together.
        """
        cells, fitting = kept_cells(self.out), list[FinishedCell]()
        for recipe, part in of_recipes(cells).items():
            if recipe in self.trainings:
                fitting += [cell for cell in part if cell.basis == self.trainings[recipe].basis]
            elif report.go_together(self.out, part):
                fitting += part
        if len(fitting) < len(cells):
            say(f"{len(cells) - len(fitting)} kept cells have other settings or data and are left out of the report")
        return fitting

    def _announce(self, cells: int, left: Sequence[Cell]) -> None:
        say(f"reproduce {self.options.name}: {cells} cells, {cells - len(left)} kept, {len(left)} to train")
        for variant in self.variants:
            seeds = [cell.seed for cell in left if cell.name == variant.name]
            if seeds:
                say(f"  {variant.name}: seeds {', '.join(map(str, seeds))}")
