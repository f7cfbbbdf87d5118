"""A training on records of several proportions and sizes, on a toy policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.grpo.evaluation import by_layout
from paco_core.grpo.sampling import split_batches
from paco_core.grpo.sizes import picture_size
from paco_core.rewards.base import RewardBatch
from tests.support.grpo_toys import Brightness, ToyPolicy, recipe, record, trainer


def shaped(number: int, height: int, width: int) -> Any:
    return record(number).model_copy(update={"height": height, "width": width})


def test_mixed_sizes_go_into_batches_of_their_own(tmp_path: Path) -> None:
    """Proportions are the record's: 32 px and 1:4 is 16 x 64; every batch that is painted holds one size."""

    class Watched(ToyPolicy):
        def velocity(self, latents: Any, sigma: Any, condition: Any, guidance: Any, size: Any) -> torch.Tensor:
            self.calls[str(size)] += len(latents)
            assert latents.shape[1] == size[0] * size[1] // 256
            return super().velocity(latents, sigma, condition, guidance, size)

    train = [record(0), shaped(1, 512, 2048), record(2), shaped(3, 512, 2048)]
    unseen = [shaped(20, 2048, 512), record(21)]
    rule = recipe(epochs=2, train_batch=64)
    given = trainer(policy=Watched(), train=train, unseen=unseen, recipe=rule, multiple=None)  # panels of 8 px
    outcome = given.run(tmp_path, tmp_path / "checkpoint")
    policy: Any = given.learner.policy
    rolled_out = 2 * 2 * 6 * 4  # epochs x prompts of the size x group x steps
    assert policy.calls["(16, 64)"] == rolled_out + 2 * 2 * 6  # and one trained pass a sample
    assert {name for name in policy.calls if name.startswith("(")} == {
        "(32, 32)",
        "(16, 64)",
        "(64, 16)",
        "(128, 32)",
        "(64, 64)",
    }
    assert outcome.rows[1]["update/ratio_gap"] < 1e-6 and outcome.rows[1]["update/trained"] == 24
    assert Image.open(tmp_path / "samples" / "after" / "64" / "p20-0.png").size == (32, 128)


@pytest.mark.parametrize(
    ("layout", "size"),
    [
        ("2x2", (64, 64)),
        ("1x1", (64, 64)),
        *((f"1x{n}", (32, 32 * n)) for n in range(2, 8)),
        ("2x1", (64, 32)),
        ("2x3", (64, 96)),
        ("3x2", (96, 64)),
        ("2x4", (64, 128)),
        ("3x3", (96, 96)),
    ],
)
def test_a_panel_keeps_the_pixels_that_it_has_among_2x2(layout: str, size: tuple[int, int]) -> None:
    rows, columns = (int(n) for n in layout.split("x"))
    given = shaped(0, 512 * rows, 512 * columns).model_copy(update={"layout": layout})
    assert picture_size(given, 64, "aspect", 16) == size
    assert picture_size(given, 64, "ignore", 16) == (64, 64)


def test_panels_that_are_not_square_keep_their_proportions_and_area() -> None:
    wide = shaped(0, 512, 2048).model_copy(update={"layout": "1x2"})  # two panels of 1:2
    assert picture_size(wide, 64, "aspect", 8) == (24, 88)  # 22.6 x 90.5: half of 64 x 64, in steps of 8 px
    assert picture_size(shaped(0, 512, 2048), 64, "aspect", 8) == (32, 128), "2x2 as before"


def test_layouts_are_trained_together_in_batches_of_their_own(tmp_path: Path) -> None:
    """Each record's picture is cut into its own panels, and unseen prompts have figures by layout."""

    class Counting(Brightness):
        panels: ClassVar[set[tuple[str, int, tuple[int, int]]]] = set()

        def __call__(self, batch: RewardBatch) -> np.ndarray:
            for one, panels in zip(batch.records, batch.panels, strict=True):
                self.panels.add((one.layout, len(panels), panels[0].size))
            return super().__call__(batch)

    def of(number: int, layout: str) -> Any:
        rows, columns = (int(n) for n in layout.split("x"))
        return shaped(number, 16 * rows, 16 * columns).model_copy(update={"layout": layout})

    train = [of(0, "2x2"), of(1, "1x3"), of(2, "2x3"), of(3, "1x3")]
    unseen = [of(20, "1x3"), of(21, "2x2"), of(22, "1x3")]
    given = trainer(
        train=train, unseen=unseen, recipe=recipe(epochs=1, eval_sizes=[32]), rewards={"brightness": Counting()}
    )
    outcome = given.run(tmp_path, tmp_path / "checkpoint")
    assert Counting.panels == {("2x2", 4, (16, 16)), ("1x3", 3, (16, 16)), ("2x3", 6, (16, 16))}
    assert outcome.rows[1]["update/trained"] == 24 and outcome.rows[1]["update/ratio_gap"] < 1e-6
    each = {layout: outcome.after[f"32/brightness/{layout}"] for layout in ("1x3", "2x2")}
    assert outcome.after["32/brightness"] == pytest.approx((2 * each["1x3"] + each["2x2"]) / 3)
    assert outcome.metrics()["eval.32.brightness.1x3.after"] == each["1x3"] and "32/brightness/1x3" in outcome.changes


def test_figures_of_one_layout_are_not_repeated() -> None:
    scores = {"a": np.arange(6.0).reshape(3, 2)}
    assert by_layout(scores, ["2x2"] * 3) == {}
    found = by_layout(scores, ["2x2", "1x3", "2x2"])
    assert {name: values.tolist() for name, values in found.items()} == {
        "a/2x2": [[0.0, 1.0], [4.0, 5.0]],
        "a/1x3": [[2.0, 3.0]],
    }


def test_a_records_own_size_wins_where_asked_for(tmp_path: Path) -> None:
    train = [shaped(n, 64, 32) for n in range(4)]
    given = trainer(train=train, recipe=recipe(record_size="exact", epochs=1))
    experience, _ = given.epochs.gather(0)
    assert [bucket.sampling.size for bucket in experience.buckets] == [(64, 32)]
    given.run(tmp_path, tmp_path / "checkpoint")
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
    found = split_batches(places, most, shares, together)
    assert [len(part) for part in found] == sizes and [place for part in found for place in part] == places
    assert all(part[0] % together == places[0] % together for part in found)
