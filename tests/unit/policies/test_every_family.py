"""Every family against the plain diffusers pipeline that it is made of: images, log-probabilities, adapters, caches."""

from __future__ import annotations

import json
import shutil
import weakref
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from paco_core.config.params import PolicyLora
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.models.pipeline_index import find_index
from paco_core.planning.allocations import MasksWithValues
from paco_core.policies import families
from paco_core.policies.base import Size
from paco_core.policies.encoded import Encoded
from tests.support.policy_families import FAMILIES, GUIDANCE, KEYS, Family, build, references
from tests.support.released_lora import as_released

LORA, SIZE = PolicyLora(rank=4, alpha=8), (32, 32)


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name + family.version)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(family, tmp_path_factory)


@pytest.fixture
def policy(family: Family, folder: Path) -> Any:
    return family.load(folder, reference_size=1024 if "klein" in family.name else None)


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
@pytest.mark.parametrize("size", [(32, 32), (64, 32)])
def test_pictures_equal_those_of_the_pipeline(
    family: Family, policy: Any, monkeypatch: pytest.MonkeyPatch, size: Size, guidance: float
) -> None:
    options = family.references_as_large(policy.pipeline, size, monkeypatch)
    expected = family.by_pipeline(policy.pipeline, policy.noise(size, KEYS), size, guidance, **options)
    assert expected.std() > 1
    assert np.abs(family.sample(policy, size, guidance) - expected).max() <= 1


@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
def test_log_probability_before_an_update_is_the_rollouts(family: Family, policy: Any, guidance: float) -> None:
    """In other batches than the rollout's, whose longest prompt is another one."""
    policy.add_adapter(LORA, 0)
    family.train_a_little(policy)
    encoded = family.encode(policy, SIZE, guidance)
    sampling = Sampling.for_policy(policy, SIZE, 4, guidance, noise_steps=[1], noise_level=0.7)
    noisy_step = rollout(policy, encoded, [0, 1, 2], KEYS, sampling).noisy_steps[0]
    for rows in ([1, 0], [2], [1]):
        part, step = noisy_step.take(rows), sampling.steps[1]
        v = policy.velocity(part.before, step.sigma, encoded.take(rows), guidance, SIZE)
        assert v.requires_grad and v.dtype == torch.float32
        log_prob = DYNAMICS["flow_sde"].log_prob(part.after, DYNAMICS["flow_sde"].transition(part.before, v, step))
        assert (log_prob - part.log_prob).abs().max() < 1e-5


@pytest.mark.slow
def test_adapter_loads_into_a_plain_pipeline(
    family: Family, policy: Any, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = family.sample(policy, SIZE)
    policy.add_adapter(LORA, 0)
    assert np.array_equal(family.sample(policy, SIZE), before)
    layers = {name.rsplit(".lora_", 1)[0] for name in policy.trainable()}
    assert all(any(name.endswith(target) for name in layers) for target in policy.family_spec.lora_targets)
    family.train_a_little(policy)
    trained = family.sample(policy, SIZE)
    assert np.abs(trained - before).max() > 3
    policy.save_adapter(tmp_path / "adapter")
    assert [path.suffix for path in (tmp_path / "adapter").iterdir()] == [".safetensors"]
    plain = family.plain(folder)
    plain.load_lora_weights(tmp_path / "adapter")
    options = family.references_as_large(plain, SIZE, monkeypatch)
    expected = family.by_pipeline(plain, policy.noise(SIZE, KEYS), SIZE, GUIDANCE, **options)
    assert np.abs(expected - trained).max() <= 1
    other = family.load(folder, reference_size=policy.reference_size)
    other.start_from(str(tmp_path / "adapter"), LORA.alpha / LORA.rank)
    assert np.abs(family.sample(other, SIZE) - trained).max() <= 1
    assert all(torch.equal(p, policy.trainable()[name]) for name, p in other.trainable().items())


def test_an_adapter_of_the_released_trainer_is_a_starting_point(
    family: Family, policy: Any, folder: Path, tmp_path: Path
) -> None:
    policy.add_adapter(LORA, 0)
    family.train_a_little(policy)
    other = family.load(folder, reference_size=policy.reference_size)
    other.start_from(str(as_released(policy, tmp_path / "lora")), LORA.alpha / LORA.rank)
    assert np.array_equal(family.sample(other, SIZE), family.sample(policy, SIZE))
    assert all(torch.equal(p, policy.trainable()[name]) for name, p in other.trainable().items())


def test_gradient_checkpointing_changes_no_gradient(family: Family, policy: Any) -> None:
    policy.add_adapter(LORA, 0)
    family.train_a_little(policy)
    encoded, noise = family.encode(policy, SIZE), policy.noise(SIZE, KEYS)

    def gradients() -> list[torch.Tensor]:
        policy.velocity(noise, 0.8, encoded.take(range(3)), GUIDANCE, SIZE).square().sum().backward()
        tensors = [p.grad for p in policy.trainable().values() if p.grad is not None]  # the last texts lead nowhere
        policy.transformer.zero_grad()
        assert len(tensors) > 10
        return tensors

    plain = gradients()
    policy.transformer.train()  # diffusers checkpoints in training only
    policy.enable_gradient_checkpointing()
    for before, after in zip(plain, gradients(), strict=True):
        assert torch.allclose(before, after, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_what_was_encoded_once_is_not_encoded_again(
    family: Family, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = family.encode(family.load(folder, cache=tmp_path), SIZE)
    reloaded = family.load(folder, cache=tmp_path)

    def fail(*_args: object, **_options: object) -> None:
        raise AssertionError("an encoder ran")

    for name in family.encoders:
        *parts, method = name.split(".")
        monkeypatch.setattr(reduce(getattr, parts, reloaded.pipeline), method, fail)
    reloaded.drop_encoders()
    for row, before in zip(family.encode(reloaded, SIZE).rows, first.rows, strict=True):
        assert row.keys() == before.keys() and all(torch.equal(row[name], before[name]) for name in row)
    rows = [first.rows[0], *(family.encode(reloaded, SIZE, guidance).rows[0] for guidance in (GUIDANCE, 1.0))]
    by_default, guided, unguided = ({name.partition(" ")[0] for name in row} for row in rows)
    assert guided == by_default and guided - unguided == (
        {"negative_prompt_embeds"} if reloaded.family_spec.true_guidance else set()
    )
    with pytest.raises(RuntimeError, match="dropped"):
        reloaded.encode(["another one"], family.length, *family.reference_arguments(SIZE, 1))


def test_another_pipeline_class_is_refused(family: Family, folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    file = find_index(tmp_path / "other")
    assert file is not None
    file.write_text(json.dumps({**json.loads(file.read_text()), "_class_name": "FluxInpaintPipeline"}))
    with pytest.raises(DataError, match=f"FluxInpaintPipeline.*{family.name}"):
        family.load(tmp_path / "other")


def test_every_family_is_here() -> None:
    assert {family.name for family in FAMILIES} == set(families.FAMILIES)


def test_a_picture_is_encoded_to_the_latents_that_its_reference_has(family: Family, policy: Any) -> None:
    """The losses dpo and sft learn from it; references keep their proportions, which are a square's here."""
    size = (64, 64)
    latents = policy.encode_images(references(), size)
    assert latents.shape == policy.noise(size, KEYS).shape and latents.dtype == torch.float32
    if family.edits:
        rows = family.encode(policy, size).rows
        assert torch.equal(latents, torch.stack([row["image_latents 64x64"].float() for row in rows]))


@pytest.mark.slow
def test_a_rollout_leaves_nothing_that_a_trained_pass_cannot_use(family: Family, policy: Any) -> None:
    """On ``meta``, which computes nothing, but gets copies as a GPU does.

    Qwen-Image caches rotary frequencies of such a copy in the first pass: the rollout's.
    """
    encoded = family.encode(policy, SIZE)
    policy.add_adapter(LORA, 0)
    policy.transformer.to("meta")
    policy.device = "meta"
    encoded = Encoded(encoded.rows, policy.device)
    sampling = Sampling.for_policy(policy, SIZE, 3, GUIDANCE, noise_steps=[1], noise_level=0.7)
    with MasksWithValues():
        noisy_step = rollout(policy, encoded, [0, 1, 2], KEYS, sampling).noisy_steps[0]
        velocity = policy.velocity(noisy_step.before, sampling.steps[1].sigma, encoded.take([0, 1, 2]), GUIDANCE, SIZE)
        transition = DYNAMICS["flow_sde"].transition(noisy_step.before, velocity, sampling.steps[1])
        DYNAMICS["flow_sde"].log_prob(noisy_step.after, transition).sum().backward()
    assert any(parameter.grad is not None for parameter in policy.trainable().values())


@pytest.mark.slow
def test_memory_of_the_text_encoders_goes_back_to_the_gpu(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch would keep it for tensors to come: 10 GB of FLUX, 17 GB of Qwen-Image-Edit."""
    encoders = [weakref.ref(getattr(policy.pipeline, part)) for part in policy.family_spec.text_encoders]
    left = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: left.append([encoder() for encoder in encoders]))
    policy.device = "cuda"
    policy.drop_encoders()
    assert encoders and left == [[None] * len(encoders)], "no encoder lives when the memory is given back"
