"""The editing policies against the plain diffusers pipelines that they are made of."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus
from PIL import Image

from paco_core.config.params import PolicyLora
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.base import NoiseKey, Size
from paco_core.policies.families import family_of
from tests.support.released_lora import as_released
from tests.support.tiny import TEXT_LENGTH, tiny_flux, tiny_kontext
from tests.support.tiny_pipelines import qwen_image_edit, qwen_image_edit_plus

PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]
KEYS = [NoiseKey(f"p{n}", n, 3) for n in range(3)]
LORA = PolicyLora(rank=4, alpha=8)
STEPS, GUIDANCE = 3, 3.5
QWEN = "diffusers.pipelines.qwenimage.pipeline_qwenimage_edit"


def references(count: int = 3) -> list[Image.Image]:
    rng = np.random.default_rng(4)
    small = [Image.fromarray(rng.integers(0, 255, (4, 4, 3), dtype=np.uint8)) for _ in range(count)]
    return [image.resize((64, 64), Image.Resampling.NEAREST) for image in small]


@dataclass(frozen=True)
class Family:
    """How a family's plain pipeline is asked for the same edit."""

    name: str
    build: Callable[[Path], Path]
    encoders: tuple[str, ...] = ("encode_prompt", "_encode_vae_image")  # what an encoding runs
    version: str = ""

    def by_pipeline(self, pipeline: Any, noise: torch.Tensor, size: Size, guidance: float, **more: Any) -> np.ndarray:
        asked: dict[str, Any] = {"prompt": PROMPTS, "image": references(), "latents": noise, **more}
        asked |= {"height": size[0], "width": size[1], "num_inference_steps": STEPS}
        if self.name == "flux_kontext":
            asked |= {"guidance_scale": guidance, "max_area": size[0] * size[1], "max_sequence_length": TEXT_LENGTH}
        else:
            asked |= {"true_cfg_scale": guidance, "negative_prompt": [" "] * len(asked["prompt"])}
        if self.name != "qwen_image_edit_plus":
            return arrays(pipeline(**asked).images)
        rows = zip(asked["prompt"], asked["image"], asked["latents"].split(1), strict=True)  # it takes one at a time
        one = [{"prompt": p, "image": i, "latents": n, "negative_prompt": " "} for p, i, n in rows]
        return arrays([pipeline(**{**asked, **row}).images[0] for row in one])


FAMILIES = [
    Family("flux_kontext", tiny_kontext),
    Family("qwen_image_edit", qwen_image_edit),
    Family("qwen_image_edit_plus", qwen_image_edit_plus, version="2509"),
    Family("qwen_image_edit_plus", partial(qwen_image_edit_plus, zero_cond_t=True), version="2511"),
]


def arrays(images: list[Image.Image]) -> np.ndarray:
    return np.stack([np.asarray(image, dtype=int) for image in images])


@pytest.fixture(scope="module", params=FAMILIES, ids=lambda family: family.name + family.version)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return family.build(tmp_path_factory.mktemp(family.name + family.version) / "model")


@pytest.fixture
def policy(family: Family, folder: Path) -> Any:
    return base.load(family.name, str(folder), "cpu", "float32")


def sample(policy: Any, size: Size, guidance: float = GUIDANCE, rows: int = 3) -> np.ndarray:
    encoded = policy.encode(PROMPTS[:rows], TEXT_LENGTH, references()[:rows], [[size]] * rows)
    done = rollout(policy, encoded, range(rows), KEYS[:rows], Sampling.for_policy(policy, size, STEPS, guidance))
    return arrays(policy.decode(done.latents, size))


def train_a_little(policy: Any) -> None:
    """Give the adapter weights that show: its B starts at zero."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in policy.trainable().values():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)


@pytest.fixture
def as_large(monkeypatch: pytest.MonkeyPatch, family: Family) -> Callable[[Any, Size], dict[str, Any]]:
    """Let the plain pipeline bring references to the size of the picture, not to a million pixels."""

    def arrange(pipeline: Any, size: Size) -> dict[str, Any]:
        if family.name == "flux_kontext":
            resized = [pipeline.image_processor.resize(image, *size) for image in references()]
            return {"image": resized, "_auto_resize": False}
        monkeypatch.setattr(f"{QWEN}.calculate_dimensions", lambda _area, _ratio: (size[1], size[0], None))
        monkeypatch.setattr(plus, "VAE_IMAGE_SIZE", size[0] * size[1])
        return {}

    return arrange


@pytest.mark.slow
@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
@pytest.mark.parametrize("size", [(32, 32), (64, 32)])
def test_pictures_equal_those_of_the_pipeline(
    family: Family, policy: Any, as_large: Callable[..., dict[str, Any]], size: Size, guidance: float
) -> None:
    more = as_large(policy.pipeline, size)
    expected = family.by_pipeline(policy.pipeline, policy.noise(size, KEYS), size, guidance, **more)
    assert expected.std() > 1
    assert np.abs(sample(policy, size, guidance) - expected).max() <= 1


@pytest.mark.slow
def test_pictures_equal_those_of_the_pipeline_at_large_references(family: Family, folder: Path) -> None:
    size = (32, 32)
    policy = base.load(family.name, str(folder), "cpu", "float32", reference_size=1024)
    only_one = {"prompt": PROMPTS[:1], "image": references(1)}
    plain: Any = policy
    expected = family.by_pipeline(plain.pipeline, policy.noise(size, KEYS[:1]), size, GUIDANCE, **only_one)
    assert np.abs(sample(policy, size, rows=1) - expected).max() <= 1


def test_reference_instruction_and_noise_all_matter(policy: Any) -> None:
    size = (32, 32)
    sampling = Sampling.for_policy(policy, size, STEPS, GUIDANCE)

    def paint(prompt: str, reference: Image.Image, key: NoiseKey) -> np.ndarray:
        encoded = policy.encode([prompt], TEXT_LENGTH, [reference], [[size]])
        return arrays(policy.decode(rollout(policy, encoded, [0], [key], sampling).latents, size))

    first, second = references(2)
    plain = paint(PROMPTS[0], first, KEYS[0])
    assert np.array_equal(paint(PROMPTS[0], first, KEYS[0]), plain)
    for other in ((PROMPTS[2], first, KEYS[0]), (PROMPTS[0], second, KEYS[0]), (PROMPTS[0], first, KEYS[1])):
        assert not np.array_equal(paint(*other), plain)


def test_one_encoding_serves_every_size_it_was_made_for(policy: Any) -> None:
    sizes = [(32, 32), (64, 64)]
    encoded = policy.encode(PROMPTS, TEXT_LENGTH, references(), [sizes] * 3)
    for size in sizes:
        done = rollout(policy, encoded, range(3), KEYS, Sampling.for_policy(policy, size, STEPS, GUIDANCE))
        assert np.abs(arrays(policy.decode(done.latents, size)) - sample(policy, size)).max() <= 1


def test_a_picture_is_encoded_to_the_latents_that_its_reference_has(policy: Any) -> None:
    several = policy.known.references[1] > 1
    size = (64, 64) if several else (64, 32)  # several references keep their own proportions: here a square's
    encoded = policy.encode(PROMPTS, TEXT_LENGTH, references(), [[size]] * 3)
    latents = policy.encode_pictures(references(), size)
    assert torch.equal(latents, encoded.take([0, 1, 2]).tensors[f"reference {size[0]}x{size[1]}"].float())
    assert latents.shape == policy.noise(size, KEYS).shape


def test_an_empty_instruction_is_encoded_only_for_guided_passes(policy: Any) -> None:
    def names(guidance: float | None) -> set[str]:
        encoded = policy.encode(PROMPTS[:1], TEXT_LENGTH, references(1), [[(32, 32)]], guidance=guidance)
        return {name.partition(" ")[0] for name in encoded.rows[0]}

    guided = names(GUIDANCE)
    assert names(None) == guided
    assert guided - names(1.0) == ({"negative"} if policy.known.true_guidance else set())


@pytest.mark.slow
def test_a_prompt_is_encoded_at_the_sizes_of_its_own_pictures(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Four shapes take as many passes of an encoder as one shape, and no memory beside the weights."""

    def passes(own: list[list[tuple[int, int]]]) -> tuple[int, Any]:
        ran: list[str] = []
        for name in ("text_encoder", "vae"):
            part = getattr(policy.pipeline, name)
            method = "forward" if name == "text_encoder" else "encode"
            real = getattr(part, method)
            monkeypatch.setattr(part, method, lambda *a, _real=real, **k: ran.append("") or _real(*a, **k))
        encoded = policy.encode(PROMPTS, TEXT_LENGTH, references(), own)
        monkeypatch.undo()
        return len(ran), encoded

    shapes = [[(32, 32)], [(64, 32)], [(32, 64)]]
    ran, encoded = passes(shapes)
    assert ran == passes([[(32, 32)]] * 3)[0] and passes([[(32, 32), (96, 64)]] * 3)[0] > ran
    for row, (size,) in enumerate(shapes):
        named = [name for name in encoded.rows[row] if name.startswith("reference ") and "shapes" not in name]
        assert named == [f"reference {size[0]}x{size[1]}"]
        alone = sample(policy, size)[row]
        done = rollout(policy, encoded, [row], KEYS[row : row + 1], Sampling.for_policy(policy, size, STEPS, GUIDANCE))
        assert np.abs(arrays(policy.decode(done.latents, size))[0] - alone).max() <= 1
    assert all(tensor.device.type == "cpu" for row in encoded.rows for tensor in row.values())


@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
def test_log_probability_before_an_update_is_the_rollouts(policy: Any, guidance: float) -> None:
    """In other batches than the rollout's, whose longest instruction is another one."""
    size = (32, 32)
    policy.add_adapter(LORA, 0)
    train_a_little(policy)
    encoded = policy.encode(PROMPTS, TEXT_LENGTH, references(), [[size]] * 3, guidance=guidance)
    sampling = Sampling.for_policy(policy, size, 4, guidance, noise_steps=[1], noise_level=0.7)
    kept = rollout(policy, encoded, [0, 1, 2], KEYS, sampling).kept[0]
    for rows in ([1, 0], [2], [1]):
        part, step = kept.take(rows), sampling.steps[1]
        v = policy.velocity(part.before, step.sigma, encoded.take(rows), guidance, size)
        assert v.requires_grad and v.dtype == torch.float32
        found = DYNAMICS["flow_sde"].log_prob(part.after, DYNAMICS["flow_sde"].transition(part.before, v, step))
        assert (found - part.log_prob).abs().max() < 1e-5


@pytest.mark.slow
def test_adapter_loads_into_a_plain_pipeline(
    family: Family, policy: Any, folder: Path, tmp_path: Path, as_large: Callable[..., dict[str, Any]]
) -> None:
    import diffusers

    size = (32, 32)
    before = sample(policy, size)
    policy.add_adapter(LORA, 0)
    tails = {name.rsplit(".lora_", 1)[0] for name in policy.trainable()}
    assert all(any(name.endswith(target) for name in tails) for target in policy.known.lora_targets)
    train_a_little(policy)
    trained = sample(policy, size)
    assert np.abs(trained - before).max() > 3
    policy.save_adapter(tmp_path / "adapter")
    plain = getattr(diffusers, policy.known.pipeline).from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    plain.load_lora_weights(tmp_path / "adapter")
    more = as_large(plain, size)
    found = family.by_pipeline(plain, policy.noise(size, KEYS), size, GUIDANCE, **more)
    assert np.abs(found - trained).max() <= 1
    other: Any = base.load(family.name, str(folder), "cpu", "float32")
    other.start_from(str(tmp_path / "adapter"))
    assert np.abs(sample(other, size) - trained).max() <= 1
    assert all(torch.equal(p, policy.trainable()[name]) for name, p in other.trainable().items())


def test_an_adapter_of_the_released_trainer_is_a_starting_point(
    family: Family, policy: Any, folder: Path, tmp_path: Path
) -> None:
    policy.add_adapter(LORA, 0)
    train_a_little(policy)
    other: Any = base.load(family.name, str(folder), "cpu", "float32")
    other.start_from(str(as_released(policy, tmp_path / "lora")))
    assert np.array_equal(sample(other, (32, 32)), sample(policy, (32, 32)))
    assert all(torch.equal(p, policy.trainable()[name]) for name, p in other.trainable().items())


def test_gradient_checkpointing_changes_no_gradient(policy: Any) -> None:
    size = (32, 32)
    policy.add_adapter(LORA, 0)
    train_a_little(policy)
    encoded, noise = policy.encode(PROMPTS, TEXT_LENGTH, references(), [[size]] * 3), policy.noise(size, KEYS)

    def gradients() -> list[torch.Tensor]:
        policy.velocity(noise, 0.8, encoded.take(range(3)), GUIDANCE, size).square().sum().backward()
        found = [p.grad for p in policy.trainable().values() if p.grad is not None]  # the last texts lead nowhere
        policy.transformer.zero_grad()
        assert len(found) > 10
        return found

    plain = gradients()
    policy.transformer.train()  # diffusers checkpoints in training only
    policy.enable_gradient_checkpointing()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, gradients(), strict=True))


@pytest.mark.slow
def test_what_was_encoded_once_is_not_encoded_again(
    family: Family, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, args = (32, 32), (PROMPTS, TEXT_LENGTH, references(), [[(32, 32)]] * 3)
    first = base.load(family.name, str(folder), "cpu", "float32", cache=tmp_path).encode(*args)
    again: Any = base.load(family.name, str(folder), "cpu", "float32", cache=tmp_path)

    def refuse(*_args: object, **_more: object) -> None:
        raise AssertionError("an encoder ran")

    for name in family.encoders:
        monkeypatch.setattr(again.pipeline, name, refuse)
    again.drop_encoders()
    second = again.encode(*args)
    for row, before in zip(second.rows, first.rows, strict=True):
        assert row.keys() == before.keys() and all(torch.equal(row[name], before[name]) for name in row)
    with pytest.raises(RuntimeError, match="dropped"):
        again.encode(["another one"], TEXT_LENGTH, references(1), [[size]])


@pytest.mark.slow
def test_encodings_are_those_of_these_encoders_pictures_and_lengths(
    family: Family, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def runs(model: Path, prompt: str = PROMPTS[2], reference: int = 0, length: int = TEXT_LENGTH) -> int:
        policy: Any = base.load(family.name, str(model), "cpu", "float32", cache=cache)
        ran: list[str] = []
        for name in family.encoders:
            real = getattr(policy.pipeline, name)
            monkeypatch.setattr(
                policy.pipeline, name, lambda *a, _real=real, _name=name, **k: ran.append(_name) or _real(*a, **k)
            )
        policy.encode([prompt], length, [references(2)[reference]], [[(32, 32)]])
        return len(ran)

    assert runs(folder) >= 2 and runs(folder) == 0
    assert runs(folder, prompt=PROMPTS[0]) >= 1
    assert runs(folder, reference=1) >= 1
    assert runs(folder, length=4) >= 1
    for file in cache.rglob("*.safetensors"):
        file.write_bytes(b"cut off")
    assert runs(folder) >= 2 and runs(folder) == 0
    other = tmp_path / "other"
    shutil.copytree(folder, other, copy_function=shutil.copy)  # other times, the same encoders
    assert runs(other) == 0
    with (other / "text_encoder/config.json").open("a") as stream:
        stream.write("\n")
    assert runs(other) >= 2


def test_references_must_fit_the_prompts(policy: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="per prompt: 3 prompts came with 0"):
        policy.encode(PROMPTS, TEXT_LENGTH, None, [[(32, 32)]] * 3)
    with pytest.raises(DataError, match="3 prompts came with 2 pictures"):
        policy.encode(PROMPTS, TEXT_LENGTH, references(2), [[(32, 32)]] * 3)
    with pytest.raises(DataError, match="nearest that does is 48 x 32"):
        policy.encode(PROMPTS, TEXT_LENGTH, references(), [[(50, 32)]] * 3)
    with pytest.raises(ValueError, match="sizes"):
        policy.encode(PROMPTS, TEXT_LENGTH, references())
    with pytest.raises(ValueError, match="sizes"):
        policy.encode(PROMPTS, TEXT_LENGTH, references(), [[(32, 32)], [], [(32, 32)]])
    with pytest.raises(DataError, match="from text alone, and was given 3 reference pictures"):
        flux = base.load("flux", str(tiny_flux(tmp_path / "flux")), "cpu", "float32")
        flux.encode(PROMPTS, TEXT_LENGTH, references(), [[(32, 32)]] * 3)


@pytest.mark.parametrize("other", ["FluxPipeline", "QwenImageEditInpaintPipeline"])
def test_another_pipeline_class_is_refused(family: Family, folder: Path, tmp_path: Path, other: str) -> None:
    shutil.copytree(folder, tmp_path / "other")
    index = json.loads((folder / "model_index.json").read_text())
    (tmp_path / "other" / "model_index.json").write_text(json.dumps({**index, "_class_name": other}))
    with pytest.raises(DataError, match=f"holds a {other}, the family {family.name} needs a"):
        base.load(family.name, str(tmp_path / "other"), "cpu", "float32")


def test_instructions_that_were_cut_are_named_with_what_is_lost(policy: Any) -> None:
    policy.encode([long := " ".join(["a red cat"] * 40), "a frog"], 8, references(2), [[(32, 32)]] * 2)
    assert {text: cut.window for text, cut in policy.cut.items()} == {long: 8} and long.endswith(policy.cut[long].lost)


def test_the_text_encoder_of_plus_sees_what_its_pipeline_shows_it(tmp_path: Path) -> None:
    known = family_of("qwen_image_edit_plus")
    assert known.condition_size is not None and known.condition_size**2 == plus.CONDITION_IMAGE_SIZE
    policy: Any = base.load("qwen_image_edit_plus", str(qwen_image_edit_plus(tmp_path / "model")), "cpu", "float32")
    seen: list[tuple[list[str], list[tuple[int, int]]]] = []
    real = policy.pipeline.processor

    def look(text: list[str], images: list[Image.Image], **more: Any) -> Any:
        seen.append((text, [image.size for image in images]))
        return real(text=text, images=images, **more)

    policy.pipeline.processor = look
    policy.encode(PROMPTS[:1], TEXT_LENGTH, references(1), [[(64, 32)]])
    (text, sizes), (empty, others) = seen
    assert sizes == others == [(384, 384)] and text != empty, "in the reference's proportions, not the picture's"
    assert "user\nPicture 1: <|vision_start|>" in text[0] and text[0].count("Picture") == 1
