"""Which prompts a diverse subset restores and drops, by hand."""

from __future__ import annotations

import numpy as np

from paco_core.data.prompts.diversify import _restore, _trim

A, B = ("a", "x"), ("b", "y")


def at(*degrees: float) -> np.ndarray:
    """Embeddings of unit length in these directions."""
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1)


def test_an_emptied_subcategory_gets_its_first_prompt_back() -> None:
    assert _restore([0], [A, A, B, B]) == [0, 2]
    assert _restore([3], [A, A, B, B]) == [0, 3]
    assert _restore([0, 3], [A, A, B, B]) == [0, 3]


def test_the_surplus_goes_from_the_largest_subcategory_most_similar_and_latest_first() -> None:
    """Prompts 1 and 2 are 10 degrees apart, 3 lies 40 from them, 0 and 4 are of the other subcategory."""
    embeddings, groups = at(0, 90, 100, 140, 200), [B, A, A, A, B]
    kept = [0, 1, 2, 3, 4]
    assert _trim(embeddings, kept, groups, 5) == kept
    assert _trim(embeddings, kept, groups, 4) == [0, 1, 3, 4], "of two equally similar ones the later"
    # Now both subcategories have two: the later name loses, of which 4 is nearer to another kept prompt (3).
    assert _trim(embeddings, kept, groups, 3) == [0, 1, 3]
    assert _trim(embeddings, kept, groups, 2) == [0, 3]
