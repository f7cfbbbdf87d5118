"""Rewards: what they ask, what they make of answers and of failures, how they are found by name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from paco_core.dataset.records import PromptRecord, split_panels
from paco_core.files import DataError
from paco_core.params import RewardTerm
from paco_core.reward_model.yes_probability import PairQuery, Score
from paco_core.rewards import registry
from paco_core.rewards.base import RewardBatch
from paco_core.rewards.consistency import Consistency

COLOURS = ["red", "green", "blue", "white"]


def make_record(layout: str = "2x2", idx: str = "p") -> PromptRecord:
    marks = {
        "2x2": "[TOP]-[LEFT]: {} [TOP]-[RIGHT]: {} [BOTTOM]-[LEFT]: {} [BOTTOM]-[RIGHT]: {}",
        "1x1": "[PANEL-1]: {}",
    }
    return PromptRecord(
        idx=idx,
        prompt="A grid of animals. " + marks[layout].format("a cat", "a dog", "a cow", "a hen"),
        height=64,
        width=64,
        layout=layout,
        theme="animals",
        category="Character",
        task_name="Multi-pose",
        criteria={},
    )


def panels(count: int = 4) -> list[Image.Image]:
    return [Image.new("RGB", (16, 16), colour) for colour in COLOURS[:count]]


class Judge:
    """Answers by a rule; remembers what it was asked."""

    def __init__(self, rule: dict[tuple[str, str], Score] | None = None) -> None:
        self.asked: list[PairQuery] = []
        self.rule = rule or {}

    def score(self, queries: Sequence[PairQuery]) -> list[Score]:
        self.asked += queries
        names = {Image.new("RGB", (1, 1), colour).getpixel((0, 0)): colour for colour in COLOURS}
        pairs = [(names[q.first.getpixel((0, 0))], names[q.second.getpixel((0, 0))]) for q in queries]
        return [self.rule.get(pair, Score(0.5)) for pair in pairs]


def test_consistency_is_the_mean_over_unordered_pairs() -> None:
    judge = Judge({("red", "green"): Score(1.0), ("blue", "white"): Score(0.2)})
    values = Consistency(judge)(RewardBatch([make_record()], [panels()]))
    assert values.dtype == np.float64
    assert values.tolist() == pytest.approx([(1.0 + 0.2 + 4 * 0.5) / 6])
    assert len(judge.asked) == 6
    assert all('theme: "animals"' in query.instruction for query in judge.asked)


def test_a_failed_pair_fails_its_set_and_no_other() -> None:
    judge = Judge({("red", "green"): Score(math.nan, "timeout")})
    other = [Image.new("RGB", (16, 16), "blue")] * 4
    reward = Consistency(judge)
    values = reward(RewardBatch([make_record(), make_record(idx="q")], [panels(), other]))
    assert np.isnan(values[0]) and values[1] == 0.5
    assert reward.causes == {"timeout": 1}


def test_consistency_of_one_panel_is_an_error() -> None:
    with pytest.raises(DataError, match="layout 1x1 has one panel"):
        Consistency(Judge())(RewardBatch([make_record("1x1")], [panels(1)]))


def test_registry_errors_name_what_is_missing() -> None:
    with pytest.raises(DataError, match="choose among.*consistency"):
        registry.build("consistensy", RewardTerm(weight=1.0))
    with pytest.raises(DataError, match="reward model"):
        registry.build("consistency", RewardTerm(weight=1.0))
    with pytest.raises(DataError, match="needs model"):
        registry.build("clip_t", RewardTerm(weight=1.0))
    with pytest.raises(DataError, match=r"open_clip_config\.json"):
        registry.build("clip_t", RewardTerm(weight=1.0, model="nowhere"))
    assert registry.build("consistency", RewardTerm(weight=1.0), Judge()).name == "consistency"


def test_batch_refuses_sets_without_a_prompt() -> None:
    with pytest.raises(ValueError, match="1 prompts for 2 sets"):
        RewardBatch([make_record()], [panels(), panels()])


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An open_clip folder with random weights and open_clip's own tokenizer."""
    import torch
    from open_clip.model import CLIP
    from safetensors.torch import save_file

    folder = tmp_path_factory.mktemp("clip")
    config = {
        "embed_dim": 8,
        "vision_cfg": {"image_size": 16, "layers": 1, "width": 64, "patch_size": 8},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 1, "layers": 1},
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        weights = CLIP(**config).state_dict()
    save_file({name: value.contiguous() for name, value in weights.items()}, folder / "open_clip_model.safetensors")
    preprocess = {"mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5]}
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": config, "preprocess_cfg": preprocess}))
    return folder


def test_clip_t_is_the_mean_cosine_of_each_panel_with_its_own_text(clip_folder: Path) -> None:
    import open_clip
    import torch

    reward = registry.build("clip_t", RewardTerm(weight=1.0, model=str(clip_folder)))
    model, _, preprocess = open_clip.create_model_and_transforms(f"local-dir:{clip_folder}")
    tokenizer = open_clip.get_tokenizer(f"local-dir:{clip_folder}")
    texts = split_panels(make_record().prompt, 4)[1]
    assert texts == ["a cat", "a dog", "a cow", "a hen"]
    with torch.no_grad():
        text = torch.nn.functional.normalize(model.eval().encode_text(tokenizer(texts)), dim=-1)
        shown = torch.stack([preprocess(panel) for panel in panels()])
        image = torch.nn.functional.normalize(model.encode_image(shown), dim=-1)
    expected = (text * image).sum(dim=1)
    batch = RewardBatch([make_record(), make_record()], [panels(), panels()[::-1]])
    values = reward(batch)
    assert values[0] == pytest.approx(float(expected.mean()), abs=1e-5)
    assert values[1] == pytest.approx(float((text * image.flip(0)).sum(dim=1).mean()), abs=1e-5)
    assert expected.std() > 1e-3
    assert np.array_equal(reward(batch), values)
