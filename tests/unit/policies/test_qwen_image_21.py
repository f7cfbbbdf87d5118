"""Qwen-Image-2.1 against the plain pipeline: images with and without references, schedules, stories, refusals."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.data.records.panels import split_grid
from paco_core.data.records.prompt_text import prompt_from_theme
from paco_core.data.records.records import PromptRecord, panel_texts
from paco_core.grpo.encoded_prompts import EncodedPrompts
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.grpo.sampling import sample_images
from paco_core.grpo.sizes import ImageGrid
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.families import needs_text_encoders
from tests.support.grpo_toys import recipe
from tests.support.sampled import KEYS, pictures, pixels, sample
from tests.support.tiny_pipelines import qwen_image_21

LENGTH, SIZE = 48, (64, 64)
PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return qwen_image_21(tmp_path_factory.mktemp("qwen_image_21") / "model")


def load(folder: Path, **options: Any) -> Any:
    return base.load_policy("qwen_image_21", str(folder), "cpu", "float32", **options)


def by_pipeline(policy: Any, size: Size, steps: int, guidance: float, images: list[Any], **options: Any) -> np.ndarray:
    """Images of the plain pipeline, one prompt at a time: positions depend on the longest text of a batch."""
    guided = {"negative_prompt": " ", "true_cfg_scale": guidance} if guidance > 1 else {}
    rows = zip(PROMPTS, images, policy.noise(size, KEYS).split(1), strict=True)
    generated = [
        policy.pipeline(
            prompt=prompt, image=image, latents=latents, height=size[0], width=size[1], num_inference_steps=steps,
            output_resolution=policy.reference_side(size), **guided, **options,
        ).images[0]
        for prompt, image, latents in rows
    ]  # fmt: skip
    assert all(image.mode == "RGBA" for image in generated)
    return np.stack([pixels(image) for image in generated])


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, 2.5])
@pytest.mark.parametrize("side", [None, 96])
def test_images_with_several_references_equal_those_of_the_pipeline(
    folder: Path, side: int | None, guidance: float
) -> None:
    """References of several proportions and numbers, and texts of several lengths, in one batch."""
    policy = load(folder, task="edits", reference_size=side)
    first, second, third = pictures((64, 64), (96, 64), (40, 80))
    references = [[first, second, third], [second], [third, first]]
    samples = {}
    for size, steps in (((64, 64), 3), ((64, 96), 5)):
        encoded = policy.encode(PROMPTS, LENGTH, references, [[size]] * 3, guidance=guidance)
        images = sample(policy, encoded, size, steps, guidance)
        for use_kv_cache in (True, False):
            expected = by_pipeline(policy, size, steps, guidance, references, use_kv_cache=use_kv_cache)
            assert np.abs(images - expected).max() <= 1 and expected.std() > 10
        samples[size] = images
    swapped = policy.encode(PROMPTS, LENGTH, [[second, first, third], *references[1:]], [[SIZE]] * 3, guidance=guidance)
    difference = np.abs(sample(policy, swapped, SIZE, 3, guidance) - samples[SIZE]).max(axis=(1, 2, 3))
    assert difference[0] > 3 and difference[1:].max() <= 1


@pytest.mark.slow
def test_the_schedule_of_the_authors_is_interpolated_to_other_numbers_of_steps(tmp_path: Path) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        policy = load(qwen_image_21(tmp_path / "model", sample_sigmas=[1.0, 0.8, 0.5, 0.2]))
    encoded = policy.encode(PROMPTS, LENGTH, guidance=1.0)
    expected = by_pipeline(policy, SIZE, 4, 1.0, [None] * 3)
    assert torch.equal(policy.sigmas(SIZE, 4), policy.pipeline.scheduler.sigmas)
    assert np.abs(sample(policy, encoded, SIZE, 4, 1.0) - expected).max() <= 1
    expected = by_pipeline(policy, SIZE, 2, 1.0, [None] * 3, sigmas=[1.0, 0.5])
    assert torch.equal(policy.sigmas(SIZE, 2), policy.pipeline.scheduler.sigmas)
    assert np.abs(sample(policy, encoded, SIZE, 2, 1.0) - expected).max() <= 1


def test_keys_and_values_of_the_condition_are_computed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trained step computes them as the training pass does, so the ratio is one before an update."""
    policy = load(folder, task="edits")
    encoded = policy.encode(PROMPTS[:1], LENGTH, [pictures((64, 64), (64, 64))], [[SIZE]], guidance=1.0)
    tokens: list[int] = []
    policy.transformer.transformer_blocks[0].register_forward_pre_hook(
        lambda _block, _args, inputs: tokens.append(inputs["hidden_states"].shape[1]), with_kwargs=True
    )
    sampling = Sampling.for_policy(policy, SIZE, 5, 1.0, noise_steps=[2], noise_level=0.7)
    noisy_step = rollout(policy, encoded, [0], KEYS[:1], sampling).noisy_steps[0]
    latents = math.prod(policy.grid(SIZE))
    condition = tokens[0] - latents
    assert condition > 2 * latents and tokens == [
        condition + latents, latents, condition + latents, latents, latents
    ]  # fmt: skip
    with torch.no_grad():
        reused = encoded.take([0])
        full = policy.velocity(noisy_step.before, 0.5, encoded.take([0]), 1.0, SIZE)
        with policy.reuse():
            first = policy.velocity(noisy_step.before, 0.9, reused, 1.0, SIZE)
            assert not torch.allclose(first, full, atol=1e-3)
            assert torch.allclose(policy.velocity(noisy_step.before, 0.5, reused, 1.0, SIZE), full, atol=1e-4)
    assert policy.velocity(noisy_step.before, 0.5, reused, 1.0, SIZE).shape == full.shape
    assert tokens[-1] == condition + latents, "outside of the context, nothing is reused"


@pytest.mark.slow
def test_each_panel_of_a_story_has_earlier_panels_as_references(folder: Path) -> None:
    texts = [f"The animal beach {n}" for n in range(3)]
    record = PromptRecord(
        idx="s", prompt=str(prompt_from_theme("a red cat. All images show it", texts, "1x3")), height=64, width=192,
        layout="1x3", theme="a red cat", category="", task_name="", criteria={},
    )  # fmt: skip
    policy = load(folder, task="sets")
    page = ImageGrid.from_record(record, 128, "aspect", policy.multiple, 2)
    prompts = EncodedPrompts.from_records(policy, [record], 2, LENGTH, 2.0)
    keys = [NoiseKey("s", image, 3) for image in range(2)]
    images, _ = sample_images(policy, prompts, [0, 0], keys, Sampling.for_policy(policy, page.part_size, 3, 2.0), page)
    panels = [split_grid(image, "1x3") for image in images]
    for number, text in enumerate(panel_texts(record)):
        noise = policy.noise(page.part_size, [NoiseKey(f"s-{number}", key.image, key.seed) for key in keys])
        for place, latents in enumerate(noise.split(1)):
            plain = policy.pipeline(
                prompt=text, image=panels[place][:number] or None, negative_prompt=" ", true_cfg_scale=2.0,
                height=page.part_size[0], width=page.part_size[1], num_inference_steps=3, latents=latents,
                output_resolution=policy.reference_side(page.part_size),
            ).images[0]  # fmt: skip
            assert np.abs(pixels(plain) - pixels(panels[place][number])).max() <= 1
    assert needs_text_encoders(recipe(family="qwen_image_21", panels="one_by_one"))
    assert not needs_text_encoders(recipe(family="qwen_image_21"))
    assert not needs_text_encoders(recipe(family="flux2_klein", panels="one_by_one"))


def test_panels_with_and_without_references_share_a_batch(folder: Path) -> None:
    """For example, one panel names a character and the other panel does not."""
    policy = load(folder)
    texts = policy.encode(PROMPTS[:2], LENGTH, guidance=1.0)
    encoded = policy.with_references(texts, [pictures((64, 64)), []], SIZE)
    noise = policy.noise(SIZE, KEYS[:2])
    with torch.no_grad():
        velocities = policy.velocity(noise, 0.7, encoded.take([0, 1]), 1.0, SIZE)
        rows = [policy.velocity(noise[[row]], 0.7, encoded.take([row]), 1.0, SIZE) for row in (0, 1)]
        plain = policy.velocity(noise[[1]], 0.7, texts.take([1]), 1.0, SIZE)
    assert torch.allclose(velocities, torch.cat(rows), atol=1e-4) and torch.allclose(velocities[[1]], plain, atol=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([PROMPTS[0]], LENGTH, [pictures(*[(64, 64)] * 11)], [[SIZE]]), "1 to 10 reference images .* has 11"),
        (([PROMPTS[0]], LENGTH, [[]], [[SIZE]]), "1 to 10 reference images .* has 0"),
        (([PROMPTS[0]], LENGTH, [pictures((64, 64))], [[(64, 48)]]), "64 x 48 px.* multiple of 32"),
        ((["a <|image_pad|> cat"], LENGTH, [pictures((64, 64))], [[SIZE]]), "image_pad"),
        (([PROMPTS[0]], LENGTH, None, [[SIZE]]), "1 to 10 reference images"),
    ],
)
def test_inputs_that_the_family_does_not_take(folder: Path, arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(DataError, match=message):
        load(folder, task="edits").encode(*arguments)


def test_references_that_the_text_encoder_would_resize_again(folder: Path) -> None:
    policy = load(folder, task="edits")
    policy.pipeline.processor.image_processor.size = {"shortest_edge": 128 * 128, "longest_edge": 256 * 256}
    with pytest.raises(DataError, match=r"64 x 64 px.* 16384 to 65536 pixels.* reference_size"):
        policy.encode(PROMPTS[:1], LENGTH, [pictures((80, 80))], [[SIZE]])


def test_references_of_sets_and_long_prompts(folder: Path) -> None:
    policy = load(folder)
    with pytest.raises(DataError, match="generates from text only"):
        policy.encode(PROMPTS[:1], LENGTH, [pictures((64, 64))], [[SIZE]])
    rows = policy.encode([PROMPTS[0], "a red"], 2).rows
    assert {text: cut.window for text, cut in policy.truncations.items()} == {PROMPTS[0]: 2}
    assert torch.equal(rows[0]["prompt_embeds"], rows[1]["prompt_embeds"])
