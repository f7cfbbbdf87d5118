"""Automatic annotator of the storybook world: reads the traits of each panel and ranks by the number that agree."""

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
    """Rank every instance by the traits that the recogniser reads in its panels.

    Raises:
        DataError: if ``annotations.model`` is not set.
    """
    if task.params.model is None:
        raise DataError(
            "annotations.source 'recogniser' needs a model; set annotations.model to the recogniser's folder"
        )
    readings = read_instance_panels(task.instances, task.panels, task.root / task.params.model, task.advance)
    return Votes(list(_recognised(task.instances, readings)))


def read_instance_panels(
    table: pd.DataFrame, panels: PanelStore, model: Path, advance: Callable[[int], object] = lambda _count: None
) -> dict[str, Reading]:
    """The recogniser's reading of every panel in a table. Each panel is read once.

    Args:
        table: columns ``reference`` and ``candidates``, or ``first`` and ``second``, with references of panels.
        advance: called with the number of panels that were read since the last call.
    """
    if "candidates" in table:
        refs = set(table["reference"]).union(*table["candidates"])
    else:
        refs = set(table["first"]) | set(table["second"])
    recogniser = Recogniser.from_pretrained(model)
    ordered = sorted(refs)
    readings: dict[str, Reading] = {}
    for start in range(0, len(ordered), READ_BATCH):
        part = ordered[start : start + READ_BATCH]
        readings.update(zip(part, recogniser.read([panels.panel(ref) for ref in part]), strict=True))
        advance(len(part))
    return readings


def rank(reference: Reading, candidates: Sequence[Reading]) -> tuple[list[int], list[float], bool]:
    """Rank candidates by the share of shared traits that agree with the reference.

    Candidates with equal shares are ordered by the certainty of the reading, then by position. The certainty is the
    sum over agreeing traits of the product of both probabilities, minus the sum over the differing traits.

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
