"""FLUX 3 Klein against the plain modular pipeline: pictures with none to three references, adapters, refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import diffusers
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from paco_core.config.references import POLICY, layout_fault
from paco_core.io.files import DataError, read_json, write_json
from paco_core.models import modular
from paco_core.models.weights import download_pipeline, load_pipeline
from paco_core.policies import base
from paco_core.policies.base import Size
from paco_core.policies.families import (
    is_distilled,
    validate_pipeline_folder,
    validate_sharding,
    validate_text_window,
)
from tests.support import sampled
from tests.support.grpo_toys import recipe
from tests.support.policy_families import plain_flux3
from tests.support.sampled import KEYS
from tests.support.tiny_pipelines import flux3_klein

LENGTH, SIZE, INDEX = 300, (32, 32), "modular_model_index.json"
#: The second is padded to 160 tokens, the others to 80.
PROMPTS = ["a red cat on the beach", "The colour of the first frog is red. " * 10, "No. The animal differs: the frog."]
WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"


def pictures(count: int = 3) -> list[Image.Image]:
    """Of three shapes, none of them a multiple of a token on both sides, one smaller than 64 pixels."""
    return sampled.pictures(*[(70, 40), (96, 70), (80, 120)][:count])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the entry of the upsampler in its index, as released: it is in another repository."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model = flux3_klein(tmp_path_factory.mktemp("flux3") / "model")
    source = {"pretrained_model_name_or_path": "org/upsampler", "subfolder": "", "variant": None, "revision": None}
    entry = [None, None, {**source, "type_hint": ["transformers", "Qwen3_5ForConditionalGeneration"]}]
    (model / "other.safetensors").touch()
    write_json(model / INDEX, {**read_json(model / INDEX), "prompt_upsampler": entry})
    return model


def load(folder: Path, references: int = 1, reference_size: int | None = 2048, **options: Any) -> Any:
    task: Any = "edits" if references else None
    return base.load_policy(
        "flux3_klein", str(folder), "cpu", "float32", task=task, reference_size=reference_size, **options
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
    pipeline.update_components(guider=pipeline.guider.new(guidance_scale=guidance))
    output = pipeline(
        prompt=PROMPTS[row], image=image, height=size[0], width=size[1], num_inference_steps=steps,
        max_sequence_length=LENGTH, latents=maps,
    )  # fmt: skip
    return np.asarray(output.images[0], dtype=int)


@pytest.mark.slow
@pytest.mark.parametrize("references", [0, 1, 2, 3])
def test_pictures_equal_those_of_the_pipeline(folder: Path, references: int) -> None:
    policy, plain = load(folder, references), plain_flux3(folder)
    images = pictures()[:references] or None
    samples = {}
    for size in ((32, 32), (64, 48)):
        for steps in (3, 5):
            for guidance in (1.0, 4.0):
                mine = sample(policy, images and [images], size, steps, guidance)[0]
                noise = policy.noise(size, KEYS)
                expected = by_pipeline(plain, noise, images, 0, size, steps, guidance)
                assert np.abs(mine - expected).max() <= 1 and expected.std() > 10
                assert torch.equal(policy.sigmas(size, steps), plain.scheduler.sigmas)
                samples[size, steps, guidance] = mine
    assert np.abs(samples[SIZE, 3, 1.0] - samples[SIZE, 3, 4.0]).max() > 3


@pytest.mark.slow
def test_a_batch_of_prompts_of_other_lengths_is_each_prompt_alone(folder: Path) -> None:
    """Rows of two padded lengths, and of other references."""
    first, second, _ = pictures()
    painter, plain = load(folder, 0), plain_flux3(folder)
    lengths = [len(row["prompt_embeds"]) for row in painter.encode(PROMPTS, LENGTH).rows]
    assert lengths == [80, 160, 80]
    for policy, references in ((painter, None), (load(folder), [[first], [first, second], [second]])):
        together, noise = sample(policy, references), policy.noise(SIZE, KEYS)
        for row in range(3):
            expected = by_pipeline(plain, noise, references[row] if references else None, row)
            assert np.abs(together[row] - expected).max() <= 1
        assert np.abs(together[0] - together[2]).max() > 3


def test_the_words_behind_the_window_have_no_effect(folder: Path) -> None:
    policy, window, prompt = load(folder, 0), 100, PROMPTS[1] * 2
    rows = [policy.encode([text], window, guidance=1.0).rows[0]["prompt_embeds"] for text in (prompt, f"{prompt} cat")]
    assert len(rows[0]) == window, "which cuts the padding as well"
    assert torch.equal(rows[0], rows[1])
    cut = policy.truncations[prompt]
    assert cut.window == window and cut.lost and prompt.strip().endswith(cut.lost)
    with pytest.raises(DataError, match="special"):
        policy.encode(["a <|vision_start|> cat"], window)


def test_panels_are_appended_as_references(folder: Path) -> None:
    """As stories append them, and as an editor encodes them: one picture is kept whole, several are cropped."""
    policy, editor, images = load(folder, 0), load(folder), pictures(2)
    for references, shapes in (([], []), (images[:1], [[4, 5]]), (images, [[2, 4], [4, 6]])):
        texts = policy.encode(PROMPTS[:1], LENGTH)
        (row,) = policy.with_references(texts, [references], SIZE).rows
        assert row["image_latents 32x32 shapes"].tolist() == shapes
        if references:
            expected = editor.encode(PROMPTS[:1], LENGTH, [references], [[SIZE]]).rows[0]
            assert row.keys() == expected.keys() and all(torch.equal(row[name], expected[name]) for name in row)


def test_a_reference_has_at_most_the_pixels_of_the_image(folder: Path) -> None:
    """Or those of ``reference_size``; a long one keeps sides of a token."""
    large, long = pictures()[2].resize((160, 240)), pictures()[2].resize((1600, 20))
    rows = load(folder, reference_size=None).encode(PROMPTS[:1], LENGTH, [large], [[(96, 96), (64, 64)]]).rows[0]
    assert rows["image_latents 96x96 shapes"].tolist() == [[8, 5]], "117 x 78 pixels, filled to tokens"
    (row,) = load(folder, reference_size=None).encode(PROMPTS[:1], LENGTH, [[long, large]], [[(32, 32)]]).rows
    assert row["image_latents 32x32 shapes"][0].tolist()[0] == 1


@pytest.mark.slow
def test_an_adapter_by_original_names_paints_as_in_the_pipeline(folder: Path, tmp_path: Path) -> None:
    draw, tensors = torch.Generator().manual_seed(2), {}
    for name, wide, high in (
        ("content_mode_blocks.image.0.q_proj", 32, 32), ("content_mode_blocks.image_cond.0.mlp_in", 32, 192),
        ("txt_mode_blocks.0.attn_out", 32, 32), ("single_blocks.1.mlp_out", 96, 32),
    ):  # fmt: skip
        tensors[f"diffusion_model.{name}.lora_A.weight"] = torch.randn(4, wide, generator=draw)
        tensors[f"diffusion_model.{name}.lora_B.weight"] = torch.randn(high, 4, generator=draw) * 0.3
    save_file(tensors, tmp_path / "comfy.safetensors")
    policy, images = load(folder), [pictures(1)]
    before = sample(policy, images)[0]
    policy.load_adapter(tmp_path / "comfy.safetensors")
    plain = plain_flux3(folder)
    plain.load_lora_weights(tmp_path / "comfy.safetensors")
    after = sample(policy, images)[0]
    assert np.abs(after - before).max() > 3
    assert np.abs(by_pipeline(plain, policy.noise(SIZE, KEYS), images[0]) - after).max() <= 1


def test_a_file_of_an_image_tool_is_loaded_exactly(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / WEIGHTS)
    save_file(tensors, tmp_path / "flux3.safetensors")
    loaded = load(folder, transformer=tmp_path / "flux3.safetensors").transformer.state_dict()
    assert loaded.keys() == tensors.keys()
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_references_and_sizes_that_the_family_does_not_take(folder: Path) -> None:
    editor, first = load(folder), pictures(1)[0]
    for count in (0, 11):
        with pytest.raises(DataError, match=f"1 to 10 .*has {count}"):
            editor.encode(PROMPTS[:1], LENGTH, [[first] * count], [[SIZE]])
    with pytest.raises(DataError, match="15 x 64 px"):
        editor.encode(PROMPTS[:1], LENGTH, [[first, first.resize((15, 64))]], [[SIZE]])
    with pytest.raises(DataError, match="flux3_klein"):
        load(folder, 0).encode(PROMPTS[:1], LENGTH, [first], [[SIZE]])
    with pytest.raises(DataError, match="32 x 40 px"):
        editor.noise((32, 40), KEYS)


def test_a_window_beyond_that_of_the_pipeline_is_refused() -> None:
    rule = recipe(family="flux3_klein", max_sequence_length=8193)
    with pytest.raises(DataError, match="at most 8192 tokens"):
        validate_text_window("key", rule.model_copy(update={"model": "org/flux3"}), Path())


def test_a_transformer_whose_passes_vary_is_not_sharded() -> None:
    validate_sharding("flux3_klein", sharded=False)
    validate_sharding("flux2_klein", sharded=True)
    with pytest.raises(DataError, match=r"launch/ddp\.yaml"):
        validate_sharding("flux3_klein", sharded=True)


def changed(part: str, file: str, **changes: Any) -> Callable[[Path], object]:
    def change(model: Path) -> None:
        path = model / part / file
        tree = read_json(path) if path.is_file() else {}
        section = tree["text_config"] if "hidden_size" in changes or "num_hidden_layers" in changes else tree
        section.update(changes)
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(tree))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed("text_encoder", "config.json", hidden_size=24), "256.*192"),
        (changed("text_encoder", "config.json", num_hidden_layers=30), "30 layers.*layer 32"),
        (changed("vae", "config.json", latent_channels=16), "in_channels: 16.*4 x 16"),
        (changed("transformer", "config.json", cond_in_channels=32), "cond_in_channels: 32.*4 x 4"),
        (changed("transformer", "config.json", flow_map=True), "distilled.*flux-3-image-klein-base"),
        (changed("scheduler", "scheduler_config.json", use_dynamic_shifting=True), "use_dynamic_shifting"),
        (lambda model: (model / "tokenizer/chat_template.jinja").unlink(), "template"),
        (changed("", INDEX, _class_name="Flux3DistilledModularPipeline"), "Flux3DistilledModularPipeline"),
    ],
)
def test_a_folder_of_another_size_or_variant_is_refused(
    folder: Path, tmp_path: Path, change: Callable[[Path], object], message: str
) -> None:
    """By `paco check` from the configurations alone, and by loading."""
    shutil.copytree(folder, tmp_path / "model")
    change(tmp_path / "model")
    with pytest.raises(DataError, match=message):
        validate_pipeline_folder(tmp_path, "model", "flux3_klein")
    with pytest.raises(DataError, match=message):
        load(tmp_path / "model")


def test_a_part_of_another_repository_must_be_in_the_folder(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "model")
    shutil.rmtree(tmp_path / "model" / "text_encoder")
    with pytest.raises(DataError, match="no part text_encoder.*another repository"):
        load(tmp_path / "model")


def test_a_hub_model_is_downloaded_without_what_is_not_loaded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the upsampler, nor files of weights next to the parts, nor a transformer that is in another file."""

    def download(model: str, allow_patterns: list[str]) -> str:
        names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        for name in (name for name in names if any(fnmatch(name, pattern) for pattern in allow_patterns)):
            (tmp_path / model / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(folder / name, tmp_path / model / name)
        return str(tmp_path / model)

    monkeypatch.setattr(modular, "snapshot_download", download)
    for skipped, parts in (((), {"transformer", "vae", "text_encoder", "tokenizer"}), (("transformer",), {"vae"})):
        place = download_pipeline(diffusers.Flux3ModularPipeline, f"org/{len(parts)}", skipped)
        assert {INDEX, *parts} <= {path.name for path in place.iterdir()}
        assert ("transformer" in {path.name for path in place.iterdir()}) == (not skipped)
    assert not (place / "other.safetensors").exists()
    pipeline = load_pipeline(diffusers.Flux3ModularPipeline, place, torch.float32, ["transformer"])
    assert pipeline.transformer is None and pipeline.vae is not None and pipeline.scheduler.config.shift == 6.93


def test_modular_and_ordinary_folders_are_not_mixed_up(folder: Path, tmp_path: Path) -> None:
    assert layout_fault(folder.parent, "model", POLICY) is None
    (tmp_path / "empty").mkdir()
    assert INDEX in str(layout_fault(tmp_path, "empty", POLICY))
    with pytest.raises(DataError, match="Flux3ModularPipeline.*flux2_klein"):
        validate_pipeline_folder(folder.parent, "model", "flux2_klein")
    with pytest.raises(DataError, match=r"model_index\.json"):
        base.load_policy("flux2_klein", str(folder), "cpu", "float32")
    assert is_distilled(Path(), "black-forest-labs/flux-3-image-klein") and not is_distilled(folder.parent, "model")
    assert not is_distilled(Path(), "black-forest-labs/flux-3-image-klein-base")
