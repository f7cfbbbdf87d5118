"""FLUX.2 [klein] against the plain pipeline: pictures with none to three references, adapters, batches, refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from paco_core.io.files import DataError
from paco_core.policies import base
from paco_core.policies.base import Size
from paco_core.policies.encoded import validate_equal_shapes
from paco_core.policies.families import family_of, validate_pipeline_folder
from paco_core.policies.pipeline_truncation import find_truncated_prompts
from paco_core.policies.truncation import truncations_by_id
from tests.support import sampled
from tests.support.dataset_world import records
from tests.support.sampled import KEYS
from tests.support.tiny_pipelines import flux2_klein

LENGTH, SIZE = 48, (32, 32)
PROMPTS = ["a red cat on the beach", "The colour", "No. The animal differs: the first shows cat and the second frog."]


def pictures(count: int = 3) -> list[Image.Image]:
    """Of three shapes, none of them a multiple of a token on both sides."""
    return sampled.pictures(*[(70, 64), (96, 70), (80, 120)][:count])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return flux2_klein(tmp_path_factory.mktemp("klein") / "model")


@pytest.fixture(scope="module")
def distilled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return flux2_klein(tmp_path_factory.mktemp("distilled") / "model", distilled=True)


def load(folder: Path, references: int = 1, reference_size: int | None = 1024, **options: Any) -> Any:
    task = "edits" if references else None
    return base.load_policy(
        "flux2_klein", str(folder), "cpu", "float32", task=task, reference_size=reference_size, **options
    )


def sample(
    policy: Any, references: list[list[Image.Image]] | None, size: Size = SIZE, steps: int = 3, guidance: float = 4.0
) -> np.ndarray:
    prompts = PROMPTS[: len(references or PROMPTS)]
    encoded = policy.encode(prompts, LENGTH, references, [[size]] * len(prompts), guidance=guidance)
    return sampled.sample(policy, encoded, size, steps, guidance)


def by_pipeline(
    pipeline: Any, noise: torch.Tensor, image: list[Image.Image] | None, row: int = 0, size: Size = SIZE,
    steps: int = 3, guidance: float = 4.0,
) -> np.ndarray:  # fmt: skip
    maps = noise[row : row + 1].transpose(1, 2).unflatten(2, (size[0] // 16, size[1] // 16))
    output = pipeline(
        prompt=PROMPTS[row], image=image, height=size[0], width=size[1], num_inference_steps=steps,
        guidance_scale=guidance, max_sequence_length=LENGTH, latents=maps,
    )  # fmt: skip
    return np.asarray(output.images[0], dtype=int)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["base", "distilled"])
@pytest.mark.parametrize("references", [0, 1, 2, 3])
def test_pictures_equal_those_of_the_pipeline(folder: Path, distilled: Path, references: int, variant: str) -> None:
    policy = load(folder if variant == "base" else distilled, references)
    images = pictures()[:references] or None
    samples = {}
    for size in ((32, 32), (64, 48)):
        for steps in (3, 5):
            for guidance in (1.0, 4.0):
                mine = sample(policy, images and [images], size, steps, guidance)[0]
                noise = policy.noise(size, KEYS)
                expected = by_pipeline(policy.pipeline, noise, images, 0, size, steps, guidance)
                assert np.abs(mine - expected).max() <= 1 and expected.std() > 10
                samples[size, steps, guidance] = mine
    moved = np.abs(samples[SIZE, 3, 1.0] - samples[SIZE, 3, 4.0]).max()
    assert moved > 3 if variant == "base" else moved == 0, "distilled weights ignore guidance"


@pytest.mark.slow
def test_a_batch_of_prompts_with_other_references_is_each_prompt_alone(folder: Path) -> None:
    """One, two and one pictures of two shapes: two of the rows have equally many tokens in other shapes."""
    policy, (first, second, _) = load(folder), pictures()
    wide, high = first.resize((96, 64)), first.resize((64, 96))
    for references in ([[first], [first, second], [second]], [[wide], [high], [wide]], [[high]] * 3):
        together, noise = sample(policy, references), policy.noise(SIZE, KEYS)
        for row, of_row in enumerate(references):
            assert np.abs(together[row] - by_pipeline(policy.pipeline, noise, of_row, row)).max() <= 1


def test_a_reference_keeps_its_own_proportions(folder: Path) -> None:
    """At most as many pixels as the picture has, or as ``reference_size`` says; never more than the pipeline takes."""
    large = pictures()[2].resize((160, 240))
    rows = load(folder, reference_size=None).encode(PROMPTS[:1], LENGTH, [large], [[(96, 96), (128, 96)]]).rows[0]
    assert rows["image_latents 96x96 shapes"].tolist() == [[7, 4]], "117 x 78 pixels, cropped to tokens"
    rows = load(folder, reference_size=None).encode(PROMPTS[:1], LENGTH, [large], [[(32, 32)]]).rows[0]
    assert rows["image_latents 32x32 shapes"].tolist() == [[6, 4]], (
        "sides of 64 pixels at least, which the pipeline takes"
    )


@pytest.mark.slow
def test_an_adapter_by_original_names_paints_as_in_the_pipeline(folder: Path, tmp_path: Path) -> None:
    """As ComfyUI and ai-toolkit write it: queries, keys and values of a double block are one layer."""
    import diffusers

    draw, tensors = torch.Generator().manual_seed(2), {}
    for name, wide, high in (
        ("double_blocks.0.img_attn.qkv", 32, 96), ("double_blocks.0.txt_mlp.0", 32, 192),
        ("single_blocks.1.linear1", 32, 288), ("single_blocks.0.linear2", 128, 32),
    ):  # fmt: skip
        tensors[f"diffusion_model.{name}.lora_A.weight"] = torch.randn(4, wide, generator=draw)
        tensors[f"diffusion_model.{name}.lora_B.weight"] = torch.randn(high, 4, generator=draw) * 0.3
    save_file(tensors, tmp_path / "comfy.safetensors")
    policy = load(folder, 0)
    before = sample(policy, None)[0]
    policy.load_adapter(tmp_path / "comfy.safetensors")
    plain: Any = diffusers.Flux2KleinPipeline.from_pretrained(folder)
    plain.set_progress_bar_config(disable=True)
    plain.load_lora_weights(tmp_path / "comfy.safetensors")
    after = sample(policy, None)[0]
    assert np.abs(after - before).max() > 3
    assert np.abs(by_pipeline(plain, policy.noise(SIZE, KEYS), None) - after).max() <= 1


def test_a_long_prompt_is_noted_as_the_pipeline_cuts_it(folder: Path) -> None:
    """The template's tokens count: by the tokenizer's own count nothing is cut."""
    policy, (first, second) = load(folder, 0), records(2)
    window = len(policy.pipeline.tokenizer(PROMPTS[0]).input_ids) + 2
    test_records = [first.model_copy(update={"prompt": PROMPTS[0]}), second.model_copy(update={"prompt": "a"})]
    policy.encode([record.prompt for record in test_records], window)
    truncations = find_truncated_prompts(folder, test_records, window)
    assert list(truncations) == [first.idx] and truncations == truncations_by_id(policy.truncations, test_records)
    (cut,) = policy.truncations.values()
    assert cut.lost and PROMPTS[0].endswith(cut.lost) and cut.window == window


def test_references_that_the_family_does_not_take(folder: Path) -> None:
    editor, first = load(folder), pictures(1)[0]
    for references, message in (
        *(([first] * count, f"1 to 4 .*has {count}") for count in (0, 5)),
        ([first.resize((63, 64))], "too small"), ([first.resize((900, 64))], "ratio"),
    ):  # fmt: skip
        with pytest.raises(DataError, match=message):
            editor.encode(PROMPTS[:1], LENGTH, [references], [[SIZE]])
    with pytest.raises(DataError, match="3 prompts and 1"):
        editor.encode(PROMPTS, LENGTH, [first], [[SIZE]] * 3)
    with pytest.raises(DataError, match="flux2_klein"):
        load(folder, 0).encode(PROMPTS[:1], LENGTH, [first], [[SIZE]])


def test_a_task_that_a_family_does_not_do() -> None:
    assert [family_of("flux2_klein").edits(task) for task in (None, "sets", "edits")] == [False, False, True]
    with pytest.raises(DataError, match="FluxPipeline"):
        family_of("flux").edits("edits")
    with pytest.raises(DataError, match="FluxKontextPipeline"):
        family_of("flux_kontext").edits("sets")


@pytest.mark.parametrize(
    ("part", "changes", "message"),
    [
        ("text_encoder", {"hidden_size": 24}, "48.*72"),
        ("vae", {"latent_channels": 16}, "16 channels.*4 x 16"),
        ("transformer", {"guidance_embeds": True}, "FLUX.2-dev"),
        ("tokenizer", None, "template"),
        ("", {"_class_name": "Flux2KleinKVPipeline"}, "Flux2KleinKVPipeline"),
    ],
)
def test_a_folder_of_another_size_or_variant_is_refused(
    folder: Path, tmp_path: Path, part: str, changes: dict[str, Any] | None, message: str
) -> None:
    """By `paco check` from the configurations alone, and by loading; weights are links here."""
    for file in (path for path in folder.rglob("*") if path.is_file()):
        place = tmp_path / "model" / file.relative_to(folder)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(file)
    if changes is None:
        (tmp_path / "model/tokenizer/chat_template.jinja").unlink()
    else:
        file = tmp_path / "model" / part / ("config.json" if part else "model_index.json")
        text = json.dumps(json.loads(file.read_text()) | changes)
        file.unlink()
        file.write_text(text)
    with pytest.raises(DataError, match=message):
        validate_pipeline_folder(tmp_path, "model", "flux2_klein")
    with pytest.raises(DataError, match=message):
        load(tmp_path / "model")


def test_reference_images_of_different_shapes_are_refused_under_fsdp2(folder: Path) -> None:
    large, small, _ = pictures()
    policy, ids = load(folder), ["p0", "p1", "p2"]

    def validate(*references: list[Image.Image]) -> None:
        encoded = policy.encode(PROMPTS[: len(references)], LENGTH, list(references), [[SIZE]] * len(references))
        validate_equal_shapes(ids[: len(references)], encoded.rows)

    validate([large], [large], [large])
    for different in ([small], [large, large]):
        with pytest.raises(DataError, match=r"p0 and p2.*launch/ddp\.yaml"):
            validate([large], [large], different)
    plain = load(folder, references=0)
    validate_equal_shapes(ids, plain.encode(PROMPTS, LENGTH).rows)  # prompts of different lengths
