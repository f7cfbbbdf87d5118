"""What the pages of the reward's assets show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pipelines.previews.tables import pictures, table


def validations(data: Path, _item: str) -> dict[str, Any]:
    """The rows of the training log that measured the held-out pairs, newest first."""
    import pandas as pd

    file = data / "reward_lora" / "training_log.csv"
    if not file.is_file():
        return {}  # published weights
    log = pd.read_csv(file)
    measured = [name for name in log.columns if name.startswith("validation_")]
    rows = log.dropna(subset=measured, how="all")[["step", "epoch", *measured]]
    return {"validations": table(rows.iloc[::-1])}


def golden_pairs(data: Path, _item: str) -> dict[str, Any]:
    """The pairs that every server of this model must score alike, first beside second."""
    import pandas as pd

    from paco_core.io.files import read_json
    from paco_core.io.pictures import read_image

    folder = data / "reward_merged"
    pairs = read_json(folder / "golden.json")["pairs"]
    images = [read_image(folder / pair[side]) for pair in pairs for side in ("first", "second")]
    return {
        "golden_pairs": table(pd.DataFrame([{"score": p["score"], "question": p["instruction"]} for p in pairs])),
        "contact_sheet": pictures(images, 2, "golden pairs, first and second"),
    }


SHOWN = {"reward_lora": validations, "reward_merged": golden_pairs}
