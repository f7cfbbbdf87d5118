"""Editing policies before and after: what the gold metric sees, equal noise, intervals over pictures, files."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps

from paco_core.benchmarks import checks
from paco_core.benchmarks.edit_changes import compare_edits
from paco_core.benchmarks.generated import measure_edits
from paco_core.benchmarks.published import GEDIT
from paco_core.benchmarks.tables import write_tables
from paco_core.config.params import PolicyLora
from paco_core.data.prompts.edit_prompts import drawn
from paco_core.data.records.edit_records import EditRecord
from paco_core.io.contact_sheet import GAP, LINE, READABLE
from paco_core.io.files import DataError, read_json, write_json
from paco_core.painting import paint as painting
from paco_core.painting.painted import AFTER, BEFORE, Painted
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.editing import Editing
from paco_core.storybook.drawing import draw
from paco_core.storybook.recogniser import Recogniser
from paco_core.storybook.world import Panel
from paco_core.tasks.edits import EditGold
from tests.support.grpo_toys import ToyEditor, recipe

SIZE = 48


class Judge:
    """Says that more was kept the closer both pictures are, and that every edit was made; one answer fails."""

    def __init__(self, fail: int | None = None) -> None:
        self.fail, self.asked = fail, 0

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        found = []
        for query in queries:
            self.asked += 1
            if self.asked - 1 == self.fail:
                found.append(Score(math.nan, "neither Yes nor No"))
                continue
            both = [np.asarray(image, dtype=np.float64) for image in (query.first, query.second)]
            kept = 1 - np.abs(both[0] - both[1]).mean() / 255
            found.append(Score(1.0 if "accurately follow" in query.instruction else float(kept)))
        return found


def panel(record: EditRecord) -> Panel:
    assert record.before is not None
    return Panel(**record.before)  # type: ignore[arg-type]


def picture(shown: Panel, record: EditRecord) -> Image.Image:
    return draw(shown, SIZE, random.Random(record.idx))


def reference(record: Any) -> list[Image.Image]:
    return [picture(panel(record), record)]


def edited(record: EditRecord, when: str) -> Image.Image:
    """Before training nothing is edited; afterwards everything is, and nothing else."""
    shown = panel(record)
    assert record.trait is not None and record.word is not None
    return picture(shown if when == BEFORE else shown.with_trait(record.trait, record.word), record)


@pytest.fixture(scope="module")
def gold(repository: Path) -> EditGold:
    return EditGold(Recogniser.from_pretrained(repository / "data/zoo/recogniser"))


@pytest.fixture(scope="module")
def records() -> list[EditRecord]:
    return drawn(20, SIZE, 0).records


def painted(records: Sequence[EditRecord]) -> list[Painted]:
    return [
        Painted("kontext_edit", size, when, record, 0, edited(record, when))
        for size in (48, 96)
        for when in (BEFORE, AFTER)
        for record in records
    ]


def test_the_gold_metric_tells_good_edits_from_none_and_from_broken_ones(
    gold: EditGold, records: list[EditRecord]
) -> None:
    def measured(images: list[Image.Image]) -> dict[str, np.ndarray]:
        return gold.measure(RewardBatch(records, [[image] for image in images], images))

    none = measured([edited(r, BEFORE) for r in records])
    good = measured([edited(r, AFTER) for r in records])
    assert good["gold_editing"].mean() > 0.8 and good["gold_kept"].mean() > 0.95
    assert none["gold_reached"].mean() < 0.1 and none["gold_editing"].max() <= none["gold_reached"].max()
    assert none["gold_kept"].mean() > 0.95
    other = [panel(r).with_trait("species", "frog" if panel(r).species != "frog" else "cat") for r in records]
    rows = [n for n, r in enumerate(records) if r.trait != "species"]
    broken = measured([
        picture(shown.with_trait(str(r.trait), str(r.word)), r) for shown, r in zip(other, records, strict=True)
    ])  # fmt: skip
    assert broken["gold_reached"][rows].mean() > 0.8 and broken["gold_editing"][rows].mean() < 0.1
    assert broken["gold_kept"][rows].max() <= 0.8


def test_figures_are_paired_and_counted_over_pictures(gold: EditGold, records: list[EditRecord]) -> None:
    twins = [*records, *(r.model_copy(update={"idx": f"{r.idx}-cn", "language": "cn"}) for r in records)]
    pictures = [
        Painted(p.policy, p.size, p.when, r, 0, edited(r, p.when))
        for p in painted(records[:1])
        for r in twins
    ]  # fmt: skip
    table = measure_edits(pictures, reference, Editing(Judge()), gold)
    result = compare_edits(table, seeds=[0], steps=4, resamples=200)
    change = result.changes.changes["kontext_edit"][48]["gold_editing"]
    assert change.before.mean < 0.1 and change.after.mean > 0.8 and change.change.low > 0.5
    assert (change.before.count, change.before.groups) == (40, 20), "both languages of a picture are one group"
    figures = result.metrics()
    assert figures["pictures"] == 20 and figures["prompts"] == 40 and figures["failed"] == 0
    low, high = (figures[f"kontext_edit.px96.gold_editing.change_{end}"] for end in ("low", "high"))
    assert low <= figures["kontext_edit.px96.gold_editing.change"] <= high
    assert sum(row["edits"] for row in result.by_task) == 80 and {r["task_type"] for r in result.by_task} <= {
        "species", "colour", "accessory", "size", "scene", "style",
    }  # fmt: skip


def test_an_answer_that_cannot_be_told_is_counted_and_left_out(records: list[EditRecord]) -> None:
    editing = Editing(Judge(fail=1))
    table = measure_edits(painted(records), reference, editing)
    result = compare_edits(table, seeds=[0], steps=4, resamples=50)
    row = result.changes.changes["kontext_edit"][48]
    assert result.metrics()["failed"] == 1 and row["editing"].before.missing == 1
    assert "gold_editing" not in row and editing.causes == {"neither Yes nor No": 1}
    assert row["editing"].change.count == 19


def test_tables_say_what_was_measured_and_what_others_published(
    gold: EditGold, records: list[EditRecord], tmp_path: Path
) -> None:
    pictures = painted(records)
    table = measure_edits(pictures, reference, Editing(Judge()), gold)
    result = compare_edits(table, seeds=[0], steps=4, resamples=50)
    write_tables(tmp_path, "GEdit-Bench", result.tables(GEDIT))
    text = (tmp_path / "results.md").read_text()
    assert "20 instructions about 20 pictures" in text and "kontext_edit: before and after" in text
    assert "| FLUX.1-Kontext-dev with PaCo-GRPO (published) | 7.033 | 7.088 | 6.469 |" in text
    write_json(tmp_path / "results.json", result.as_dict())
    assert read_json(tmp_path / "results.json")["policies"]["kontext_edit"]["48"]["gold_editing"]["after"]["mean"] > 0.8
    write_json(tmp_path / "metrics.json", result.metrics())
    assert checks.policy_gains_edits(tmp_path / "metrics.json", "kontext_edit", 48).passed
    assert not checks.policy_gains_edits(tmp_path / "metrics.json", "qwen_edit", 48).passed
    painting.save_samples(tmp_path / "samples", pictures, table, 3, reference)
    entries = read_json(tmp_path / "samples/samples.json")
    assert len(entries) == 12 and entries[0]["prompt"] == records[0].prompt
    assert Image.open(tmp_path / "samples" / entries[0]["reference"]).tobytes() == reference(records[0])[0].tobytes()
    sheet = painting.side_by_side(pictures[:40], 5, reference)
    step = READABLE + GAP
    assert sheet.size == (5 * step - GAP, 3 * step - GAP + (1 + 4 + 4) * LINE), "policy, seed and instruction"
    second = ImageOps.contain(reference(records[1])[0].resize((48, 48)), (READABLE, READABLE))
    assert sheet.crop((step, 0, step + READABLE, READABLE)).tobytes() == second.tobytes()


def test_without_an_editing_policy_there_are_no_figures() -> None:
    import pandas as pd

    result = compare_edits(pd.DataFrame(), seeds=[0], steps=4)
    assert result.as_dict()["policies"] == {} and result.metrics()["pictures"] == 0
    assert [table.title for table in result.tables(GEDIT)] == ["GEdit-Bench (published)"]


class SavedEditor(ToyEditor):
    def load_adapter(self, folder: Path) -> None:
        self.start_from(str(folder))


def test_before_and_after_start_from_equal_noise_and_each_shape_has_its_references(
    records: list[EditRecord], tmp_path: Path
) -> None:
    import torch

    trained = SavedEditor()
    trained.add_adapter(PolicyLora(rank=2, alpha=4), 0)
    with torch.no_grad():
        trained.b += 1.0
    trained.save_adapter(tmp_path / "adapter")
    wide = records[1].model_copy(update={"height": 32, "width": 64})
    editor = SavedEditor()
    made = painting.before_and_after(
        editor, "toy", recipe(eval_sizes=[64]), tmp_path / "adapter", [records[0], wide],
        seeds=[0, 1], steps=3, reference=reference,
    )  # fmt: skip
    assert [(p.when, p.record.idx, p.seed) for p in made[:4]] == [
        (BEFORE, records[0].idx, 0), (BEFORE, records[0].idx, 1), (BEFORE, wide.idx, 0), (BEFORE, wide.idx, 1),
    ]  # fmt: skip
    assert {p.image.size for p in made if p.record.idx == records[0].idx} == {(64, 64)}
    assert {p.image.size for p in made if p.record.idx == wide.idx} == {(96, 48)}
    assert editor.encoded == [(2, [[(64, 64)], [(48, 96)]])] * 2
    again = painting.before_and_after(
        SavedEditor(), "toy", recipe(eval_sizes=[64]), tmp_path / "adapter", [records[0]],
        seeds=[0, 1], steps=3, reference=reference,
    )  # fmt: skip
    assert again[0].image.tobytes() == made[0].image.tobytes() != again[2].image.tobytes()


def test_a_prompt_without_truth_has_no_gold_metric(gold: EditGold, records: list[EditRecord]) -> None:
    bare = records[0].model_copy(update={"before": None})
    with pytest.raises(DataError, match=f"prompt {bare.idx}: the traits of its picture"):
        gold.measure(RewardBatch([bare], [reference(records[0])]))
