"""The editing policies against the plain diffusers pipelines that they are made of."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus
from PIL import Image

from paco_core.grpo.rollout import Sampling, rollout
from paco_core.io.files import DataError
from paco_core.policies import base
from tests.support.policy_families import EDITORS, GUIDANCE, KEYS, PROMPTS, STEPS, Family, arrays, build, references
from tests.support.tiny import TEXT_LENGTH


@pytest.fixture(scope="module", params=EDITORS, ids=lambda family: family.name + family.version)
def family(request: pytest.FixtureRequest) -> Family:
    return request.param


@pytest.fixture(scope="module")
def folder(family: Family, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(family, tmp_path_factory)


@pytest.fixture
def policy(family: Family, folder: Path) -> Any:
    return base.load_policy(family.name, str(folder), "cpu", "float32")


@pytest.mark.slow
def test_pictures_equal_those_of_the_pipeline_at_large_references(family: Family, folder: Path) -> None:
    size = (32, 32)
    policy = base.load_policy(family.name, str(folder), "cpu", "float32", reference_size=1024)
    only_one = {"prompt": PROMPTS[:1], "image": references(1)}
    plain: Any = policy
    expected = family.by_pipeline(plain.pipeline, policy.noise(size, KEYS[:1]), size, GUIDANCE, **only_one)
    assert np.abs(family.sample(policy, size, rows=1) - expected).max() <= 1


@pytest.mark.slow
def test_a_prompt_is_encoded_at_the_sizes_of_its_own_pictures(family: Family, policy: Any) -> None:
    shapes = [[(32, 32)], [(64, 32)], [(32, 64)]]
    encoded = policy.encode(PROMPTS, TEXT_LENGTH, references(), shapes)
    for row, (size,) in enumerate(shapes):
        names = [name for name in encoded.rows[row] if name.startswith("image_latents ") and "shapes" not in name]
        assert names == [f"image_latents {size[0]}x{size[1]}"]
        expected = family.sample(policy, size)[row]
        trajectory = rollout(
            policy, encoded, [row], KEYS[row : row + 1], Sampling.for_policy(policy, size, STEPS, GUIDANCE)
        )
        assert np.abs(arrays(policy.decode(trajectory.latents, size))[0] - expected).max() <= 1


@pytest.mark.slow
def test_encodings_are_those_of_these_encoders_pictures_and_lengths(
    family: Family, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "cache"

    def runs(model: Path, prompt: str = PROMPTS[2], reference: int = 0, length: int = TEXT_LENGTH) -> int:
        policy: Any = base.load_policy(family.name, str(model), "cpu", "float32", cache=cache)
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


def test_references_must_fit_the_prompts(policy: Any) -> None:
    """As many as prompts, each with the sizes that it is painted at, which tokens divide."""
    size = [(32, 32)]
    for references_, sizes in (
        (None, [size] * 3), (references(2), [size] * 3), (references(), [[(50, 32)]] * 3), (references(), ()),
        (references(), [size, [], size]),
    ):  # fmt: skip
        with pytest.raises((DataError, ValueError), match="3 prompts|48 x 32|sizes"):
            policy.encode(PROMPTS, TEXT_LENGTH, references_, sizes)
    most = policy.family_spec.references[1]
    with pytest.raises(DataError, match=f"has {most + 1}"):
        policy.encode(PROMPTS[:1], TEXT_LENGTH, [references(most + 1)], [size])


def test_instructions_that_were_cut_are_named_with_what_is_lost(policy: Any) -> None:
    policy.encode([long := " ".join(["a red cat"] * 40), "a frog"], 8, references(2), [[(32, 32)]] * 2)
    assert {text: cut.window for text, cut in policy.truncations.items()} == {long: 8} and long.endswith(
        policy.truncations[long].lost
    )


@pytest.mark.parametrize("guidance", [1.0, GUIDANCE])
@pytest.mark.parametrize("family", EDITORS[2:], indirect=True, ids=["2509", "2511"])
def test_one_to_three_references_of_other_proportions(
    family: Family, folder: Path, monkeypatch: pytest.MonkeyPatch, guidance: float
) -> None:
    size = (32, 64)
    policy: Any = base.load_policy(family.name, str(folder), "cpu", "float32", reference_size=64)
    monkeypatch.setattr(plus, "VAE_IMAGE_SIZE", 64 * 64)
    shapes = zip(references(), [(64, 32), (96, 96), (32, 80)], strict=True)
    first, second, third = (image.resize(shape, Image.Resampling.NEAREST) for image, shape in shapes)
    several = [[first, second, third], [first], [second, first]]
    encoded = policy.encode(PROMPTS[:1] * 3, TEXT_LENGTH, several, [[size]] * 3, guidance=guidance)
    trajectory = rollout(policy, encoded, range(3), KEYS, Sampling.for_policy(policy, size, STEPS, guidance))
    ours, noise = arrays(policy.decode(trajectory.latents, size)), policy.noise(size, KEYS)
    for row, images in enumerate(several):
        options = {"prompt": PROMPTS[:1], "image": [images]}
        theirs = family.by_pipeline(policy.pipeline, noise[row : row + 1], size, guidance, **options)
        assert np.abs(ours[row] - theirs[0]).max() <= 1, f"{len(images)} references"
    assert len({row.tobytes() for row in ours}) == 3
    long = policy.encode(PROMPTS[:1], TEXT_LENGTH, [[Image.new("RGB", (1000, 4))]], [[size]])
    assert long.rows[0]["image_latents 32x64 shapes"].min() > 0, "a very long reference keeps a side"
