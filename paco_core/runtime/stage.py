"""Declaration of a stage: ``STAGE`` at the top of its file in ``paco_core/stages``.

`paco check`, the launcher, MLflow, Dagster and the page of a run read the declaration. Therefore a stage's file imports
no library that computes at its top. Its functions import the libraries that they need.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from paco_core.config.params import Params
    from paco_core.io.check_report import CheckReport
    from paco_core.runtime.preview import Preview
from paco_core.io.files import read_json, write_json

BASE_GB = 1.2  # Python with torch, diffusers and transformers
LIGHT_GB, LIGHT_S = 0.3, 2.0  # a stage without torch: those of the demo take 0.05 to 0.18 GB


@dataclass(frozen=True)
class Cost:
    """What a stage, or one item of it, would do and need. The defaults are those of a stage without torch.

    ``memory_gb`` is of the processor's memory or a GPU's; ``seconds`` are None where nobody measured.
    """

    work: str
    memory_gb: float = LIGHT_GB
    seconds: float | None = LIGHT_S
    device: str = "cpu"
    note: str = ""


@dataclass(frozen=True)
class Check:
    """A check of a stage's outs, for Dagster. A report of the severity ERROR stops what follows.

    Attributes:
        name: of the asset check.
        run: gets the project's root and the item that was made (None = all of them); returns one report, or one for
            each recipe and size.
        says: what holds when it passes.
    """

    name: str
    run: Callable[[Path, str | None], CheckReport | Sequence[CheckReport]]
    says: str

    def reports(self, root: Path, item: str | None = None) -> list[CheckReport]:
        """What it finds; no report where no recipe is of the kind that it looks at."""
        reports = self.run(root, item)
        return list(reports) if isinstance(reports, Sequence) else [reports]


def library_check(place: str, says: str, reads: Path = Path("data")) -> Check:
    """A check by a function of the library, whose name it has.

    Args:
        place: ``module:function``; imported when the check runs.
        says: what holds when it passes.
        reads: what the function gets: a folder or file below the project's root, or that itself.
    """
    module, _, name = place.partition(":")

    def run(root: Path, _item: str | None) -> CheckReport | Sequence[CheckReport]:
        reports: CheckReport | Sequence[CheckReport] = getattr(import_module(module), name)(root / reads)
        return reports

    return Check(name, run, says)


@dataclass(frozen=True)
class View:
    """Charts that compare all runs of a stage: of each figure its course as a line, or its last value as bars."""

    title: str
    charts: Sequence[tuple[str, Literal["LINE", "BAR"]]]


def _never(_params: Params) -> str | None:
    return None


def _none_unread(_params: Params) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Stage:
    """A stage, apart from its edges, which ``dvc.yaml`` declares. Everything has a default.

    Attributes:
        seed: of a run, by parameters and the item, for the name of the MLflow run; None = that of the section of
            ``params.yaml`` that is called like the stage, if it has one.
        device: what it computes on; None = the processor.
        processes: how many train together; the stage's file has ``assist(rank)`` for ranks other than the
            first. None = always one. ``PACO_LAUNCHER=accelerate`` takes the number from accelerate's configuration.
        served: whether a reward server answers meanwhile.
        advice: what needs less memory of a GPU.
        skipped: why there is nothing to do with these parameters; None = there is.
        unread: keys of models and files among its parameters that it does not read with these values.
        cost: one of the whole stage, or one of each item, by parameters and the project's root.
        headline: name patterns of the figures that come first; of each entry the first pattern that fits counts.
        columns: column of its tables -> what it holds, where that differs from the column's usual meaning.
        preview: what the asset's page shows beside figures, by the data folder and the item ("" = none).
        view: a saved page of the stage's MLflow experiment.
        checks: of its outs.
        compared: whether Dagster compares the figures with those of the version before.
        trains_recipe: whether a run trains one recipe. MLflow then has the parameters of the recipe, with the defaults
            that it uses, as ``recipe.KEY``: a key has the same name in the run of each recipe.
        tables: whether its out holds tables, written by :func:`paco_core.benchmarks.tables.write_result_tables`.
    """

    seed: Callable[[Params, str | None], int | None] | None = None
    device: Callable[[Params], str] | None = None
    processes: Callable[[Params], int] | None = None
    served: bool = False
    advice: str = "it needs a GPU with more memory"
    skipped: Callable[[Params], str | None] = _never
    unread: Callable[[Params], Iterable[str]] = _none_unread
    cost: Callable[[Params, Path], Cost | Mapping[str, Cost]] | None = None
    headline: Sequence[Sequence[str]] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    preview: Callable[[Path, str], Mapping[str, Preview]] | None = None
    view: View | None = None
    checks: Sequence[Check] = ()
    compared: bool = False
    trains_recipe: bool = False
    tables: bool = False


FILE = "skipped.json"


def write_skipped(folder: Path, reason: str) -> None:
    """Write into the out ``folder`` why the stage did nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / FILE, {"reason": reason})


def skip_reason(folder: Path) -> str | None:
    """Why the stage that made ``folder`` did nothing; None where it did something, or has not run.

    Raises:
        DataError: when the file is damaged.
    """
    path = folder / FILE
    return str(read_json(path)["reason"]) if path.is_file() else None
