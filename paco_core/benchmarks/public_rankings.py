"""The public layout of ConsistencyRank-Bench, and scores that a judge gave elsewhere.

A folder holds ``consistency_full_rank.jsonl`` (folder, ref_image, comp_images, rank_images best first),
``prompt_data.jsonl`` (idx, theme, ...) and the pictures at ``images/<folder>/<name>``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.benchmarks.consistency_rank import Instance, Judgement
from paco_core.files import DataError, read_jsonl

if TYPE_CHECKING:
    from PIL.Image import Image

RANKINGS, PROMPTS, IMAGES = "consistency_full_rank.jsonl", "prompt_data.jsonl", "images"
CACHED_PICTURES = 2048


class PublicPanels:
    """Pictures by ``<folder>/<name>`` below ``images/``."""

    def __init__(self, source: Path) -> None:
        self.images = (source / IMAGES).resolve()
        self.panel = lru_cache(maxsize=CACHED_PICTURES)(self._read)

    def path(self, ref: str) -> Path:
        """The file of a reference.

        Raises:
            DataError: when it is missing, or lies outside the folder.
        """
        path = (self.images / ref).resolve()
        if self.images not in path.parents:
            raise DataError(f"picture {ref!r} lies outside {self.images}")
        if not path.is_file():
            raise DataError(f"{path}: no such picture")
        return path

    def _read(self, ref: str) -> Image:
        from paco_core.shards import decode_image

        path = self.path(ref)
        return decode_image(path.read_bytes(), str(path))


def read_public(source: Path) -> list[Instance]:
    """Every ranking of a folder in the public layout; all pictures are looked for, none is decoded.

    Raises:
        DataError: naming file and line, when a file, field, prompt or picture is missing, or a ranking does
            not order its candidates.
    """
    themes: dict[str, str] = {}
    for number, row in read_jsonl(source / PROMPTS):
        idx = _text(source / PROMPTS, number, row, "idx")
        themes[idx] = _text(source / PROMPTS, number, row, "theme" if row.get("theme") else "prompt")
    panels, instances = PublicPanels(source), []
    seen: set[tuple[str, ...]] = set()
    for number, row in read_jsonl(source / RANKINGS):
        place = f"{source / RANKINGS}:{number}"
        folder, reference = (_text(source / RANKINGS, number, row, name) for name in ("folder", "ref_image"))
        candidates, ranked = (_names(place, row, name) for name in ("comp_images", "rank_images"))
        if sorted(candidates) != sorted(ranked) or len(set(candidates)) < len(candidates):
            raise DataError(f"{place}: rank_images {ranked} does not order comp_images {candidates}")
        if folder not in themes:
            raise DataError(f"{place}: folder {folder!r} has no row in {PROMPTS}")
        refs = [f"{folder}/{name}" for name in (reference, *candidates)]
        for ref in refs:
            try:
                panels.path(ref)
            except DataError as error:
                raise DataError(f"{place}: {error}") from None
        if tuple(refs) in seen:
            raise DataError(f"{place}: the same reference and candidates stand in an earlier line")
        seen.add(tuple(refs))
        instances.append(
            Instance(
                instance_id=f"{refs[0]}:{number}",
                prompt_id=folder,
                theme=themes[folder],
                reference=refs[0],
                candidates=tuple(refs[1:]),
                ranking=tuple(candidates.index(name) for name in ranked),
                scores=(math.nan,) * len(candidates),
            )
        )
    if not instances:
        raise DataError(f"{source / RANKINGS}: holds no ranking")
    return instances


def judge_from_file(label: str, path: Path, instances: Sequence[Instance]) -> Judgement:
    """Scores that a judge gave elsewhere (DreamSim, a closed model): JSON Lines of reference, candidate, score.

    A pair without a row is a failure and counted; a distance must be turned into a similarity first.

    Raises:
        DataError: naming file and line, when a row lacks a field, or its score is no finite number.
    """
    known: dict[tuple[str, str], float] = {}
    for number, row in read_jsonl(path):
        pair = (_text(path, number, row, "reference"), _text(path, number, row, "candidate"))
        score = row.get("score")
        if isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score):
            raise DataError(f"{path}:{number}: score {score!r} is no finite number")
        known[pair] = float(score)
    judged = Judgement(label, [], asked=len(known))
    for instance in instances:
        found = tuple(known.get((instance.reference, candidate), math.nan) for candidate in instance.candidates)
        judged.causes["not in the file"] += sum(map(math.isnan, found))
        judged.scores.append(found)
    judged.causes = +judged.causes
    return judged


def _text(path: Path, number: int, row: dict[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str | int) or isinstance(value, bool) or value == "":
        raise DataError(f"{path}:{number}: {name} is {value!r}, expected a text")
    return str(value)


def _names(place: str, row: dict[str, Any], name: str) -> list[str]:
    value = row.get(name)
    if not isinstance(value, list) or len(value) < 2 or not all(isinstance(item, str) for item in value):
        raise DataError(f"{place}: {name} is {value!r}, expected a list of at least two picture names")
    return value
