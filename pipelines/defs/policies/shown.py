"""What the page of a policy shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.defs.tables import pictures, table

SHOWN_PROMPTS = 6


def policy(data: Path, item: str) -> dict[str, Any]:
    """Evaluations on unseen prompts, newest first, and pictures before (above) and after training."""
    import pandas as pd
    from PIL import Image

    folder = data / "policies" / item
    log = pd.read_csv(folder / "training_log.csv")
    measured = [name for name in log.columns if name.startswith("eval/")]
    rows = log.dropna(subset=measured, how="all")[["epoch", *measured]]
    shown: dict[str, Any] = {"evaluations": table(rows.iloc[::-1])}
    before = sorted((folder / "samples" / "before").rglob("*.png"))[:SHOWN_PROMPTS]
    after = [folder / "samples" / "after" / path.relative_to(folder / "samples" / "before") for path in before]
    if before and all(path.is_file() for path in after):
        images = [Image.open(path) for path in (*before, *after)]
        shown["contact_sheet"] = pictures(images, len(before), f"{item}: before above after")
    return shown


SHOWN = {"policies": policy}
