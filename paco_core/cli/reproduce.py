"""`paco reproduce`: train the variants, examine them, write the report; go on where it was stopped.

Commands that run side by side on one name share its cells: each takes those that nobody else works on.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from paco_core.benchmarks.tables import Table
from paco_core.config.params import PARAMS_FILE, Params, load
from paco_core.experiments.cells import Cells, OpenCell, cell_folder, changed, changes_of
from paco_core.experiments.reproduction import estimates, report
from paco_core.experiments.reproduction.cells import Kept, Trainings, kept_cells, of_recipes
from paco_core.experiments.reproduction.exam import ABOUT, read_table
from paco_core.experiments.reproduction.variants import VARIANTS, Variant, chosen
from paco_core.io import paths
from paco_core.io.file_locks import hold, locked
from paco_core.io.files import DataError
from paco_core.runtime.tracking import Terminated, Tracker

EXPERIMENT = "paco/reproduce"
FOLDER = paths.DATA / "reproduce"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Options:
    """What is asked for on the command line."""

    variants: Sequence[str] | None = None
    seeds: Sequence[int] = SEEDS
    changes: Sequence[str] = field(default=())  # key=value of params.yaml, for all cells
    name: str = "ablation"


def listing(root: Path, options: Options) -> str:
    """The variants, their recipes, the keys they change, and which seeds of each are kept."""
    recipes = load(root / PARAMS_FILE).policies.recipes
    kept = kept_cells(root / FOLDER / options.name)
    rows = [
        [
            variant.name,
            variant.recipe if variant.recipe in recipes else f"{variant.recipe} (not in {PARAMS_FILE})",
            variant.title,
            ", ".join(f"{key}: {value}" for key, value in variant.changes.items()) or "nothing",
            ", ".join(str(cell.seed) for cell in kept if cell.variant == variant.name) or "none",
        ]
        for variant in _told(options, recipes)
    ]
    head = ["variant", "recipe", "what it is", "changes", "kept"]
    return Table(f"Variants, and seeds kept in {FOLDER / options.name}", head, rows).markdown()


def _told(options: Options, recipes: Collection[str]) -> Sequence[Variant]:
    """The variants to report: those of absent recipes, too, unless some are named."""
    return VARIANTS if options.variants is None else chosen(options.variants, recipes)


def report_only(root: Path, options: Options) -> str:
    """Write the report again from what is kept, with nothing but the kept results.

    Raises:
        DataError: when nothing is kept, or what is kept cannot stand in one table.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(options.changes))
    out = root / FOLDER / options.name
    names = [variant.name for variant in _told(options, params.policies.recipes)]
    with _writing(out):
        return report.write(out, [cell for cell in kept_cells(out) if cell.variant in names], params)


def _writing(out: Path) -> AbstractContextManager[None]:
    """One command at a time reads what is kept and writes the report."""
    return locked(out / ".report.lock")


def reproduce(root: Path, options: Options) -> str:
    """Run what is asked for below ``data/reproduce/NAME`` and return the report as Markdown.

    Raises:
        DataError: when the graph has not made the reward or the prompts yet, when a variant is unknown or its
            numbers cannot work; before anything is trained.
        ParamsError: when the changed parameters are invalid.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(options.changes))
    variants = chosen(options.variants, params.policies.recipes)
    if options.variants is None:
        _tell_absent(variants)
    if len(set(options.seeds)) < len(options.seeds):
        raise DataError(f"a seed comes twice: {list(options.seeds)}")
    os.environ.setdefault("OMP_NUM_THREADS", str(params.threads))  # before torch, which reads it once
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    signal.signal(signal.SIGTERM, _on_sigterm)
    return _Table(root, params, variants, options).run()


def _tell_absent(variants: Sequence[Variant]) -> None:
    for variant in VARIANTS:
        if variant not in variants:
            say(f"{variant.name} is left out: {PARAMS_FILE} has no recipe {variant.recipe}")


def _on_sigterm(_signal: int, _frame: object) -> None:
    raise Terminated


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Table:
    """One table under way."""

    def __init__(self, root: Path, params: Params, variants: Sequence[Variant], options: Options) -> None:
        from paco_core.planning.plan import refuse_impossible

        self.root, self.params, self.variants, self.options = root, params, variants, options
        self.out = root / FOLDER / options.name
        for variant in variants:
            refuse_impossible(variant.applied(params, 0), variant.recipe, root)
        recipes = dict.fromkeys(variant.recipe for variant in variants)
        self.trainings = {recipe: Trainings(root, params, recipe, self.out, say) for recipe in recipes}

    def _is_kept(self, variant: Variant, seed: int) -> bool:
        return self.trainings[variant.recipe].is_kept(variant, seed)

    def run(self) -> str:
        # Seed by seed, so that an early stop leaves a whole table, and a busy hour slows no variant alone.
        todo = [(v, seed) for seed in self.options.seeds for v in self.variants]
        left = [(v, seed) for v, seed in todo if not self._is_kept(v, seed)]
        self._announce(len(todo), left)
        tags = {"profile": self.params.profile, "paco.reproduce": self.options.name}
        grid = Cells(self.root, self.out, EXPERIMENT, tags, say)
        settings = {"variants": [v.name for v in self.variants], "seeds": list(self.options.seeds)}
        with grid.parent(settings) as parent, ExitStack() as stack:
            if left:
                self._keep_server(stack)
            for recipe, trainings in self.trainings.items():
                with locked(self.out / "before" / f".{recipe}.lock"):
                    trainings.before(OpenCell(report.before_folder(self.out, recipe), parent))
            taken = [self._take(grid, parent, *cell, f"{n}/{len(todo)}") for n, cell in enumerate(todo, start=1)]
            for (variant, seed), mine in zip(todo, taken, strict=True):
                if not mine and not self._is_kept(variant, seed):
                    say(f"{variant.name}, seed {seed}: another command trains it and will write the report anew")
            text = self._report()
            for suffix in ("md", "html", "json"):
                parent.artifact(self.out / f"{report.NAME}.{suffix}")
        return text

    def _take(self, grid: Cells, parent: Tracker, variant: Variant, seed: int, place: str) -> bool:
        """Look at one cell, train it if nobody has; False when another command is at it."""
        folder = cell_folder(self.out, variant.name, seed)
        try:
            held = hold(folder.with_name(f".{folder.name}.lock"))  # the kernel lets go of it when this process dies
        except BlockingIOError:
            return False
        with held:
            fresh = not self._is_kept(variant, seed)
            if fresh:
                say(f"reproduce {self.options.name}: {variant.name}, seed {seed} ({place})")
            self._cell(grid, parent, variant, seed)
        if fresh:
            self._report()
        return True

    def _report(self) -> str:
        with _writing(self.out):
            return report.write(self.out, self._kept(), self.params)

    def _keep_server(self, stack: ExitStack) -> None:
        """One server of the reward for all cells; each cell leases it again."""
        from paco_core.serving.servers.endpoint import RewardEndpoint

        folder = self.root / paths.REWARD_MERGED
        stack.enter_context(RewardEndpoint.lease(folder, self.params.serving, self.root, wait=False))

    def _cell(self, grid: Cells, parent: Tracker, variant: Variant, seed: int) -> None:
        trainings = self.trainings[variant.recipe]
        asked = variant.applied(self.params, seed).policies.model_dump()
        with grid.open(parent, variant.name, variant.name, seed, {"variant": variant.name, "policies": asked}) as cell:
            done = cell.once(trainings.key(variant, seed), lambda: trainings.compute(variant, seed, cell))
            cell.tracker.tags({"paco.trained_by": str(done["run"])})
            known = {name: v for name, v in done["training"].items() if isinstance(v, int | float)}
            cell.tracker.metrics({f"training/{name}": float(value) for name, value in known.items()})
            means = read_table(cell.folder).drop(columns=ABOUT).groupby("size").mean()
            cell.tracker.metrics({f"{size}/{name}": float(v) for name in means for size, v in means[name].items()})

    def _kept(self) -> list[Kept]:
        """Finished cells that rest on what their table rests on; others of an earlier setting are left out, aloud.

        Cells of a recipe that this command was not asked for stay in the report, when they go together.
        """
        cells, fitting = kept_cells(self.out), list[Kept]()
        for recipe, part in of_recipes(cells).items():
            if recipe in self.trainings:
                fitting += [cell for cell in part if cell.basis == self.trainings[recipe].basis]
            elif report.go_together(self.out, part):
                fitting += part
        if len(fitting) < len(cells):
            say(f"{len(cells) - len(fitting)} kept cells rest on other settings or data and are left out of the report")
        return fitting

    def _announce(self, cells: int, left: Sequence[tuple[Variant, int]]) -> None:
        say(f"reproduce {self.options.name}: {cells} cells, {cells - len(left)} kept, {len(left)} to train")
        total = 0.0
        for variant in dict.fromkeys(v for v, _ in left):
            seeds = [seed for v, seed in left if v is variant]
            guess = estimates.seconds(self.root, self.params, variant, self.trainings[variant.recipe].exam)
            total += len(seeds) * (guess or 0.0)
            say(f"  {variant.name}: {estimates.words(guess)}, seeds {', '.join(map(str, seeds))}")
        if total:
            say(f"  together about {total / 60:.0f} min on two cores that do nothing else")
