"""Trainings on every kind of record: one panel, several layouts, edits of one reference and of several."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo import checks
from tests.support import grpo_toys
from tests.support.grpo_toys import Brightness, ToyEditor, ToyPolicy, recipe

LAYOUTS = {"1x1": ["1x1"], "1x2": ["1x2"], "3x3": ["3x3"], "mixed": ["1x1", "1x2", "2x2"]}
REFERENCES = {"one reference": 1, "three references": 3}


def prompt(number: int, layout: str) -> PromptRecord:
    return grpo_toys.record(number).model_copy(update={"layout": layout})


def edit(number: int, references: int) -> EditRecord:
    names = [f"{number}-{place}" for place in range(references)]
    return EditRecord(idx=f"p{number}", prompt="red", height=32, width=32, theme="red", task_name="", reference=names,
                      part="train")  # fmt: skip


def split_of(kind: str) -> dict[str, Any]:
    if kind in LAYOUTS:
        layouts = LAYOUTS[kind]
        records: list[Any] = [prompt(number, layouts[number % len(layouts)]) for number in range(11)]
        return {"train": records[:8], "unseen": records[8:], "policy": ToyPolicy()}
    edits = [edit(number, REFERENCES[kind]) for number in range(11)]
    images = [Image.new("RGB", (64, 32), colour) for colour in ("red", "green", "blue")]
    return {"train": edits[:8], "unseen": edits[8:], "policy": ToyEditor(),
            "reference": lambda record: images[: len(record.references)]}  # fmt: skip


@pytest.mark.parametrize("loss", ["ppo", "nft"])
@pytest.mark.parametrize("kind", [*LAYOUTS, *REFERENCES])
def test_a_training_ends_and_its_checks_hold(tmp_path: Path, kind: str, loss: str) -> None:
    terms = {name: {"weight": weight, "reward": f"own:{name}"} for name, weight in (("brightness", 1.0), ("other", 0))}
    rule = recipe(
        loss=loss, epochs=2, eval_every=1, train_size=96, eval_sizes=[96], updates_per_epoch=1,
        rewards={"terms": terms, "aggregator": "weighted_sum", "advantage_std": "group"},
        hack_meter={"trained": "brightness", "held_out": "other"}, early_stop={"patience": 1},
    )  # fmt: skip
    rewards = {"brightness": Brightness(), "other": Brightness()}
    outcome = grpo_toys.trainer(recipe=rule, rewards=rewards, **split_of(kind)).run(tmp_path, tmp_path / "checkpoint")
    measure = "reference_distance" if kind in REFERENCES else "panel_diversity"
    single = kind == "1x1"
    assert math.isnan(outcome.after[f"96/{measure}"]) == math.isnan(outcome.after["96/near_copies"]) == single
    assert checks.collapse(checks.read_log(tmp_path / "training_log.csv"), rule.eval_sizes).passed
    assert outcome.metrics()["epochs"] == 2
