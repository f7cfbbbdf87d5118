"""Editing policies before and after: what the gold metric sees, equal noise, intervals over pictures, files."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image, ImageOps

from paco_core.benchmarks import checks
from paco_core.benchmarks.edit_changes import compare_edits
from paco_core.benchmarks.generated import measure_edits
from paco_core.data.prompts.edit_prompts import storybook_edit_prompts
from paco_core.data.records.edit_records import EditRecord
from paco_core.io.contact_sheet import GAP, READABLE
from paco_core.io.files import read_json, write_json
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing
from paco_core.sampling import generation
from paco_core.sampling.generated_image import AFTER, BEFORE, GeneratedImage
from paco_core.storybook.drawing import draw
from paco_core.storybook.recogniser import Recogniser
from paco_core.storybook.world import Panel
from paco_core.tasks.edits import EditGold

SIZE = 48


class Judge:
    """Says that more was kept the closer both pictures are, and that every edit was made; one answer fails."""

    def __init__(self, fail: int | None = None) -> None:
        self.fail, self.num_queries = fail, 0

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        scores = []
        for query in queries:
            self.num_queries += 1
            if self.num_queries - 1 == self.fail:
                scores.append(Score(math.nan, "neither Yes nor No"))
                continue
            images = [np.asarray(image, dtype=np.float64) for image in (query.first, query.second)]
            similarity = 1 - np.abs(images[0] - images[1]).mean() / 255
            scores.append(Score(1.0 if "accurately follow" in query.instruction else float(similarity)))
        return scores


def panel(record: EditRecord) -> Panel:
    assert record.before is not None
    return Panel(**record.before)  # type: ignore[arg-type]


def picture(scene: Panel, record: EditRecord) -> Image.Image:
    return draw(scene, SIZE, random.Random(record.idx))


def reference(record: Any) -> list[Image.Image]:
    return [picture(panel(record), record)]


def edited(record: EditRecord, phase: str) -> Image.Image:
    """Before training nothing is edited; afterwards everything is, and nothing else."""
    scene = panel(record)
    assert record.trait is not None and record.word is not None
    return picture(scene if phase == BEFORE else scene.with_trait(record.trait, record.word), record)


@pytest.fixture(scope="module")
def gold(repository: Path) -> EditGold:
    return EditGold(Recogniser.from_pretrained(repository / "data/zoo/recogniser"))


@pytest.fixture(scope="module")
def records() -> list[EditRecord]:
    return storybook_edit_prompts(20, SIZE, 0).records


def generated_images(records: Sequence[EditRecord]) -> list[GeneratedImage]:
    return [
        GeneratedImage("kontext_edit", size, phase, record, 0, edited(record, phase))
        for size in (48, 96)
        for phase in (BEFORE, AFTER)
        for record in records
    ]


def test_the_gold_metric_tells_good_edits_from_none_and_from_broken_ones(
    gold: EditGold, records: list[EditRecord]
) -> None:
    def measured(images: list[Image.Image]) -> dict[str, np.ndarray]:
        return gold.measure(RewardBatch(records, [[image] for image in images], images))

    none, good = (measured([edited(r, phase) for r in records]) for phase in (BEFORE, AFTER))
    assert good["gold_editing"].mean() > 0.8 and good["gold_kept"].mean() > 0.95
    assert none["gold_reached"].mean() < 0.1 and none["gold_kept"].mean() > 0.95
    other = [panel(r).with_trait("species", "frog" if panel(r).species != "frog" else "cat") for r in records]
    rows = [n for n, r in enumerate(records) if r.trait != "species"]
    broken = measured(
        [picture(p.with_trait(str(r.trait), str(r.word)), r) for p, r in zip(other, records, strict=True)]
    )
    assert broken["gold_reached"][rows].mean() > 0.8 and broken["gold_editing"][rows].mean() < 0.1
    assert broken["gold_kept"][rows].max() <= 0.8


def test_figures_are_paired_and_counted_over_pictures(
    gold: EditGold, records: list[EditRecord], tmp_path: Path
) -> None:
    twins = [*records, *(r.model_copy(update={"idx": f"{r.idx}-cn", "language": "cn"}) for r in records)]
    pictures = [
        GeneratedImage(p.policy, p.size, p.when, r, 0, edited(r, p.when))
        for p in generated_images(records[:1])
        for r in twins
    ]  # fmt: skip
    table = measure_edits(pictures, reference, Editing(Judge()), gold)
    result = compare_edits(table, seeds=[0], steps=4, resamples=200)
    change = result.changes.changes["kontext_edit"][48]["gold_editing"]
    assert change.before.mean < 0.1 and change.after.mean > 0.8 and change.change.low > 0.5
    assert (change.before.count, change.before.groups) == (40, 20), "both languages of a picture are one group"
    figures = result.metrics()
    assert figures["pictures"] == 20 and figures["prompts"] == 40 and figures["failed"] == 0
    assert sum(row["edits"] for row in result.by_task) == 80
    write_json(tmp_path / "metrics.json", figures)
    assert checks.policy_gains_edits(tmp_path / "metrics.json", "kontext_edit", 48).passed
    assert not checks.policy_gains_edits(tmp_path / "metrics.json", "qwen_edit", 48).passed


def test_an_answer_that_cannot_be_told_is_counted_and_left_out(records: list[EditRecord]) -> None:
    editing = Editing(Judge(fail=1))
    table = measure_edits(generated_images(records), reference, editing)
    result = compare_edits(table, seeds=[0], steps=4, resamples=50)
    row = result.changes.changes["kontext_edit"][48]
    assert result.metrics()["failed"] == 1 and row["editing"].before.missing == 1
    assert "gold_editing" not in row and editing.causes == {"neither Yes nor No": 1}
    assert row["editing"].change.count == 19


def test_samples_and_sheets_show_the_reference_of_each_edit(records: list[EditRecord], tmp_path: Path) -> None:
    pictures = generated_images(records)
    table = measure_edits(pictures, reference, Editing(Judge()))
    generation.save_samples(tmp_path, pictures, table, 3, reference)
    entries = read_json(tmp_path / "samples.json")
    assert len(entries) == 12 and entries[0]["prompt"] == records[0].prompt
    assert Image.open(tmp_path / entries[0]["reference"]).tobytes() == reference(records[0])[0].tobytes()
    sheet = generation.side_by_side(pictures[:40], 5, reference)
    second = ImageOps.contain(reference(records[1])[0].resize((48, 48)), (READABLE, READABLE))
    step = READABLE + GAP
    assert sheet.crop((step, 0, step + READABLE, READABLE)).tobytes() == second.tobytes()


def test_without_an_editing_policy_there_are_no_figures() -> None:
    result = compare_edits(pd.DataFrame(), seeds=[0], steps=4)
    assert result.as_dict()["policies"] == {} and result.metrics()["pictures"] == 0
