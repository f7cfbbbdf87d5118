"""Seeds: random draws and random orders that depend on names only."""

from __future__ import annotations

import hashlib


def seed_of(*names: object) -> int:
    """63 bits of the SHA-256 of ``names`` joined by ``|``: the same on every machine, rank and batch size."""
    text = "|".join(map(str, names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def random_key(*names: object) -> str:
    """SHA-256 of ``names`` joined by ``|``: a key that sorts named things into a random order, the same everywhere."""
    return hashlib.sha256("|".join(map(str, names)).encode()).hexdigest()
