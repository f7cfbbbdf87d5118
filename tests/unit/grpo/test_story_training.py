"""Training on stories: the advantage is the story's, each panel learns from its own trajectory; toys, on a CPU."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from paco_core.data.records.characters import Character
from paco_core.data.records.prompt_text import prompt_from_theme
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.sampling import Experience
from paco_core.grpo.trainer import Trainer
from paco_core.policies.base import Size, sized_name
from paco_core.policies.encoded import Condition, Encoded
from tests.support.grpo_toys import ToyPolicy, record, trainer
from tests.support.grpo_toys import recipe as toy_recipe
from tests.support.ranks import together

PANEL = 64


class ToyStories(ToyPolicy):
    """The toy with panels before: their mean colour, the latest counting most, is added to every predicted velocity."""

    panel_example = ToyPolicy.example

    def with_references(self, encoded: Encoded, references: Sequence[Sequence[Image.Image]], size: Size) -> Encoded:
        rows = []
        for row, pictures in zip(encoded.rows, references, strict=True):
            colours = [np.asarray(image).mean((0, 1)) * (n + 1) for n, image in enumerate(pictures)]
            mean = torch.tensor([*(np.mean(colours, axis=0) if colours else np.zeros(3)).tolist(), 0.0]) / 255.0
            rows.append({**row, sized_name("image_latents", size): mean})
        return Encoded(rows, "cpu")

    def velocity(
        self, latents: torch.Tensor, sigma: float, condition: Condition, guidance: float, size: Size
    ) -> torch.Tensor:
        mean_colours = condition.tensors.get(sized_name("image_latents", size))
        velocity = super().velocity(latents, sigma, condition, guidance, size)
        return velocity if mean_colours is None else velocity - 0.5 * mean_colours[:, None, :]


def with_layout(base_record: PromptRecord, layout: str) -> PromptRecord:
    rows, columns = (int(count) for count in layout.split("x"))
    text = str(prompt_from_theme(base_record.theme, [f"panel {n}" for n in range(rows * columns)], layout))
    size = {"height": rows * PANEL, "width": columns * PANEL}
    return base_record.model_copy(update={"prompt": text, "layout": layout, **size})


def with_character(story: PromptRecord, folder: Path) -> PromptRecord:
    """The story with a character that its second panel names, with two images."""
    paths = [folder / f"{story.idx}-{shade}.png" for shade in (40, 200)]
    for shade, path in zip((40, 200), paths, strict=True):
        Image.new("RGB", (PANEL, PANEL), (shade, 0, 90)).save(path)
    characters = (Character("Mia", tuple(map(str, paths))),)
    text = story.prompt.replace("panel 1", "panel 1 with Mia")
    return story.model_copy(update={"prompt": text, "characters": characters})


def stories(layouts: Sequence[str] = ("1x3",), images: Path | None = None, **changes: Any) -> Trainer:
    """A training on toy stories. ``images``: folder of the images of characters, whom every other story has."""
    settings = {"family": "flux2_klein", "panels": "one_by_one", "train_size": 2 * PANEL, "eval_sizes": [2 * PANEL]}
    rule = toy_recipe(**{**settings, "predecessors": 2, "eval_every": 9, "epochs": 2, **changes})
    train, unseen = (
        [with_layout(record(n), layouts[n % len(layouts)]) for n in numbers] for numbers in (range(8), range(20, 23))
    )
    if images is not None:
        train = [with_character(story, images) if n % 2 else story for n, story in enumerate(train)]
        unseen = [with_character(story, images) for story in unseen]
    return trainer(policy=ToyStories(), recipe=rule, train=train, unseen=unseen)


def gather(policy_trainer: Trainer) -> tuple[Experience, dict[str, float]]:
    """The first epoch's samples with their advantages, and the metrics of the rewards."""
    with policy_trainer.scoring:
        experience, wait_for_scores = policy_trainer.epochs.gather(0)
        assert wait_for_scores is not None
        return policy_trainer._with_advantages(experience, wait_for_scores(), 0)


@pytest.mark.parametrize("layouts", [("1x3",), ("2x2", "1x3")])
def test_all_panels_of_a_story_have_its_advantage(layouts: Sequence[str]) -> None:
    policy_trainer = stories(layouts)
    experience, metrics = gather(policy_trainer)
    assert experience.first is not None and len(experience.first) == 4 * 6 + 1
    panels = np.diff(experience.first)
    assert set(panels.tolist()) == ({3} if len(layouts) == 1 else {3, 4})
    assert len(experience.rows) == len(experience.keys) == len(experience.advantages) == panels.sum()
    for begin, end in zip(experience.first, experience.first[1:], strict=False):
        assert len(set(experience.advantages[begin:end])) == 1
        ids = [key.prompt_id for key in experience.keys[begin:end]]
        assert ids == [f"{ids[0].rpartition('-')[0]}-{n}" for n in range(end - begin)]
    assert len(set(experience.advantages.tolist())) > 12 and "reward/brightness" in metrics
    assert sorted(s for bucket in experience.buckets for s in bucket.samples.tolist()) == list(range(panels.sum()))
    spans = experience.spans(2)
    assert [span.start for span in spans] == [0, experience.first[12]] and spans[-1].stop == panels.sum()
    later = [row for row, key in zip(experience.rows, experience.keys, strict=True) if not key.prompt_id.endswith("-0")]
    assert len(set(later)) == len(later), "each panel behind the first has pictures of its own"


@pytest.mark.parametrize("has_characters", [False, True])
def test_a_trained_pass_sees_what_the_rollout_saw(tmp_path: Path, has_characters: bool) -> None:
    """The ratio is one before the update; it is not, once a panel is given other panels than it was painted beside."""
    images = tmp_path if has_characters else None
    outcome = stories(("2x2", "1x3"), images).run(tmp_path / "out", tmp_path / "checkpoints")
    assert max(row["update/ratio_gap"] for row in outcome.rows[1:]) < 1e-6
    references = list((tmp_path / "out/samples").glob("reference/*"))
    assert len(references) == (6 if has_characters else 0)
    policy_trainer = stories()
    experience, _ = gather(policy_trainer)
    rows = [dict(row) for row in experience.encoded.rows]
    name = sized_name("image_latents", (PANEL, PANEL))
    for row in rows:
        row |= {name: row[name] + 1.0} if name in row else {}
    object.__setattr__(experience, "encoded", Encoded(rows, "cpu"))
    with pytest.raises(RuntimeError, match="the training pass does not match the sampling"):
        policy_trainer.learner.learn(experience)


def work(out: Path) -> None:
    """One rank."""
    images = out.parent if (out.parent / "characters").exists() else None
    outcome = stories(("2x2", "1x3"), images, rollout_batch=6, eval_seeds=[0]).run(out, out / "checkpoints")
    (out / f"rank{os.environ['RANK']}.json").write_text(json.dumps(outcome.rows))


@pytest.mark.slow
@pytest.mark.parametrize("has_characters", [False, True])
def test_one_and_two_processes_compute_the_same(tmp_path: Path, has_characters: bool) -> None:
    """A panel is trained by a process that did not paint it."""
    if has_characters:
        (tmp_path / "characters").touch()
    outcomes = {}
    for world in (1, 2):
        out = tmp_path / str(world)
        out.mkdir()
        together(work, out, world=world, start_method="fork")
        rows = [json.loads((out / f"rank{rank}.json").read_text()) for rank in range(world)]
        assert all(row == rows[0] for row in rows)
        outcomes[world] = rows[0], load_file(out / "adapter/adapter.safetensors")
    (separate, weights), (shared, shared_weights) = outcomes.values()
    assert [list(row) for row in shared] == [list(row) for row in separate]
    assert shared[1]["reward/brightness"] == separate[1]["reward/brightness"]
    assert all(torch.allclose(weights[name], shared_weights[name], rtol=0, atol=1e-6) for name in weights)
