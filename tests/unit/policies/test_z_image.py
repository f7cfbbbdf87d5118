"""Z-Image against the plain pipeline: pictures, schedules, adapters and weights by original names, long prompts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch.nn.functional import pixel_shuffle

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.planning.models import PUBLIC
from paco_core.policies import base
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.families import is_distilled, validate_text_window
from paco_core.policies.pipeline_truncation import find_truncated_prompts
from paco_core.policies.truncation import truncations_by_id
from tests.support.dataset_world import records
from tests.support.grpo_toys import recipe
from tests.support.tiny_pipelines import z_image

LENGTH, SIZE, WEIGHTS = 48, (32, 32), "transformer/diffusion_pytorch_model.safetensors"
PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]
KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]
NAMES = {
    "all_final_layer.2-1.": "final_layer.",
    "all_x_embedder.2-1.": "x_embedder.",
    "attention.to_out.0": "attention.out",
    "norm_q": "q_norm",
    "norm_k": "k_norm",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return z_image(tmp_path_factory.mktemp("z_image") / "model")


def load(folder: Path, **options: Any) -> Any:
    return base.load_policy("z_image", str(folder), "cpu", "float32", **options)


def sample(policy: Any, size: Size = SIZE, steps: int = 3, guidance: float = 4.0) -> np.ndarray:
    encoded = policy.encode(PROMPTS, LENGTH, guidance=guidance)
    trajectory = rollout(policy, encoded, range(3), KEYS, Sampling.for_policy(policy, size, steps, guidance))
    return np.stack([np.asarray(image, dtype=int) for image in policy.decode(trajectory.latents, size)])


def by_pipeline(
    pipeline: Any, noise: torch.Tensor, size: Size = SIZE, steps: int = 3, guidance: float = 4.0
) -> np.ndarray:
    """Images of the plain pipeline. Its ``guidance_scale`` of 0 is without guidance."""
    maps = pixel_shuffle(noise.transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16)), 2)
    images = pipeline(
        prompt=list(PROMPTS), height=size[0], width=size[1], num_inference_steps=steps, guidance_scale=guidance - 1,
        max_sequence_length=LENGTH, latents=maps,
    ).images  # fmt: skip
    return np.stack([np.asarray(image, dtype=int) for image in images])


@pytest.mark.slow
@pytest.mark.parametrize("scheduler", [{"shift": 3.0}, {"use_dynamic_shifting": True}])
def test_pictures_equal_those_of_the_pipeline(tmp_path: Path, scheduler: dict[str, Any]) -> None:
    """With 6 and 32 tokens: those of an image are padded to 32 in the transformer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(2)
        policy = load(z_image(tmp_path / "model", **scheduler))
    samples = {}
    for size in ((32, 48), (64, 128)):
        for steps in (3, 5):
            for guidance in (1.0, 2.5, 5.0):
                images = sample(policy, size, steps, guidance)
                expected = by_pipeline(policy.pipeline, policy.noise(size, KEYS), size, steps, guidance)
                assert np.abs(images - expected).max() <= 1 and expected.std() > 10
                assert torch.equal(policy.sigmas(size, steps), policy.pipeline.scheduler.sigmas)
                samples[size, steps, guidance] = images
    assert np.abs(samples[(32, 48), 3, 1.0] - samples[(32, 48), 3, 5.0]).max() > 3
    assert np.abs(samples[(32, 48), 3, 1.0][0] - samples[(32, 48), 3, 1.0][1]).max() > 3


@pytest.mark.slow
def test_an_adapter_by_original_names_paints_as_by_those_of_diffusers(folder: Path, tmp_path: Path) -> None:
    """As ComfyUI writes it: queries, keys and values are one layer."""
    draw = torch.Generator().manual_seed(2)
    pairs = {
        f"{blocks}.0.attention.qkv": (torch.randn(4, 32, generator=draw), torch.randn(96, 4, generator=draw) * 0.1)
        for blocks in ("layers", "noise_refiner", "context_refiner")
    }
    pairs["layers.1.attention.out"] = torch.randn(4, 32, generator=draw), torch.randn(32, 4, generator=draw) * 0.1
    pairs["layers.1.feed_forward.w2"] = torch.randn(4, 85, generator=draw), torch.randn(32, 4, generator=draw) * 0.1
    original: dict[str, torch.Tensor] = {}
    split: dict[str, torch.Tensor] = {}
    for name, (a, b) in pairs.items():
        original |= {f"diffusion_model.{name}.lora_A.weight": a, f"diffusion_model.{name}.lora_B.weight": b}
        parts = [(name.replace("qkv", f"to_{side}"), rows) for side, rows in zip("qkv", b.chunk(3), strict=True)]
        for layer, rows in parts if "qkv" in name else [(name.replace("attention.out", "attention.to_out.0"), b)]:
            split |= {f"transformer.{layer}.lora_A.weight": a.clone(), f"transformer.{layer}.lora_B.weight": rows}
    save_file(original, tmp_path / "comfy.safetensors")
    save_file({name: tensor.contiguous() for name, tensor in split.items()}, tmp_path / "diffusers.safetensors")
    policy = load(folder)
    before = sample(policy)
    policy.load_adapter(tmp_path / "comfy.safetensors")
    after = sample(policy)
    assert np.abs(after - before).max() > 3
    plain: Any = diffusers.ZImagePipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    plain.load_lora_weights(tmp_path / "diffusers.safetensors")
    assert np.abs(by_pipeline(plain, policy.noise(SIZE, KEYS)) - after).max() <= 1


@pytest.mark.parametrize("names", ["authors", "diffusers"])
def test_a_file_of_an_image_tool_is_loaded_exactly(folder: Path, tmp_path: Path, names: str) -> None:
    tensors = load_file(folder / WEIGHTS)
    stored = dict(tensors)
    if names == "authors":
        for old, new in NAMES.items():
            stored = {name.replace(old, new): tensor for name, tensor in stored.items()}
        for name in [name for name in stored if name.endswith("attention.to_q.weight")]:
            parts = [stored.pop(name.replace("to_q", f"to_{side}")) for side in "qkv"]
            stored[name.replace("to_q", "qkv")] = torch.cat(parts)
        assert not any("to_q" in name or "all_" in name for name in stored)
    save_file(stored, tmp_path / "z_image.safetensors")
    loaded = load(folder, transformer=tmp_path / "z_image.safetensors").transformer.state_dict()
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_a_long_prompt_is_noted_as_the_pipeline_cuts_it(folder: Path) -> None:
    """The template's tokens count: by the tokenizer's own count nothing is cut."""
    policy, (first, second) = load(folder), records(2)
    window = len(policy.pipeline.tokenizer(PROMPTS[0]).input_ids) + 2
    test_records = [first.model_copy(update={"prompt": PROMPTS[0]}), second.model_copy(update={"prompt": "a"})]
    rows = policy.encode([PROMPTS[0], "a"], window).rows
    truncations = find_truncated_prompts(folder, test_records, window)
    assert list(truncations) == [first.idx] and truncations == truncations_by_id(policy.truncations, test_records)
    (cut,) = policy.truncations.values()
    assert cut.lost and PROMPTS[0].endswith(cut.lost) and cut.window == window
    assert [len(row["prompt_embeds"]) for row in rows] == [window, rows[1]["prompt_embeds shapes"][0, 0]]
    other = policy.encode([PROMPTS[0].removesuffix(cut.lost) + "sofa and frog and cat and frog"], window).rows[0]
    assert torch.allclose(other["prompt_embeds"], rows[0]["prompt_embeds"], atol=1e-5), "the lost text has no effect"


def test_a_window_beyond_the_positions_of_the_transformer_is_refused() -> None:
    """By the hub id alone: a caption is padded to 32 tokens, and the image has the position behind it."""
    positions = PUBLIC["Tongyi-MAI/Z-Image"].transformer["axes_lens"][0]
    largest = (positions - 2) // 32 * 32
    rule = recipe(family="z_image", max_sequence_length=largest).model_copy(update={"model": "Tongyi-MAI/Z-Image"})
    validate_text_window("key", rule, Path())
    with pytest.raises(DataError, match=f"at most {largest} tokens"):
        validate_text_window("key", rule.model_copy(update={"max_sequence_length": largest + 1}), Path())


def test_references_and_sizes_that_the_family_does_not_take(folder: Path) -> None:
    policy = load(folder)
    with pytest.raises(DataError, match="generates from text only"):
        policy.encode(PROMPTS[:1], LENGTH, [Image.new("RGB", SIZE)], [[SIZE]])
    with pytest.raises(DataError, match="32 x 40 px"):
        policy.noise((32, 40), KEYS)
    with pytest.raises(DataError, match="ZImagePipeline"):
        load(folder, task="edits")


def test_the_turbo_model_is_known_to_be_distilled(folder: Path) -> None:
    assert is_distilled(Path(), "Tongyi-MAI/Z-Image-Turbo") and not is_distilled(Path(), "Tongyi-MAI/Z-Image")
    assert not is_distilled(folder.parent, folder.name)
