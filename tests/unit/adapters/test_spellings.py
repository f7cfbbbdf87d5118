"""LoRA files of other tools: what each adds to every layer, against B A computed by hand and the plain pipeline."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from paco_core.models.weights import read_tensors
from paco_core.policies import base
from tests.support import loras
from tests.support.tiny import TEXT_LENGTH, tiny_flux

LAYERS = ("to_q", "to_out.0", "net.2", "proj_out", "x_embedder")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_flux(tmp_path_factory.mktemp("flux") / "model")


def load(model: Path) -> Any:
    return base.load_policy("flux", str(model), "cpu", "float32")


def by_hand(tensors: loras.Tensors, alpha: float | None = None) -> dict[str, torch.Tensor]:
    """alpha / rank * B A of each layer; alpha is the rank where none is given."""
    layers = {key[:-2] for key in tensors}
    return {
        layer: tensors[f"{layer}.B"] @ tensors[f"{layer}.A"] * ((alpha or len(a)) / len(a))
        for layer in layers
        for a in [tensors[f"{layer}.A"]]
    }


def agree(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert actual.keys() == expected.keys()
    for layer, delta in expected.items():
        assert torch.allclose(actual[layer], delta, rtol=1e-5, atol=1e-5), layer


def spelled(place: str, a: str, b: str, alpha: float | None = None) -> Callable[[loras.Tensors], loras.Tensors]:
    return lambda tensors: loras.spelled(tensors, f"{place}{{}}".format, a, b, alpha)


SPELLINGS: dict[str, tuple[Callable[[loras.Tensors], loras.Tensors], float | None]] = {
    "diffusers": (loras.peft, None),
    "no prefix": (lambda tensors: loras.peft(tensors, ""), None),
    "PEFT": (spelled("base_model.model.", ".lora_A.default.weight", ".lora_B.default.weight"), None),
    "PEFT of a pipeline": (lambda tensors: loras.peft(tensors, "base_model.model.transformer."), None),
    "ComfyUI": (lambda tensors: loras.peft(tensors, "diffusion_model."), None),
    "ComfyUI of a whole model": (lambda tensors: loras.peft(tensors, "model.diffusion_model."), None),
    "kohya": (lambda tensors: loras.kohya(tensors, None), None),
    "kohya with alpha": (lambda tensors: loras.kohya(tensors, 2.0), 2.0),
    "OneTrainer": (lambda tensors: loras.kohya(tensors, 3.0, "lora_transformer_"), 3.0),
    "diffusers before PEFT": (spelled("transformer.", ".lora.down.weight", ".lora.up.weight"), None),
    "alpha next to A and B": (spelled("transformer.", ".lora_A.weight", ".lora_B.weight", 16.0), 16.0),
}


@pytest.mark.slow
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_adds_what_its_numbers_say(model: Path, tmp_path: Path, spelling: str) -> None:
    write, alpha = SPELLINGS[spelling]
    policy = load(model)
    tensors = loras.random_lora(loras.sizes_of(policy.transformer, *LAYERS))
    folder = loras.write(tmp_path, write(tensors))
    policy.load_adapter(folder)
    agree(loras.added(policy.transformer), by_hand(tensors, alpha))
    assert not any(parameter.requires_grad for parameter in policy.transformer.parameters())

    started = load(model)
    started.start_from(str(folder / loras.FILE))  # the file itself
    agree(loras.added(started.transformer), by_hand(tensors, alpha))
    assert len(started.trainable()) == len(tensors)
    started.save_adapter(tmp_path / "saved")
    saved, metadata = read_tensors(tmp_path / "saved" / loras.FILE)
    header = json.loads(metadata["lora_adapter_metadata"])
    assert header["transformer.lora_alpha"] == header["transformer.r"] == 4
    for layer, update in by_hand(tensors, alpha).items():  # ComfyUI, for one, reads no alpha from a header
        a, b = (saved[f"transformer.{layer}.lora_{side}.weight"] for side in "AB")
        torch.testing.assert_close(b @ a, update, rtol=1e-4, atol=1e-5)
    reloaded = load(model)
    reloaded.load_adapter(tmp_path / "saved")
    agree(loras.added(reloaded.transformer), by_hand(tensors, alpha))
    plain = diffusers.FluxPipeline.from_pretrained(model)
    plain.load_lora_weights(tmp_path / "saved")
    agree(loras.added(plain.transformer, "default_0"), by_hand(tensors, alpha))


def test_ranks_that_differ_without_alpha_are_each_scaled_by_one(model: Path, tmp_path: Path) -> None:
    """diffusers (huggingface/diffusers#14409) loaded those of the smaller rank at a fraction."""
    policy = load(model)
    sizes = loras.sizes_of(policy.transformer, *LAYERS)
    ranks = {layer: 8 if "to_q" in layer or layer == "proj_out" else 2 for layer in sizes}
    tensors = loras.random_lora(sizes, ranks)
    policy.start_from(str(loras.write(tmp_path / "given", loras.peft(tensors))))
    agree(loras.added(policy.transformer), by_hand(tensors))
    policy.save_adapter(tmp_path / "saved")
    plain = diffusers.FluxPipeline.from_pretrained(model)
    plain.load_lora_weights(tmp_path / "saved")
    agree(loras.added(plain.transformer, "default_0"), by_hand(tensors))
    policy.copy_adapter("old")
    agree(loras.added(policy.transformer, "old"), by_hand(tensors))


ORIGINAL = {  # a layer of Black Forest Labs -> the layers here that its rows belong to, one after another
    "double_blocks.0.img_attn.qkv": [f"transformer_blocks.0.attn.to_{side}" for side in "qkv"],
    "double_blocks.0.txt_attn.qkv": [f"transformer_blocks.0.attn.add_{side}_proj" for side in "qkv"],
    "double_blocks.0.img_attn.proj": ["transformer_blocks.0.attn.to_out.0"],
    "double_blocks.0.txt_mlp.2": ["transformer_blocks.0.ff_context.net.2"],
    "double_blocks.0.img_mod.lin": ["transformer_blocks.0.norm1.linear"],
    "single_blocks.0.linear1": [
        *(f"single_transformer_blocks.0.attn.to_{side}" for side in "qkv"), "single_transformer_blocks.0.proj_mlp",
    ],
    "single_blocks.0.linear2": ["single_transformer_blocks.0.proj_out"],
    "img_in": ["x_embedder"],
    "guidance_in.in_layer": ["time_text_embed.guidance_embedder.linear_1"],
    "final_layer.linear": ["proj_out"],
    "final_layer.adaLN_modulation.1": ["norm_out.linear"],
}  # fmt: skip


@pytest.mark.parametrize("flat", [False, True], ids=["ComfyUI", "kohya"])
def test_the_original_names_of_flux(model: Path, tmp_path: Path, flat: bool) -> None:
    policy = load(model)
    layer_sizes = loras.sizes_of(policy.transformer)
    sizes = {
        name: (sum(layer_sizes[layer][0] for layer in layers), layer_sizes[layers[0]][1])
        for name, layers in ORIGINAL.items()
    }
    tensors = loras.random_lora(sizes)
    written = loras.kohya(tensors, 2.0) if flat else loras.peft(tensors, "diffusion_model.")
    policy.load_adapter(loras.write(tmp_path, written))
    expected, deltas = {}, by_hand(tensors, 2.0 if flat else None)
    for name, layers in ORIGINAL.items():
        parts = deltas[name].split([layer_sizes[layer][0] for layer in layers])
        expected |= dict(zip(layers, parts, strict=True))
    scale, shift = expected["norm_out.linear"].chunk(2)  # diffusers has the shift after the scale
    expected["norm_out.linear"] = torch.cat([shift, scale])
    agree(loras.added(policy.transformer), expected)

    plain = diffusers.FluxPipeline.from_pretrained(model)
    subset = {name: tensors[name] for name in tensors if name.startswith("double_blocks")}
    plain.load_lora_weights(loras.write(tmp_path / "plain", loras.kohya(subset, 2.0)))
    mine = load(model)
    mine.load_adapter(tmp_path / "plain")
    agree(loras.added(mine.transformer), loras.added(plain.transformer, "default_0"))


def test_the_names_of_xlabs(model: Path, tmp_path: Path) -> None:
    policy, block = load(model), "double_blocks.0.processor."
    layer_sizes = loras.sizes_of(policy.transformer)
    stacked = {"qkv_lora1": "img_attn.qkv", "qkv_lora2": "txt_attn.qkv", "proj_lora1": "img_attn.proj"}
    layers = {block + name: ORIGINAL[f"double_blocks.0.{original}"] for name, original in stacked.items()}
    layers["single_blocks.0.processor.proj_lora"] = ["single_transformer_blocks.0.proj_out"]
    sizes = {
        name: (sum(layer_sizes[layer][0] for layer in names), layer_sizes[names[0]][1])
        for name, names in layers.items()
    }
    tensors = loras.random_lora(sizes)
    folder = loras.write(tmp_path, loras.spelled(tensors, str, ".down.weight", ".up.weight"))
    policy.load_adapter(folder)
    plain = diffusers.FluxPipeline.from_pretrained(model)
    plain.load_lora_weights(folder)
    agree(loras.added(policy.transformer), loras.added(plain.transformer, "default_0"))


@pytest.mark.slow
@pytest.mark.parametrize("spelling", ["diffusers", "kohya", "ComfyUI"])
def test_text_encoders_are_changed_too_and_named_in_the_key_of_encodings(
    model: Path, tmp_path: Path, spelling: str
) -> None:
    cache, policy = tmp_path / "cache", load(model)
    encoder = loras.random_lora(loras.sizes_of(policy.pipeline.text_encoder, "q_proj", "fc1"))
    place = {
        "diffusers": "text_encoder.{}".format,
        "kohya": lambda layer: f"lora_te1_text_model_{layer.replace('.', '_')}",
        "ComfyUI": "text_encoders.clip_l.transformer.text_model.{}".format,
    }[spelling]
    texts = loras.spelled(encoder, place, ".lora_A.weight", ".lora_B.weight")
    transformer_tensors = loras.peft(loras.random_lora(loras.sizes_of(policy.transformer, "to_q")))
    folder = loras.write(tmp_path / "lora", {**transformer_tensors, **texts})

    def pooled(adapter: Path | None, cache_dir: Path | None) -> torch.Tensor:
        policy = base.load_policy("flux", str(model), "cpu", "float32", cache=cache_dir)
        if adapter is not None:
            policy.load_adapter(adapter)
            agree(loras.added(policy.pipeline.text_encoder), by_hand(encoder))
            with policy.without_adapter():
                assert torch.equal(
                    policy._texts(["a blue bear"], TEXT_LENGTH)[0]["pooled_prompt_embeds"], pooled(None, None)
                )
        return policy._texts(["a blue bear"], TEXT_LENGTH)[0]["pooled_prompt_embeds"]

    plain, changed = pooled(None, None), pooled(folder, None)
    assert (plain - changed).abs().max() > 0.01
    assert torch.equal(pooled(folder, cache), changed) and torch.equal(pooled(None, cache), plain)
    assert torch.equal(pooled(folder, cache), changed)
    only = loras.write(tmp_path / "transformer", transformer_tensors)
    reloaded = load(model)
    reloaded.load_adapter(folder)
    reloaded.load_adapter(only)
    assert torch.equal(reloaded._texts(["a blue bear"], TEXT_LENGTH)[0]["pooled_prompt_embeds"], plain)


def test_the_settings_in_a_header_give_the_scale(model: Path, tmp_path: Path) -> None:
    policy = load(model)
    tensors = loras.random_lora(loras.sizes_of(policy.transformer, "to_q", "to_k"))
    settings = {
        "peft_type": "LORA", "r": 4, "lora_alpha": 8, "use_rslora": True, "target_modules": ["to_q", "to_k"],
        "alpha_pattern": {r"single_.*\.to_q": 2}, "rank_pattern": {}, "bias": "none", "lora_dropout": 0.1,
    }  # fmt: skip
    header = {"lora_adapter_metadata": json.dumps({f"transformer.{name}": value for name, value in settings.items()})}
    policy.load_adapter(loras.write(tmp_path, loras.peft(tensors), metadata=header))
    expected = {
        layer: delta * ((2 if layer.startswith("single_") and layer.endswith("to_q") else 8) / 2)  # sqrt of the rank
        for layer, delta in by_hand(tensors, 4.0).items()
    }
    agree(loras.added(policy.transformer), expected)
