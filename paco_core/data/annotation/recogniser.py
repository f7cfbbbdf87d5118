"""The embedded world's annotator: reads the traits of every panel and ranks by how many agree."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from paco_core.data.annotation.votes import Annotation, RankingTask, Votes, instance_rows
from paco_core.data.records.panels import PanelStore
from paco_core.io.files import DataError
from paco_core.storybook.recogniser import Recogniser
from paco_core.storybook.world import SHARED_TRAITS

if TYPE_CHECKING:
    import pandas as pd

    from paco_core.storybook.recogniser import Reading

READ_BATCH = 256


def votes(task: RankingTask) -> Votes:
    """Every instance ranked by what the recogniser reads in its panels.

    Raises:
        DataError: when the parameters name no model.
    """
    if task.params.model is None:
        raise DataError("annotations.source 'recogniser' needs annotations.model, the recogniser's folder")
    readings = read_panels(task.instances, task.panels, task.root / task.params.model, task.advance)
    return Votes(list(_recognised(task.instances, readings)))


def read_panels(
    table: pd.DataFrame, panels: PanelStore, model: Path, advance: Callable[[int], object] = lambda _count: None
) -> dict[str, Reading]:
    """What the recogniser reads in every panel that a table names, each read once.

    The table names panels in ``reference`` and ``candidates``, or in ``first`` and ``second``.
    """
    if "candidates" in table:
        refs = set(table["reference"]).union(*table["candidates"])
    else:
        refs = set(table["first"]) | set(table["second"])
    recogniser = Recogniser.from_pretrained(model)
    ordered = sorted(refs)
    found: dict[str, Reading] = {}
    for start in range(0, len(ordered), READ_BATCH):
        part = ordered[start : start + READ_BATCH]
        found.update(zip(part, recogniser.read([panels.panel(ref) for ref in part]), strict=True))
        advance(len(part))
    return found


def rank(reference: Reading, candidates: Sequence[Reading]) -> tuple[list[int], list[float], bool]:
    """Order by the share of shared traits that agree with the reference, as read.

    Candidates with equal shares are ordered by how sure the reading is (sum over agreeing traits of the
    product of both probabilities, less that of the differing ones), then by position.

    Returns:
        Positions best first, the shares, and whether two candidates have the same share.
    """
    shares, sureness = [], []
    for candidate in candidates:
        agreeing = [trait for trait in SHARED_TRAITS if reference.word(trait) == candidate.word(trait)]
        signed = [
            reference.probability[trait] * candidate.probability[trait] * (1 if trait in agreeing else -1)
            for trait in SHARED_TRAITS
        ]
        shares.append(len(agreeing) / len(SHARED_TRAITS))
        sureness.append(sum(signed))
    order = sorted(range(len(candidates)), key=lambda n: (-shares[n], -sureness[n], n))
    return order, shares, len(set(shares)) < len(shares)


def _recognised(instances: pd.DataFrame, readings: dict[str, Reading]) -> Iterator[Annotation]:
    for instance_id, reference, candidates in instance_rows(instances):
        order, shares, tied = rank(readings[reference], [readings[ref] for ref in candidates])
        yield Annotation(instance_id, "recogniser", order, shares, tied)
