"""Qwen-Image: prompts that are cut, encoded images, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLQwenImage
from PIL import Image

from paco_core.policies import base
from paco_core.policies.pipeline_truncation import find_truncated_prompts
from paco_core.policies.single_frame import use_single_frame_convolutions
from paco_core.policies.truncation import truncations_by_id
from tests.support.dataset_world import records
from tests.support.policy_families import KEYS, Family, build, loud_qwen_image

LENGTH, SIZE = 128, (32, 32)  # the small tokenizer makes 60 tokens more of the template than are dropped


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(Family("qwen_image", loud_qwen_image), tmp_path_factory)


@pytest.fixture
def policy(folder: Path) -> Any:
    return base.load_policy("qwen_image", str(folder), "cpu", "float32")


def test_a_long_prompt_is_noted_as_the_pipeline_cuts_it(policy: Any, folder: Path) -> None:
    """The template's tokens count, as its fixed opening does not: by the tokenizer's own count nothing is cut."""
    long = " ".join(["The colour"] * 40)
    prompts = zip(records(2), [long, "short"], strict=True)
    test_records = [record.model_copy(update={"prompt": prompt}) for record, prompt in prompts]
    policy.encode([long, "short"], LENGTH)
    cut = policy.truncations[long]
    assert (
        find_truncated_prompts(folder, test_records, LENGTH)
        == truncations_by_id(policy.truncations, test_records)
        == {test_records[0].idx: cut}
    )
    assert len(policy.pipeline.tokenizer(long).input_ids) < LENGTH and cut.lost and long.endswith(cut.lost)
    other = long.removesuffix(cut.lost) + "is the same and something else entirely, on and on and on and on and on"
    first, second = policy.encode([long, other], LENGTH).rows
    assert torch.allclose(first["prompt_embeds"], second["prompt_embeds"], atol=1e-5), "the lost text has no effect"


def test_a_picture_is_encoded_as_the_autoencoder_is_normalised(folder: Path) -> None:
    """The losses dpo and sft learn from it."""
    policy: Any = base.load_policy("qwen_image", str(folder), "cpu", "float32")
    policy.vae.register_to_config(latents_mean=[0.5] * 4, latents_std=[2.0] * 4)
    generator = torch.Generator().manual_seed(0)
    picture = Image.fromarray(torch.randint(0, 255, (32, 48, 3), generator=generator, dtype=torch.uint8).numpy())
    latents = policy.encode_images([picture, picture.rotate(180)], (32, 48))
    assert latents.shape == policy.noise((32, 48), KEYS[:2]).shape and latents.dtype == torch.float32
    pixels = policy.pipeline.image_processor.preprocess(picture, 32, 48)
    raw = policy.vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0]
    assert torch.allclose(policy._unpacked(latents[:1], (32, 48))[:, :, 0] * 2 + 0.5, raw, atol=1e-5)


def test_one_frame_is_what_the_video_autoencoder_makes_of_it() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vae = AutoencoderKLQwenImage(
            base_dim=8, z_dim=4, dim_mult=[1, 1, 2], num_res_blocks=1, temperal_downsample=[False, True]
        ).eval()
        frames = torch.randn(2, 3, 5, 16, 16)
    with torch.inference_mode():
        picture, film = (vae.encode(x).latent_dist.mode() for x in (frames[:, :, :1], frames))
        decoded = vae.decode(picture).sample
        use_single_frame_convolutions(vae)
        assert (vae.encode(frames[:, :, :1]).latent_dist.mode() - picture).abs().max() < 1e-5
        assert (vae.decode(picture).sample - decoded).abs().max() < 1e-5
        assert (vae.encode(frames).latent_dist.mode() - film).abs().max() < 1e-5
