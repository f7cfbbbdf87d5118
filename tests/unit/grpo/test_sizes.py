"""A training on records of several proportions and sizes, on a toy policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from paco_core.grpo.sampling import split_batches
from paco_core.grpo.sizes import picture_size, side_multiple_of, validate_sizes
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import Brightness, recipe, record, trainer


def shaped(number: int, height: int, width: int) -> Any:
    return record(number).model_copy(update={"height": height, "width": width})


@given(rows=st.integers(1, 4), columns=st.integers(1, 8))
def test_a_panel_keeps_the_pixels_that_it_has_among_2x2(rows: int, columns: int) -> None:
    wide = shaped(0, 512 * rows, 512 * columns).model_copy(update={"layout": f"{rows}x{columns}"})
    expected = (64, 64) if rows == columns == 1 else (32 * rows, 32 * columns)
    assert picture_size(wide, 64, "aspect", 16) == expected
    assert picture_size(wide, 64, "ignore", 16) == (64, 64)


def test_panels_that_are_not_square_keep_their_proportions_and_area() -> None:
    wide = shaped(0, 512, 2048).model_copy(update={"layout": "1x2"})  # two panels of 1:2
    assert picture_size(wide, 64, "aspect", 8) == (24, 88)  # 22.6 x 90.5: half of 64 x 64, in steps of 8 px
    assert picture_size(shaped(0, 512, 2048), 64, "aspect", 8) == (32, 128), "2x2 as before"


def test_layouts_are_trained_together_in_batches_of_their_own(tmp_path: Path) -> None:
    """Each record's picture is cut into its own panels, and unseen prompts have figures by layout."""

    class Counting(Brightness):
        panels: ClassVar[set[tuple[str, int, tuple[int, int]]]] = set()

        def __call__(self, batch: RewardBatch) -> np.ndarray:
            for panel_record, panels in zip(batch.records, batch.panels, strict=True):
                self.panels.add((panel_record.layout, len(panels), panels[0].size))
            return super().__call__(batch)

    def of(number: int, layout: str) -> Any:
        rows, columns = (int(n) for n in layout.split("x"))
        return shaped(number, 16 * rows, 16 * columns).model_copy(update={"layout": layout})

    train = [of(0, "2x2"), of(1, "1x3"), of(2, "2x3"), of(3, "1x3")]
    unseen = [of(20, "1x3"), of(21, "2x2"), of(22, "1x3")]
    policy_trainer = trainer(
        train=train, unseen=unseen, recipe=recipe(epochs=1, eval_sizes=[32]), rewards={"brightness": Counting()}
    )
    outcome = policy_trainer.run(tmp_path, tmp_path / "checkpoint")
    assert Counting.panels == {("2x2", 4, (16, 16)), ("1x3", 3, (16, 16)), ("2x3", 6, (16, 16))}
    assert outcome.rows[1]["update/trained"] == 24 and outcome.rows[1]["update/ratio_gap"] < 1e-6
    means = {layout: outcome.after[f"32/brightness/{layout}"] for layout in ("1x3", "2x2")}
    assert outcome.after["32/brightness"] == pytest.approx((2 * means["1x3"] + means["2x2"]) / 3)
    assert outcome.metrics()["eval.32.brightness.1x3.after"] == means["1x3"] and "32/brightness/1x3" in outcome.changes


def test_a_records_own_size_wins_where_asked_for(tmp_path: Path) -> None:
    train = [shaped(n, 64, 32) for n in range(4)]
    policy_trainer = trainer(train=train, recipe=recipe(record_size="exact", epochs=1))
    experience, _ = policy_trainer.epochs.gather(0)
    assert [bucket.sampling.size for bucket in experience.buckets] == [(64, 32)]
    policy_trainer.run(tmp_path, tmp_path / "checkpoint")
    pictures = [Image.open(p).size for p in (tmp_path / "samples" / "after" / "64").iterdir()]
    assert set(pictures) == {(32, 32)}, "the unseen records name 32 x 32, whatever the evaluation's size"


@pytest.mark.parametrize(
    ("pictures", "most", "shares", "together", "sizes"),
    [
        (16, 16, 1, 1, [16]),
        (7, 4, 1, 1, [4, 3]),  # one process has full batches
        (16, 16, 7, 1, [3, 3, 2, 2, 2, 2, 2]),
        (16, 2, 7, 1, [2] * 2 + [1] * 12),
        (3, 4, 7, 1, [1, 1, 1]),
        (12, 6, 4, 3, [3, 3, 3, 3]),  # three seeds a prompt, which a groupwise reward compares
        (12, 2, 3, 3, [3, 3, 3, 3]),
    ],
)
def test_an_evaluations_batches_are_shared_out(
    pictures: int, most: int, shares: int, together: int, sizes: list[int]
) -> None:
    places = list(range(5, 5 + pictures))
    batches = split_batches(places, most, shares, together)
    assert [len(part) for part in batches] == sizes and [place for part in batches for place in part] == places
    assert all(part[0] % together == places[0] % together for part in batches)


@pytest.mark.parametrize(
    ("layout", "record", "changes", "message"),
    [
        ("2x2", {}, {"train_size": 72}, "72 x 72 .* 64 x 64"),
        ("2x2", {}, {"eval_sizes": [64, 72]}, "72 x 72 .* 64 x 64"),
        ("2x2", {"width": 72}, {"record_size": "exact"}, "64 x 72 .* 64 x 64"),
        ("1x3", {}, {"record_size": "ignore"}, "64 x 64 .* 1x3 .* 64 x 48"),
        ("1x3", {"width": 192}, {"train_size": 48}, "24 x 72 .* 1x3 .* 32 x 96"),  # 2x2 would divide
    ],
)
def test_a_size_that_tokens_or_panels_do_not_divide_is_refused_with_the_nearest(
    layout: str, record: dict[str, Any], changes: dict[str, Any], message: str
) -> None:
    plain, other = shaped(0, 64, 64), shaped(1, 64, 64).model_copy(update={"layout": layout, **record})
    with pytest.raises(DataError, match=message):
        validate_sizes([plain, other], recipe(**{"train_size": 64, "eval_sizes": [64], **changes}), 16)


def test_the_side_multiple_is_that_of_the_configuration(tmp_path: Path) -> None:
    assert side_multiple_of(tmp_path, "flux") is None
    for model, family, multiple in (
        ("black-forest-labs/FLUX.1-dev", "flux", 16),
        ("Qwen/Qwen-Image-2.1", "qwen_image_21", 32),
    ):
        assert side_multiple_of(tmp_path / model, family) == multiple, "of the hub, and not here yet"
    for part, config in (("transformer", {}), ("vae", {"block_out_channels": [8, 8, 8, 8]})):
        (tmp_path / part).mkdir()
        (tmp_path / part / "config.json").write_text(json.dumps(config))
    assert side_multiple_of(tmp_path, "flux") == 16
    for steps, family, multiple in ((3, "qwen_image", 16), (4, "qwen_image_21", 32)):
        (tmp_path / "vae/config.json").write_text(json.dumps({"temperal_downsample": [False] + [True] * (steps - 1)}))
        assert side_multiple_of(tmp_path, family) == multiple
