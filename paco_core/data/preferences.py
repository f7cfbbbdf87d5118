"""The best and the worst picture of a prompt, from rankings: what a policy can learn from without a judge."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paco_core.data.annotation.agreement import kendall_w
from paco_core.data.annotation.votes import is_permutation
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord, parse_ref
from paco_core.data.tables import parse_numbers, parse_text, read_rows
from paco_core.io.files import DataError
from paco_core.io.pictures import image_size, read_image
from paco_core.io.rejected import Rejected

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

FILE = "rankings.jsonl"
KEYS = ("prompt_id", "pictures", "ranking")
#: Widths per height that differ by less, relative to each other, count as equal.
PROPORTIONS_TOLERANCE = 0.02


@dataclass(frozen=True)
class Preference:
    """Names of two pictures of one prompt."""

    best: str
    worst: str


@dataclass(frozen=True)
class Preferences:
    """The pair of each prompt, by prompt id.

    Attributes:
        read: the picture of a name.
    """

    pairs: Mapping[str, Preference]
    read: Callable[[str], Image]

    def pictures(self, prompt_id: str) -> tuple[Image, Image]:
        """The best and the worst picture of a prompt.

        Raises:
            DataError: naming the picture, where it is missing or damaged.
        """
        pair = self.pairs[prompt_id]
        return self.read(pair.best), self.read(pair.worst)

    def at_image_size(self, record: PromptRecord, record_size: str) -> PromptRecord:
        """A training record with the height and width of its images, if their proportions are not the record's.

        Args:
            record_size: of the recipe.

        Raises:
            DataError: naming the prompt and its images, if their proportions differ from each other, or from a size
                that cannot change: ``record_size`` is not ``aspect``, or the record is an edit of its reference.
        """
        pair, (best, worst) = self.pairs[record.idx], self.pictures(record.idx)
        size = (1, 1) if record_size == "ignore" else (record.width, record.height)
        images = f"prompt {record.idx}: its best image {pair.best} has {best.width} x {best.height} px"
        if not have_equal_proportions(best.size, worst.size):
            raise DataError(
                f"{images}, its worst image {pair.worst} {worst.width} x {worst.height}; expected equal proportions"
            )
        if have_equal_proportions(best.size, size):
            return record
        if record_size != "aspect" or isinstance(record, EditRecord):
            raise DataError(
                f"{images}; expected the proportions of the record, {size[0]} x {size[1]} (record_size {record_size}); "
                "crop its images, or leave the prompt out"
            )
        return record.model_copy(update={"width": best.width, "height": best.height})


def have_equal_proportions(first: tuple[int, int], second: tuple[int, int]) -> bool:
    """Whether two sizes, (width, height) in pixels, have equal proportions up to :data:`PROPORTIONS_TOLERANCE`."""
    return math.isclose(first[0] * second[1], first[1] * second[0], rel_tol=PROPORTIONS_TOLERANCE)


class _Ranked(NamedTuple):
    """One ranked instance: panels of one grid, their order, best first, and their scores, where there are any."""

    prompt_id: str
    candidates: Sequence[str]
    ranking: Sequence[int]
    scores: Any  # a list or an array of floats, or None


def preferences_of_grids(instances: pd.DataFrame, annotations: pd.DataFrame) -> dict[str, Preference]:
    """The most and the least consistent grid of each prompt; none of a prompt whose grids are equally consistent.

    No instance shows two panels of one grid together, but each reference is compared with all panels of a grid, and
    panels that look alike answer alike. Where every ranking of a prompt has scores, the inconsistency of a grid is the
    mean distance between the scores of two panels with the same reference. Else it is Kendall's coefficient of
    concordance W (1939) of the rankings of its panels: where all references agree which panel is the odd one, W is
    1; where the panels are alike, chance orders them, and W is near 0.

    Args:
        instances: columns ``instance_id``, ``prompt_id``, ``candidates``.
        annotations: columns ``instance_id``, ``ranking``, ``scores``; one row an instance at most.
    """
    prompts: dict[str, dict[str, list[_Ranked]]] = defaultdict(lambda: defaultdict(list))
    joined = instances.merge(annotations, on="instance_id", validate="one_to_one")
    for row in map(_Ranked._make, joined[list(_Ranked._fields)].itertuples(index=False)):
        prompts[row.prompt_id][parse_ref(row.candidates[0])[0]].append(row)
    preferences = {}
    for prompt_id, grids in prompts.items():
        scored = all(_has_scores(row.scores) for rows in grids.values() for row in rows)
        measure = _distance if scored else _concordance
        pair = _extremes({grid: measure(rows) for grid, rows in grids.items()})
        if pair is not None:
            preferences[prompt_id] = pair
    return preferences


def _has_scores(scores: Any) -> bool:
    return scores is not None and len(scores) > 0 and not any(math.isnan(score) for score in scores)


def _distance(rows: Sequence[_Ranked]) -> float:
    """Mean |score - score| over references and pairs of panels."""
    scores = np.array([list(row.scores) for row in rows], dtype=np.float64)
    first, second = np.triu_indices(scores.shape[1], 1)
    return float(np.abs(scores[:, first] - scores[:, second]).mean())


def _concordance(rows: Sequence[_Ranked]) -> float:
    """Kendall's W of the rankings; 0 for a single panel."""
    rankings = [[int(panel) for panel in row.ranking] for row in rows]
    return kendall_w(rankings) if len(rankings[0]) > 1 else 0.0


def _extremes(badness: Mapping[str, float]) -> Preference | None:
    """The least bad and the worst, the first by name among equals; None where all are equal up to rounding."""
    order = sorted(badness, key=lambda name: (round(badness[name], 9), name))
    if not order or round(badness[order[0]], 9) == round(badness[order[-1]], 9):
        return None
    worst = min(name for name in order if round(badness[name], 9) == round(badness[order[-1]], 9))
    return Preference(order[0], worst)


def read_preferences(folder: Path, prompts: Collection[str], rejected: Rejected) -> Preferences:
    """People's rankings of whole pictures: ``rankings.jsonl`` beside the pictures that it names.

    A line is ``{"prompt_id": ..., "pictures": [file, ...], "ranking": [places in ``pictures``, best first]}``. A
    prompt may have several, of several people: pictures are ordered by their mean place. Where all means are equal
    there is no pair.

    Args:
        prompts: ids of the prompts that there are.
        rejected: takes rows that cannot be used: an unknown prompt, fewer than two pictures or one twice, a ranking
            that does not name each once, a file that is missing or outside the folder, a best and a worst image of
            different proportions.

    Raises:
        DataError: when there is no such file.
    """
    file = folder / FILE
    if not file.is_file():
        raise DataError(f"{file}: no such file; a folder of preferences contains {FILE} next to its images")
    places: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for place, row in read_rows(file, rejected, KEYS):
        try:
            prompt_id, pictures, ranking = _ranked(row, prompts, folder)
        except DataError as error:
            rejected.add(place, str(error))
            continue
        for rank, number in enumerate(ranking):
            places[prompt_id][pictures[number]].append(rank / (len(ranking) - 1))
    pairs = {}
    for prompt_id, ranks in places.items():
        pair = _extremes({name: float(np.mean(mean_places)) for name, mean_places in ranks.items()})
        if pair is None:
            continue
        try:
            sizes = image_size(folder / pair.best), image_size(folder / pair.worst)
            if not have_equal_proportions(*sizes):
                raise DataError(f"{pair.best} and {pair.worst} have different proportions: {sizes[0]}, {sizes[1]} px")
            pairs[prompt_id] = pair
        except DataError as error:
            rejected.add(f"{file}, prompt {prompt_id}", f"picture: {error}")
    return Preferences(pairs, lambda name: read_image(folder / name))


def _ranked(row: Mapping[str, Any], prompts: Collection[str], folder: Path) -> tuple[str, list[str], list[int]]:
    if missing := [key for key in KEYS if row.get(key) in (None, "")]:
        raise DataError(f"record: key {missing[0]!r} is missing")
    prompt_id, pictures, ranking = (
        parse_text(row["prompt_id"], "prompt_id"),
        row["pictures"],
        parse_numbers(row["ranking"]),
    )
    if prompt_id not in prompts:
        raise DataError(f"prompt: there is no prompt {prompt_id}")
    if not isinstance(pictures, list) or len(pictures) < 2 or not all(isinstance(name, str) for name in pictures):
        raise DataError(f"pictures: {pictures!r} is not a list of two or more file names")
    if len(set(pictures)) != len(pictures):
        raise DataError(f"pictures: {pictures!r} names one twice")
    if not isinstance(ranking, list) or not is_permutation(ranking, len(pictures)):
        raise DataError(f"ranking: {row['ranking']!r} does not order pictures 0 to {len(pictures) - 1}, each once")
    for name in pictures:
        if not (folder / name).resolve().is_relative_to(folder.resolve()):
            raise DataError(f"picture: {name!r} lies outside {folder}")
        if not (folder / name).is_file():
            raise DataError(f"picture: {name!r} is not in {folder}")
    return prompt_id, pictures, [int(number) for number in ranking]
