"""`paco reproduce`: train the variants, examine them, write the report; go on where it was stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from paco_core import paths
from paco_core.benchmarks.cells import Cells, OpenCell, changed, changes_of
from paco_core.benchmarks.tables import Table
from paco_core.files import DataError
from paco_core.params import PARAMS_FILE, Params, load
from paco_core.reproduction import estimates, report
from paco_core.reproduction.cells import Kept, Trainings, kept_cells
from paco_core.reproduction.exam import read_table
from paco_core.reproduction.variants import Variant, chosen
from paco_core.tracking import Terminated, Tracker

EXPERIMENT = "paco/reproduce"
FOLDER = paths.DATA / "reproduce"
SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Wish:
    """What is asked for on the command line."""

    variants: Sequence[str] | None = None
    seeds: Sequence[int] = SEEDS
    changes: Sequence[str] = field(default=())  # key=value of params.yaml, for all cells
    name: str = "ablation"


def listing(root: Path, wish: Wish) -> str:
    """The variants, the keys they change, and which seeds of each are kept."""
    kept = kept_cells(root / FOLDER / wish.name)
    rows = [
        [
            variant.name,
            variant.title,
            ", ".join(f"{key}: {value}" for key, value in variant.changes.items()) or "nothing",
            ", ".join(str(cell.seed) for cell in kept if cell.variant == variant.name) or "none",
        ]
        for variant in chosen(wish.variants)
    ]
    return Table(
        f"Variants, and seeds kept in {FOLDER / wish.name}", ["variant", "what it is", "changes", "kept"], rows
    ).markdown()


def report_only(root: Path, wish: Wish) -> str:
    """Write the report again from what is kept, with nothing but the kept results.

    Raises:
        DataError: when nothing is kept, or what is kept cannot stand in one table.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(wish.changes))
    out = root / FOLDER / wish.name
    names = {variant.name for variant in chosen(wish.variants)}
    return report.write(out, [cell for cell in kept_cells(out) if cell.variant in names], params.t2is.bootstrap)


def reproduce(root: Path, wish: Wish) -> str:
    """Run what is asked for below ``data/reproduce/NAME`` and return the report as Markdown.

    Raises:
        DataError: when the graph has not made the reward or the prompts yet, when a variant is unknown or its
            numbers cannot work; before anything is trained.
        ParamsError: when the changed parameters are invalid.
    """
    params = changed(load(root / PARAMS_FILE), changes_of(wish.changes))
    variants = chosen(wish.variants)
    if len(set(wish.seeds)) < len(wish.seeds):
        raise DataError(f"a seed comes twice: {list(wish.seeds)}")
    os.environ.setdefault("OMP_NUM_THREADS", str(params.threads))  # before torch, which reads it once
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    signal.signal(signal.SIGTERM, _on_sigterm)
    return _Table(root, params, variants, wish).run()


def _on_sigterm(_signal: int, _frame: object) -> None:
    raise Terminated


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


class _Table:
    """One table under way."""

    def __init__(self, root: Path, params: Params, variants: Sequence[Variant], wish: Wish) -> None:
        from paco_core.grpo.plan import refuse_impossible

        self.root, self.params, self.variants, self.wish = root, params, variants, wish
        self.out = root / FOLDER / wish.name
        for variant in variants:
            refuse_impossible(variant.applied(params, 0), variant.recipe, root)
        self.trainings = Trainings(root, params, variants[0].recipe, self.out, say)

    def run(self) -> str:
        # Seed by seed, so that an early stop leaves a whole table, and a busy hour slows no variant alone.
        todo = [(v, seed) for seed in self.wish.seeds for v in self.variants]
        left = [(v, seed) for v, seed in todo if not self.trainings.is_kept(v, seed)]
        self._announce(len(todo), left)
        tags = {"profile": self.params.profile, "paco.reproduce": self.wish.name}
        grid = Cells(self.root, self.out, EXPERIMENT, tags, say)
        settings = {"variants": [v.name for v in self.variants], "seeds": list(self.wish.seeds)}
        text = ""
        with grid.parent(settings) as parent, ExitStack() as stack:
            if left:
                self._keep_server(stack)
            self.trainings.before(OpenCell(report.before_folder(self.out), parent))
            for place, (variant, seed) in enumerate(todo):
                if (variant, seed) in left:
                    say(f"reproduce {self.wish.name}: {variant.name}, seed {seed} ({place + 1}/{len(todo)})")
                self._cell(grid, parent, variant, seed)
                if (variant, seed) in left:
                    text = report.write(self.out, self._kept(), self.params.t2is.bootstrap)
            text = text or report.write(self.out, self._kept(), self.params.t2is.bootstrap)
            for suffix in ("md", "html", "json"):
                parent.artifact(self.out / f"{report.NAME}.{suffix}")
        return text

    def _keep_server(self, stack: ExitStack) -> None:
        """One server of the reward for all cells; each cell leases it again."""
        from paco_core.serving.endpoint import RewardEndpoint

        folder = self.root / paths.REWARD_MERGED
        stack.enter_context(RewardEndpoint.lease(folder, self.params.serving, self.root, wait=False))

    def _cell(self, grid: Cells, parent: Tracker, variant: Variant, seed: int) -> None:
        trainings = self.trainings
        asked = variant.applied(self.params, seed).policies.model_dump()
        with grid.open(parent, variant.name, variant.name, seed, {"variant": variant.name, "policies": asked}) as cell:
            done = cell.once(trainings.key(variant, seed), lambda: trainings.compute(variant, seed, cell))
            cell.tracker.tags({"paco.trained_by": str(done["run"])})
            known = {name: v for name, v in done["training"].items() if isinstance(v, int | float)}
            cell.tracker.metrics({f"training/{name}": float(value) for name, value in known.items()})
            means = read_table(cell.folder).drop(columns=["prompt_id", "seed"]).groupby("size").mean()
            cell.tracker.metrics({f"{size}/{name}": float(v) for name in means for size, v in means[name].items()})

    def _kept(self) -> list[Kept]:
        """Finished cells that rest on what this table rests on; others of an earlier setting are left out, aloud."""
        cells = kept_cells(self.out)
        fitting = [cell for cell in cells if cell.basis == self.trainings.basis]
        if len(fitting) < len(cells):
            say(f"{len(cells) - len(fitting)} kept cells rest on other settings or data and are left out of the report")
        return fitting

    def _announce(self, cells: int, left: Sequence[tuple[Variant, int]]) -> None:
        say(f"reproduce {self.wish.name}: {cells} cells, {cells - len(left)} kept, {len(left)} to train")
        total = 0.0
        for variant in dict.fromkeys(v for v, _ in left):
            seeds = [seed for v, seed in left if v is variant]
            guess = estimates.seconds(self.root, self.params, variant, self.trainings.exam.pictures)
            total += len(seeds) * (guess or 0.0)
            say(f"  {variant.name}: {estimates.words(guess)}, seeds {', '.join(map(str, seeds))}")
        if total:
            say(f"  together about {total / 60:.0f} min on two cores that do nothing else")
