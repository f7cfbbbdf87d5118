"""Qwen-Image against the plain pipeline: pictures, batches of unequal prompts, adapters, refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.config.params import PolicyLora
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.cuts import of_records
from paco_core.policies.pipeline_cuts import cut_prompts
from tests.support.dataset_world import records
from tests.support.tiny_pipelines import qwen_image

LENGTH, SIZE = 128, (32, 32)  # the small tokenizer makes 60 tokens more of the template than are dropped
PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]
KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With louder weights: as drawn, words hardly move a picture."""
    from diffusers import QwenImageTransformer2DModel

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        made = qwen_image(tmp_path_factory.mktemp("qwen_image") / "model")
    transformer: Any = QwenImageTransformer2DModel.from_pretrained(made / "transformer")
    for parameter in transformer.parameters():
        parameter.data *= 3 if parameter.ndim > 1 else 1
    transformer.save_pretrained(made / "transformer")
    return made


@pytest.fixture
def policy(folder: Path) -> Any:
    return base.load("qwen_image", str(folder), "cpu", "float32")


def sample(policy: Any, size: Size = SIZE, steps: int = 3, guidance: float = 4.0) -> np.ndarray:
    encoded = policy.encode(PROMPTS, LENGTH, guidance=guidance)
    done = rollout(policy, encoded, range(3), KEYS, Sampling.for_policy(policy, size, steps, guidance))
    return np.stack([np.asarray(image, dtype=int) for image in policy.decode(done.latents, size)])


def by_pipeline(
    pipeline: Any, noise: torch.Tensor, size: Size = SIZE, steps: int = 3, guidance: float = 4.0
) -> np.ndarray:
    found = pipeline(
        prompt=PROMPTS, negative_prompt=[" "] * 3, true_cfg_scale=guidance, height=size[0], width=size[1],
        num_inference_steps=steps, latents=noise, max_sequence_length=LENGTH,
    )  # fmt: skip
    return np.stack([np.asarray(image, dtype=int) for image in found.images])


def train_a_little(policy: Any) -> None:
    policy.add_adapter(PolicyLora(rank=4, alpha=8), 0)
    generator = torch.Generator().manual_seed(5)
    for parameter in policy.trainable().values():
        parameter.data += torch.randn(parameter.shape, generator=generator) * 0.3


@pytest.mark.parametrize("size", [(32, 32), (64, 48)])
@pytest.mark.parametrize("steps", [3, 5])
def test_pictures_equal_those_of_the_pipeline(policy: Any, size: Size, steps: int) -> None:
    found = {}
    for guidance in (1.0, 4.0):
        expected = by_pipeline(policy.pipeline, policy.noise(size, KEYS), size, steps, guidance)
        found[guidance] = sample(policy, size, steps, guidance)
        assert np.abs(found[guidance] - expected).max() <= 1 and expected.std() > 1
    assert np.abs(found[1.0] - found[4.0]).max() > 3


def test_log_probability_before_an_update_is_the_rollouts(policy: Any) -> None:
    """In other batches than the rollout's, whose longest prompt is another one."""
    train_a_little(policy)
    encoded = policy.encode(PROMPTS, LENGTH, guidance=4.0)
    sampling = Sampling.for_policy(policy, SIZE, 4, 4.0, noise_steps=[1], noise_level=0.7)
    kept = rollout(policy, encoded, [0, 1, 2], KEYS, sampling).kept[0]
    for rows in ([1, 0], [2], [1]):
        part, step = kept.take(rows), sampling.steps[1]
        v = policy.velocity(part.before, step.sigma, encoded.take(rows), 4.0, SIZE)
        assert v.requires_grad and v.dtype == torch.float32
        found = DYNAMICS["flow_sde"].log_prob(part.after, DYNAMICS["flow_sde"].transition(part.before, v, step))
        assert (found - part.log_prob).abs().max() < 1e-5


def test_adapter_loads_into_a_plain_pipeline(policy: Any, folder: Path, tmp_path: Path) -> None:
    import diffusers

    before = sample(policy)
    train_a_little(policy)
    trained = sample(policy)
    assert np.abs(trained - before).max() > 3
    policy.save_adapter(tmp_path / "adapter")
    plain: Any = diffusers.QwenImagePipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    plain.load_lora_weights(tmp_path / "adapter")
    assert np.abs(by_pipeline(plain, policy.noise(SIZE, KEYS)) - trained).max() <= 1
    other: Any = base.load("qwen_image", str(folder), "cpu", "float32")
    other.start_from(str(tmp_path / "adapter"))
    assert np.array_equal(sample(other), trained)


def test_what_was_encoded_once_is_not_encoded_again(folder: Path, tmp_path: Path) -> None:
    first = base.load("qwen_image", str(folder), "cpu", "float32", cache=tmp_path).encode(PROMPTS, LENGTH)
    again: Any = base.load("qwen_image", str(folder), "cpu", "float32", cache=tmp_path)
    again.drop_encoders()
    second = again.encode(PROMPTS, LENGTH)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(first.rows, second.rows, strict=True) for name in a)
    assert set(first.rows[0]) - set(again.encode(PROMPTS, LENGTH, guidance=1.0).rows[0]) == {"negative"}
    with pytest.raises(RuntimeError, match="dropped"):
        again.encode(PROMPTS, LENGTH - 1)


def test_a_long_prompt_is_noted_as_the_pipeline_cuts_it(policy: Any) -> None:
    policy.encode([long := " ".join(["The colour"] * 40), "short"], LENGTH)
    (cut,) = policy.cut.values()
    assert set(policy.cut) == {long} and cut.lost and long.endswith(cut.lost)
    other = long.removesuffix(cut.lost) + "is the same and something else entirely, on and on and on and on and on"
    first, second = policy.encode([long, other], LENGTH).rows
    assert torch.allclose(first["text"], second["text"], atol=1e-5), "what is noted as lost makes no difference"


def test_grids_count_what_the_pipeline_cuts(policy: Any, folder: Path) -> None:
    """The template's tokens count, as its fixed opening does not: by the tokenizer's own count nothing is cut."""
    asked = zip(records(2), [" ".join(["The colour"] * 40), "short"], strict=True)
    given = [record.model_copy(update={"prompt": prompt}) for record, prompt in asked]
    policy.encode([record.prompt for record in given], LENGTH)
    found = cut_prompts(folder, given, LENGTH)
    assert list(found) == [given[0].idx] and found == of_records(policy.cut, given)
    assert len(policy.pipeline.tokenizer(given[0].prompt).input_ids) < LENGTH


def test_a_picture_is_encoded_as_the_autoencoder_is_normalised(folder: Path) -> None:
    """The losses dpo and sft learn from it."""
    policy: Any = base.load("qwen_image", str(folder), "cpu", "float32")
    policy.vae.register_to_config(latents_mean=[0.5] * 4, latents_std=[2.0] * 4)
    generator = torch.Generator().manual_seed(0)
    picture = Image.fromarray(torch.randint(0, 255, (32, 48, 3), generator=generator, dtype=torch.uint8).numpy())
    latents = policy.encode_pictures([picture, picture.rotate(180)], (32, 48))
    assert latents.shape == policy.noise((32, 48), KEYS[:2]).shape and latents.dtype == torch.float32
    pixels = policy.pipeline.image_processor.preprocess(picture, 32, 48)
    raw = policy.vae.encode(pixels.unsqueeze(2)).latent_dist.mode()[:, :, 0]
    assert torch.allclose(policy._unpacked(latents[:1], (32, 48))[:, :, 0] * 2 + 0.5, raw, atol=1e-5)


def test_references_are_refused(policy: Any) -> None:
    with pytest.raises(DataError, match="the family qwen_image paints from text alone, and was given 1"):
        policy.encode(PROMPTS[:1], LENGTH, [Image.new("RGB", (64, 64))], [[SIZE]])
