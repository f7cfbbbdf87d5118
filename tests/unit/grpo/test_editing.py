"""Editing policies through the one trainer: references go along with prompts, rewards, evaluation and pictures."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from PIL import Image

from paco_core.config.params import EarlyStop
from paco_core.data.image_measures import reference_distance
from paco_core.data.prompts.edit_prompts import EditRecord, storybook_edit_prompts
from paco_core.grpo import checks
from paco_core.grpo.hacking import collapse_reason
from paco_core.grpo.prompt_split import held_out_edits
from paco_core.grpo.scoring import Scoring
from paco_core.grpo.trainer import Reports, Trainer
from paco_core.io.files import DataError
from paco_core.rewards.base import RewardBatch
from tests.support import grpo_toys
from tests.support.grpo_toys import TOKEN, ToyEditor, ToyPolicy, recipe


class Likeness:
    """1 - distance of an edit and its reference; remembers which reference came with which prompt."""

    name = "likeness"

    def __init__(self) -> None:
        self.causes: dict[str, int] = {}
        self.references: dict[str, set[bytes]] = {}

    def __call__(self, batch: RewardBatch) -> np.ndarray:
        for record, reference in zip(batch.records, batch.originals, strict=True):
            self.references.setdefault(record.idx, set()).add(reference.tobytes())
        pairs = zip(batch.whole, batch.originals, strict=True)
        return np.array([1 - reference_distance(picture, reference) for picture, reference in pairs])


def prompts(count: int = 8) -> tuple[list[EditRecord], dict[str, Image.Image]]:
    edit_prompts = storybook_edit_prompts(count, 32, 0)
    edit_prompts.hold_out(3, 0)
    flat = {r.idx: Image.new("RGB", (48, 48), (255, 240 + 2 * n, 250)) for n, r in enumerate(edit_prompts.records)}
    return edit_prompts.records, flat


REWARDS = {"terms": {"likeness": {"weight": 1.0}}, "aggregator": "weighted_sum", "advantage_std": "group"}


def editor(rule: Mapping[str, Any] = MappingProxyType({}), **changes: Any) -> Trainer:
    records, pictures = prompts()
    split = held_out_edits(records, lambda record: [pictures[record.idx]], 3, 0)
    options: dict[str, Any] = {
        "policy": ToyEditor(),
        "recipe": recipe(**{"rewards": REWARDS, "epochs": 16, "eval_every": 99, "learning_rate": 0.1, **rule}),
        "rewards": {"likeness": Likeness()},
        "train": split.trained,
        "unseen": split.unseen,
        "reference": split.reference,
    }
    return grpo_toys.trainer(**(options | changes))


def test_training_makes_edits_more_like_their_references(tmp_path: Path) -> None:
    sheets: list[tuple[str, Image.Image]] = []
    reward = Likeness()
    policy_trainer = editor(
        rewards={"likeness": reward}, reports=Reports(picture=lambda image, key, _epoch: sheets.append((key, image)))
    )
    outcome = policy_trainer.run(tmp_path, tmp_path / "checkpoint")
    assert outcome.after["32/likeness"] > outcome.before["32/likeness"] + 0.05
    assert outcome.after["32/reference_distance"] == pytest.approx(1 - outcome.after["32/likeness"])
    policy: Any = policy_trainer.learner.policy
    image_sizes = [(32, 32), (64, 64)]
    assert policy.encoded == [(5, [[(32, 32)]] * 5), (3, [image_sizes] * 3)], "each part at the sizes it is painted at"
    with (tmp_path / "training_log.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert "panel_diversity" not in rows[0] and float(rows[-1]["reference_distance"]) > 0
    sizes = {key: image.size for key, image in sheets}
    assert sizes == {"unseen_32px": (6 * 2 * 32, 32), "unseen_64px": (6 * 2 * 64, 64)}, "reference beside each edit"
    records = {record.idx: record for record in (*policy_trainer.split.trained, *policy_trainer.split.unseen)}
    assert policy_trainer.split.reference is not None and reward.references.keys() == records.keys()
    for idx, pixels in reward.references.items():
        assert pixels == {policy_trainer.split.reference(records[idx])[0].tobytes()}, "of its own prompt"
    assert sheets[0][1].getpixel((0, 0)) == policy_trainer.split.reference(policy_trainer.split.unseen[0])[0].getpixel(
        (0, 0)
    )
    names = sorted(path.name for path in (tmp_path / "samples/reference").iterdir())
    assert names == sorted(f"{record.idx}.png" for record in policy_trainer.split.unseen)


@pytest.mark.parametrize("part", ["trained", "unseen"])
def test_other_reference_pictures_under_the_same_ids_are_another_training(tmp_path: Path, part: str) -> None:
    short, (_, pictures) = {"epochs": 1}, prompts()
    editor(short).run(tmp_path, tmp_path / "checkpoint")
    assert editor(short).run(tmp_path, tmp_path / "checkpoint").resumed_at == 1
    (changed, *_) = getattr(editor().split, part)
    pictures[changed.idx] = Image.new("RGB", (48, 48), "black")
    other = editor(short, reference=lambda record: [pictures[record.idx]])
    assert other.run(tmp_path, tmp_path / "checkpoint").resumed_at == 0


def test_references_belong_to_editing_policies_and_a_missing_one_stops_training_before_sampling(tmp_path: Path) -> None:
    def lost(record: Any) -> list[Image.Image]:
        raise DataError(f"editing prompt {record.idx}: picture gone")

    for changes in ({"reference": None}, {"policy": ToyPolicy()}):
        with pytest.raises(ValueError, match="references|takes them"):
            editor(**changes).run(tmp_path, tmp_path / "checkpoint")
    policy = ToyEditor()
    with pytest.raises(DataError, match="e0000[0-9]: picture gone"):
        editor(policy=policy, reference=lost).run(tmp_path, tmp_path / "checkpoint")
    assert not policy.calls and not list(tmp_path.iterdir())


def test_a_batch_of_edits_keeps_each_reference_with_its_picture() -> None:
    records, pictures = prompts()
    edits = [Image.new("RGB", (32, 32), "pink") for _ in records]
    with Scoring({"likeness": Likeness()}, lambda record: [pictures[record.idx]]) as scoring:
        turn = scoring.round()
        turn.add(records[:5], edits[:5])
        turn.add(records[5:], edits[5:])
        scores = turn.result()
    expected = [reference_distance(edit, pictures[r.idx]) for r, edit in zip(records, edits, strict=True)]
    assert scores.measure == "reference_distance" and scores.diversity.tolist() == pytest.approx(expected)
    assert scores.rewards["likeness"].tolist() == pytest.approx([1 - d for d in expected])
    batch = RewardBatch(records, [[e] for e in edits], edits, [[pictures[r.idx]] for r in records])
    joined = RewardBatch.join([batch.take([2, 0]), batch.take([1])])
    assert joined.originals == [pictures[records[n].idx] for n in (2, 0, 1)]
    assert RewardBatch.join([batch, RewardBatch(records, batch.panels)]).references is None


def test_unseen_edits_are_those_that_were_held_back() -> None:
    (records, _), pale = prompts(), [Image.new("RGB", (32, 32), "white")]
    split = held_out_edits(records, lambda _: pale, 2, 0)
    assert len(split.trained) == 5 and len(split.unseen) == 2
    assert {r.part for r in split.unseen if isinstance(r, EditRecord)} == {"unseen"}
    with pytest.raises(DataError, match="eval_prompts=4"):
        held_out_edits(records, lambda _: pale, 4, 0)
    with pytest.raises(DataError, match="none is left"):
        held_out_edits([r for r in records if r.part == "unseen"], lambda _: pale, 1, 0)


def test_copying_the_reference_is_a_collapse() -> None:
    log = [
        {"reward/a": 0.4 + 0.02 * n, "reference_distance": d, f"eval/{TOKEN}/reference_distance": d}
        for n, d in enumerate(0.2 * 0.8**n for n in range(10))
    ]
    assert collapse_reason(log, {"a": 1.0}, EarlyStop()) is not None
    assert collapse_reason(log[:5], {"a": 1.0}, EarlyStop()) is None
    assert not checks.collapse(log, [TOKEN]).passed and checks.collapse(log[:4], [TOKEN]).passed
