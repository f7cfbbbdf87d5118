"""What a round asks for, by the files that it has made so far."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.annotation.people import answered
from paco_core.data.annotation.votes import RankingTask
from paco_core.data.pairs.rankings import COLUMNS
from paco_core.data.records.panels import PanelStore
from paco_core.io import paths
from paco_core.io.files import DataError, read_table

if TYPE_CHECKING:
    from paco_core.config.params import Params

TABLE = "instances.parquet"


def task_of_round(root: Path, params: Params, number: str) -> RankingTask:
    """The instances that a round adds to those before it, with their pictures.

    Raises:
        DataError: when there is no such round, or its rankings are not made yet.
    """
    rounds = params.rounds.items
    if number not in rounds:
        raise DataError(f"round {number}: not in rounds.items; there are: {', '.join(rounds) or 'none'}")
    place = root / paths.ROUNDS / number
    made = place / paths.RANKINGS.name / TABLE
    if not made.is_file():
        raise DataError(f"{made}: missing; run `dvc repro {paths.ROUND}{paths.RANKINGS.name}@{number}`")
    known = read_table(root / rounds[number].after / paths.RANKINGS.name / TABLE, require=COLUMNS)["instance_id"]
    asked = read_table(made, require=COLUMNS)
    panels = PanelStore.below(place / paths.GRIDS.name)
    return RankingTask(asked[~asked["instance_id"].isin(known)], panels, params.annotations, root)


def annotation_source(params: Params, number: str | None) -> str:
    """Who ranks the pictures of a round; None: those of the graph itself."""
    of_round = params.rounds.items[number].annotations if number is not None else None
    return of_round or params.annotations.source


def ready(root: Path, params: Params) -> list[str]:
    """The rounds that waited for people, and have all answers now."""
    found = []
    for number in params.rounds.items:
        place = root / paths.ROUNDS / number
        if annotation_source(params, number) != "people":
            continue
        if (place / paths.RANKINGS.name / TABLE).is_file() and not (place / paths.ANNOTATIONS.name).exists():
            task = task_of_round(root, params, number)
            found += [number] if answered(task) == len(task.instances) else []
    return found
