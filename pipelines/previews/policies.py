"""What the page of a policy shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.previews.tables import pictures, table

SHOWN_PROMPTS = 6


def policy(data: Path, item: str) -> dict[str, Any]:
    """Evaluations on unseen prompts, newest first, and pictures before (above) and after training; of edits, what
    they are about on top."""
    import pandas as pd

    from paco_core.io.pictures import read_image

    folder = data / "policies" / item
    log = pd.read_csv(folder / "training_log.csv")
    measured = [name for name in log.columns if name.startswith("eval/")]
    rows = log.dropna(subset=measured, how="all")[["epoch", *measured]]
    shown: dict[str, Any] = {"evaluations": table(rows.iloc[::-1])}
    before = sorted((folder / "samples" / "before").rglob("*.png"))[:SHOWN_PROMPTS]
    after = [folder / "samples" / "after" / path.relative_to(folder / "samples" / "before") for path in before]
    if before and all(path.is_file() for path in after):
        about = [folder / "samples" / "reference" / f"{path.stem.rpartition('-')[0]}.png" for path in before]
        edits = all(path.is_file() for path in about)
        images = [read_image(path) for path in ((*about, *before, *after) if edits else (*before, *after))]
        words = "reference, before, after" if edits else "before above after"
        shown["contact_sheet"] = pictures(images, len(before), f"{item}: {words}")
    return shown


SHOWN = {"policies": policy}
