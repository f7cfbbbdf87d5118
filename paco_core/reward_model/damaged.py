"""What libraries raise for weights that are cut off or damaged, as one clear error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from paco_core.io import paths
from paco_core.io.files import DataError
from paco_core.io.hub import explained


@contextmanager
def reading(source: str | Path) -> Iterator[None]:
    """Read a model or an adapter in the block.

    Args:
        source: its folder, or its hub id.

    Raises:
        DataError: naming the source, when a file of it is missing, cut off or damaged, with what makes it anew; of a
            hub, see :func:`paco_core.io.hub.explained`.
    """
    try:
        yield
    except (SafetensorError, json.JSONDecodeError, UnicodeDecodeError, RecursionError, OSError) as error:
        if message := explained(source, error):
            raise DataError(message) from None
        stage = paths.producer(source) if isinstance(source, Path) else None
        remedy = f"run `dvc repro {stage}`" if stage else "replace it with a complete copy"
        cause = " ".join(str(error).split())[:300]
        raise DataError(f"{source}: cannot be read ({cause}); is one of its files truncated? {remedy}") from None
