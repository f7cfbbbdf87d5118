"""How large the weights of a model are."""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import read_json

#: Weights of public models in GB as stored (bf16), from their model cards.
HUB_GB = {
    "black-forest-labs/FLUX.1-dev": 33.7,
    "black-forest-labs/FLUX.1-Kontext-dev": 33.7,  # the same parts
    "black-forest-labs/FLUX.2-klein-4B": 16.0,  # 3.9 B in the transformer, 4.0 B in the text encoder
    "black-forest-labs/FLUX.2-klein-base-4B": 16.0,
    "black-forest-labs/FLUX.2-klein-9B": 34.5,  # 9.0 B and 8.2 B
    "black-forest-labs/FLUX.2-klein-base-9B": 34.5,
    "Qwen/Qwen-Image": 57.7,  # the same parts as the editor's
    "Qwen/Qwen-Image-2512": 57.7,
    "Qwen/Qwen-Image-Edit": 57.7,  # 20.4 B in the transformer, 8.3 B in the text encoder
    "Qwen/Qwen-Image-Edit-2509": 57.7,  # the same parts
    "Qwen/Qwen-Image-Edit-2511": 57.7,
    "Qwen/Qwen2.5-VL-7B-Instruct": 16.6,
    "X-GenGroup/PaCo-Reward-7B": 16.6,  # that model, merged
    "hf-hub:laion/CLIP-ViT-H-14-laion2B-s32B-b79K": 3.9,
}

#: Bytes of a weight in fewer bits: the bits, and the scales of blocks of 64 (nf4) or of rows (fp8).
STORED_BYTES = {"nf4": 0.5 + 4 / 64, "fp8": 1.0}
#: Weights in the layers of their language models, which `serving.quantization` keeps in fewer bits.
LAYERS = dict.fromkeys(("Qwen/Qwen2.5-VL-7B-Instruct", "X-GenGroup/PaCo-Reward-7B"), 6.525e9)


def language_layers(root: Path, model: str | None) -> float:
    """Weights of a Qwen2.5-VL's language layers, of a folder or a known hub id; 0 where they are not known."""
    file = root / str(model) / "config.json"
    if not file.is_file():
        return LAYERS.get(str(model), 0.0)
    config = read_json(file)
    text = config.get("text_config", config)
    width, heads = text["hidden_size"], text["num_attention_heads"]
    keys = width * text["num_key_value_heads"] // heads
    return float(text["num_hidden_layers"] * width * (2 * width + 2 * keys + 3 * text["intermediate_size"]))


def model_gb(root: Path, model: str | None) -> float:
    """Weights of a model folder on disk, or of a known hub id; 0 when there is none."""
    if model is None:
        return 0.0
    folder = root / model
    if folder.is_dir():
        return sum(p.stat().st_size for p in folder.rglob("*.safetensors")) / 1e9
    return HUB_GB.get(model, 0.0)
