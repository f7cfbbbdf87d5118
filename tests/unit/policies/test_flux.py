"""The FLUX policy against the plain diffusers pipeline that it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from paco_core.config.params import LoraParams
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.models import precision
from paco_core.policies import base
from paco_core.policies.base import NoiseKey
from paco_core.policies.flux import FluxPolicy
from tests.support.tiny import TEXT_LENGTH, tiny_flux

PROMPTS = ["a red cat on the beach", "a small blue bear in the snow", "a frog"]
LORA = LoraParams(rank=4, alpha=8, targets=["to_q", "to_v", "net.2", "proj_mlp"])
KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux") / "flux")


@pytest.fixture
def policy(folder: Path) -> FluxPolicy:
    loaded = base.load_policy("flux", str(folder), "cpu", "float32")
    assert isinstance(loaded, FluxPolicy)
    return loaded


def train_a_little(policy: FluxPolicy) -> None:
    """Give the adapter weights that show: its B starts at zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)


def sample(policy: FluxPolicy, size: tuple[int, int]) -> np.ndarray:
    encoded = policy.encode(PROMPTS, TEXT_LENGTH)
    trajectory = rollout(policy, encoded, range(3), KEYS, Sampling.for_policy(policy, size, 4, 3.5))
    return np.stack([np.asarray(image, dtype=int) for image in policy.decode(trajectory.latents, size)])


def test_a_picture_is_encoded_by_the_inverse_of_decoding(repository: Path) -> None:
    policy = base.load_policy("flux", str(repository / "data/zoo/flux"), "cpu", "float32")
    squares = np.kron([[40, 200], [220, 90]], np.ones((32, 32))).astype(np.uint8)
    picture = Image.fromarray(np.stack([squares, squares.T, squares], axis=-1))
    latents = policy.encode_images([picture, picture.rotate(90)], (64, 64))
    assert latents.shape == policy.noise((64, 64), KEYS[:2]).shape and latents.dtype == torch.float32
    decoded = np.asarray(policy.decode(latents, (64, 64))[0], dtype=int)
    assert np.abs(decoded - np.asarray(picture, dtype=int)).mean() < 20
    assert torch.equal(latents[1:], policy.encode_images([picture.rotate(90)], (64, 64)))


def test_mixed_trains_as_float32_does_and_paints_nearly_the_same(
    policy: FluxPolicy, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "computes_bfloat16", lambda _device: True)
    mixed = FluxPolicy.load(str(folder), "cpu", "mixed")
    assert {p.dtype for p in mixed.transformer.parameters()} == {torch.float32}
    mixed_sample, exact = sample(mixed, (32, 32)), sample(policy, (32, 32))
    assert 0 < np.abs(mixed_sample - exact).mean() < 2, "levels of 255; random weights amplify what trained ones do not"
    noisy_steps = []
    for evaluated in (policy, mixed):
        sampling = Sampling.for_policy(evaluated, (32, 32), 4, 3.5, noise_steps=[0], noise_level=0.7)
        noisy_steps.append(
            rollout(evaluated, evaluated.encode(PROMPTS, TEXT_LENGTH), range(3), KEYS, sampling).noisy_steps[0]
        )
    assert torch.equal(noisy_steps[0].log_prob, noisy_steps[1].log_prob) and torch.equal(
        noisy_steps[0].after, noisy_steps[1].after
    )


def test_images_of_nan_are_an_error(policy: FluxPolicy) -> None:
    latents = policy.noise((32, 32), KEYS)
    latents[1, 0, 0] = torch.nan
    with pytest.raises(DataError, match="1 of 3"):
        policy.decode(latents, (32, 32))


def test_schedule_shifts_with_resolution(policy: FluxPolicy) -> None:
    """mu = 0.5 at 16 tokens, 1.15 at 144 (the scheduler's own range), sigma' = e^mu / (e^mu + 1/sigma - 1)."""
    for side, mu in ((64, 0.5), (192, 1.15), (128, 0.5 + 0.65 * (64 - 16) / 128)):
        plain = np.linspace(1.0, 0.25, 4)
        expected = np.exp(mu) / (np.exp(mu) + 1 / plain - 1)
        sigmas = policy.sigmas((side, side), 4)
        assert sigmas.dtype == torch.float32 and sigmas[-1] == 0
        assert sigmas[:-1].numpy() == pytest.approx(expected, rel=1e-5)


def test_other_adapters_predict_for_the_length_of_a_block(policy: FluxPolicy) -> None:
    """None = the bare model, a copy = the trained one as it was; only the trained one ever takes gradients."""
    size = (32, 32)
    bare = sample(policy, size)
    policy.add_adapter(LORA, 0)
    trainable = policy.trainable()
    train_a_little(policy)
    was = sample(policy, size)
    policy.copy_adapter("old")
    assert policy.adapter("old").keys() == trainable.keys()
    train_a_little(policy)
    now = sample(policy, size)
    assert np.abs(now - was).max() > 3
    with policy.using("old"):
        assert np.array_equal(sample(policy, size), was)
    with policy.using(None):
        assert np.array_equal(sample(policy, size), bare)
    assert np.array_equal(sample(policy, size), now)
    parameters = policy.trainable()
    assert list(parameters) == list(trainable) and all(parameters[name] is trainable[name] for name in parameters)


def test_the_seed_of_an_adapter_decides(folder: Path) -> None:
    first, twin, other = (FluxPolicy.load(str(folder), "cpu", "float32") for _ in range(3))
    for policy, seed in ((first, 1), (twin, 1), (other, 2)):
        policy.add_adapter(LORA, seed)
    name = next(iter(first.trainable()))
    assert torch.equal(first.trainable()[name], twin.trainable()[name])
    assert not torch.equal(first.trainable()[name], other.trainable()[name])


def test_what_cannot_be_loaded_or_painted_is_refused(policy: FluxPolicy, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="nothing"):
        base.load_policy("flux", str(tmp_path / "nothing"), "cpu", "float32")
    with pytest.raises(DataError, match="'fluxx'"):
        base.load_policy("fluxx", str(folder), "cpu", "float32")
    with pytest.raises(DataError, match="64 x 96"):
        policy.validate_size((70, 100))
    with pytest.raises(DataError, match=r"'to_qq'.*attn\.to_q"):
        policy.add_adapter(LoraParams(rank=2, alpha=2, targets=["to_q", "to_qq"]), 0)


def test_prompts_that_were_cut_are_named_with_what_is_lost(policy: FluxPolicy) -> None:
    long = " ".join(["a red cat"] * 40)
    policy.encode([long, "a frog"], TEXT_LENGTH)
    assert list(policy.truncations) == [long]
    cut, tokenizer = policy.truncations[long], policy.pipeline.tokenizer_2
    read_text = long.removesuffix(cut.lost)
    assert read_text != long and len(tokenizer(read_text.strip()).input_ids) == TEXT_LENGTH, "the closing token stays"
    assert cut.tokens == len(tokenizer(long).input_ids) and cut.window == TEXT_LENGTH
    policy.encode([long], 512)
    assert not policy.truncations, "a longer window reads it all"


def test_half_precision_keeps_adapter_and_schedule_in_fp32(folder: Path) -> None:
    policy = FluxPolicy.load(str(folder), "cpu", "bfloat16")
    policy.add_adapter(LORA, 0)
    encoded, noise = policy.encode(PROMPTS[:1], TEXT_LENGTH), policy.noise((32, 32), KEYS[:1])
    v = policy.velocity(noise, 0.9, encoded.take([0]), 3.5, (32, 32))
    assert v.dtype == noise.dtype == policy.sigmas((32, 32), 4).dtype == torch.float32
    v.sum().backward()
    weights = policy.trainable().values()
    assert {p.dtype for p in weights} | {p.grad.dtype for p in weights if p.grad is not None} == {torch.float32}


def test_an_adapter_is_measured_as_it_was_trained(folder: Path, tmp_path: Path) -> None:
    """In float32 beside a bfloat16 model: the velocities after loading are those of training's last evaluation."""
    trained = FluxPolicy.load(str(folder), "cpu", "bfloat16")
    trained.add_adapter(LORA, 0)
    train_a_little(trained)
    trained.save_adapter(tmp_path / "adapter")
    noise, encoded = trained.noise((32, 32), KEYS[:1]), trained.encode(PROMPTS[:1], TEXT_LENGTH).take([0])
    for enter in ("load_adapter", "start_from"):
        other = FluxPolicy.load(str(folder), "cpu", "bfloat16")
        getattr(other, enter)(str(tmp_path / "adapter"))
        assert {tensor.dtype for tensor in other.adapter("default").values()} == {torch.float32}
        with torch.no_grad():
            expected, actual = (p.velocity(noise, 0.9, encoded, 3.5, (32, 32)) for p in (trained, other))
        assert torch.equal(expected, actual), enter


def test_untrained_steps_multiply_by_the_adapter_in_bfloat16_on_a_gpu(folder: Path) -> None:
    policy = FluxPolicy.load(str(folder), "cpu", "bfloat16")
    policy.add_adapter(LORA, 0)
    train_a_little(policy)
    weights = list(policy.trainable().values())
    exact = [weight.detach().clone() for weight in weights]
    with policy.inference_precision():
        assert {weight.dtype for weight in weights} == {torch.float32}, "a processor computes as before"
    policy.device = "cuda"
    with pytest.raises(RuntimeError, match="ended"), policy.inference_precision():
        assert {weight.dtype for weight in weights} == {torch.bfloat16}
        raise RuntimeError("ended")
    assert all(torch.equal(before, weight) for before, weight in zip(exact, weights, strict=True))
    assert all(weight.dtype == torch.float32 and weight.requires_grad for weight in weights)
