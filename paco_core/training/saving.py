"""What is trained is saved once before anything is trained."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path


def try_to_save(save: Callable[[Path], None]) -> None:
    """Save into a folder that is removed again: what cannot be saved is found now, and not after the last epoch.

    Args:
        save: writes to the folder it is given, which is not there yet; raises where it cannot, or leaves out a tensor.
    """
    with tempfile.TemporaryDirectory(prefix="paco-adapter-") as place:
        save(Path(place) / "adapter")
