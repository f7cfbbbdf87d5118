"""Editing policies of a finished project, for tests of the report: drawn pictures, made-up figures and logs."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL.Image import Image

from paco_core.benchmarks.edit_changes import compare_edits
from paco_core.benchmarks.published import GEDIT
from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.records.edit_records import EditRecord
from paco_core.io import paths
from paco_core.io.files import write_json
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.sampling.generation import save_samples
from paco_core.storybook.drawing import draw
from paco_core.storybook.world import Panel

ENDS = {"gold_editing": (0.3, 0.5), "gold_reached": (0.5, 0.6), "gold_kept": (0.8, 0.9), "editing": (0.4, 0.6)}
NUM_SAMPLES = 4


def picture(record: Any, *, size: int, edited: bool = False) -> Image:
    """What a drawn editing prompt is about, or what it asks for."""
    assert isinstance(record, EditRecord) and record.before is not None
    panel = Panel(**record.before)  # type: ignore[arg-type]
    return draw(panel.with_trait(str(record.trait), str(record.word)) if edited else panel, size, random.Random(1))


def write_gedit(root: Path, sizes_of: Mapping[str, Sequence[int]]) -> list[EditRecord]:
    """The benchmark's outs and the training logs of editing policies, by name with their evaluation sizes."""
    smallest = min(side for sizes in sizes_of.values() for side in sizes)
    records, noise = storybook_edit_prompts(6, smallest, 0).records, np.random.default_rng(0)
    images, rows = [], []
    for name, sizes in sizes_of.items():
        write_log(root, name, sizes)
        for size in sizes:
            for phase in (BEFORE, AFTER):
                for record in records:
                    image = picture(record, size=size, edited=phase == AFTER)
                    images.append(GeneratedImage(name, size, phase, record, 0, image))
                    about = {"picture": record.references[0], "task_type": record.task_name, "language": "en"}
                    identity = {"policy": name, "size": size, "when": phase, "prompt_id": record.idx, "seed": 0}
                    scores = {n: float(ends[phase == AFTER] + noise.normal(0, 0.02)) for n, ends in ENDS.items()}
                    rows.append(identity | about | scores)
    table = pd.DataFrame(rows)
    result = compare_edits(table, seeds=[0], steps=4, resamples=50)
    published = [row.as_dict() for row in GEDIT]
    (root / paths.GEDIT).mkdir(parents=True)
    write_json(root / paths.GEDIT / "results.json", {**result.as_dict(), "published": published})
    samples = root / paths.GEDIT / "samples"
    save_samples(samples, images, table, NUM_SAMPLES, lambda sample: [picture(sample, size=smallest)])
    return records


def write_log(root: Path, name: str, sizes: Sequence[int]) -> None:
    log = pd.DataFrame({"epoch": [0, 1, 2], "reward/editing": [np.nan, 0.4, 0.5]})
    log["reference_distance"] = [np.nan, 0.2, 0.19]
    for size in sizes:
        log[f"eval/{size}/gold_editing"] = [0.3, np.nan, 0.5]
    (root / paths.POLICIES / name).mkdir(parents=True)
    log.to_csv(root / paths.POLICIES / name / "training_log.csv", index=False)
