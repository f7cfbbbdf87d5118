"""A training on records of several proportions and sizes, on a toy policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from grpo_toys import ToyPolicy, recipe, record, trainer
from PIL import Image


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
    given = trainer(policy=Watched(), train=train, unseen=unseen, recipe=recipe(epochs=2, train_batch=64))
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


def test_a_records_own_size_wins_where_asked_for(tmp_path: Path) -> None:
    train = [shaped(n, 64, 32) for n in range(4)]
    given = trainer(train=train, recipe=recipe(record_size="exact", epochs=1))
    given.run(tmp_path, tmp_path / "checkpoint")
    assert set(given.epochs.sampler._sampling) == {(64, 32)}
    pictures = [Image.open(p).size for p in (tmp_path / "samples" / "after" / "64").iterdir()]
    assert set(pictures) == {(32, 32)}, "the unseen records name 32 x 32, whatever the evaluation's size"
