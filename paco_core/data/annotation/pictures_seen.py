"""What an answer is about: an instance is named by ids of grids, and a grid may be painted anew under its id."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from paco_core.io.files import DataError, digest
from paco_core.io.pictures import picture_digests

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image

    from paco_core.data.annotation.store import AnnotatorAnswer


def digest_of(panel: Callable[[str], Image], reference: str, candidates: Sequence[str]) -> str:
    """Digest of the pixels of a reference and its candidates, in their order; "" where one cannot be read."""
    try:
        return digest(picture_digests([panel(ref) for ref in (reference, *candidates)]), 16)
    except DataError:
        return ""


def present(instances: pd.DataFrame, panel: Callable[[str], Image]) -> Callable[[str], str]:
    """The digest of what each of these instances (``instance_id``, ``reference``, ``candidates``) shows now."""
    rows = instances.set_index("instance_id")[["reference", "candidates"]]
    return cache(lambda instance_id: digest_of(panel, *rows.loc[instance_id]))


def is_outdated(answer: AnnotatorAnswer, present: str) -> bool:
    """Whether an answer is about other pictures than the present ones, as far as both are known."""
    return bool(answer.pictures and present) and answer.pictures != present
