"""What an answer is about: an instance is named by ids of grids, and a grid may be painted anew under its id."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from paco_core.data.records.records import parse_ref
from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digest

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.data.annotation.store import AnnotatorAnswer


class PanelDigests:
    """Digests of the pixels of panels. Each panel is read once.

    Args:
        panel: reads a panel by its reference, ``GRID_ID#NUMBER``.
        versions: of grids, by id (:meth:`paco_core.data.records.panels.PanelStore.versions`).
        known: ``VERSION#NUMBER`` -> digest of that panel. Such a panel is not read.
    """

    def __init__(
        self,
        panel: Callable[[str], Image],
        versions: Mapping[str, str] | None = None,
        known: Mapping[str, str] | None = None,
    ) -> None:
        self._panel, self._versions = panel, versions or {}
        self._known, self._new = dict(known or {}), dict[str, str]()

    def __call__(self, ref: str) -> str:
        key = self._key(ref)
        if key not in self._known:
            self._known[key] = picture_digest(self._panel(ref))
            if key != ref:
                self._new[key] = self._known[key]
        return self._known[key]

    def _key(self, ref: str) -> str:
        if not self._versions:
            return ref
        grid, number = parse_ref(ref)
        return f"{self._versions[grid]}#{number}" if grid in self._versions else ref

    def new(self) -> dict[str, str]:
        """Those of known versions that were read since the last call, as ``known`` has them."""
        new, self._new = self._new, {}
        return new

    def of_instance(self, reference: str, candidates: Sequence[str]) -> str:
        """Digest of the pixels of a reference and its candidates, in their order; "" where one cannot be read."""
        try:
            return digest([self(ref) for ref in (reference, *candidates)], 16)
        except DataError:
            return ""


def digest_of(panel: Callable[[str], Image], reference: str, candidates: Sequence[str]) -> str:
    """:meth:`PanelDigests.of_instance` of one instance."""
    return PanelDigests(panel).of_instance(reference, candidates)


def present(instances: pd.DataFrame, panel: Callable[[str], Image]) -> Callable[[str], str]:
    """The digest of what each of these instances (``instance_id``, ``reference``, ``candidates``) shows now."""
    digests = PanelDigests(panel)
    columns = instances[["instance_id", "reference", "candidates"]]
    rows = {name: (reference, candidates) for name, reference, candidates in columns.itertuples(index=False)}
    return cache(lambda instance_id: digests.of_instance(*rows[instance_id]))


def is_outdated(answer: AnnotatorAnswer, present: str) -> bool:
    """Whether an answer is about other pictures than the present ones, as far as both are known."""
    return bool(answer.pictures and present) and answer.pictures != present
