"""Models before they are loaded: their configurations and sizes, of a folder or of a public model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paco_core.io.files import DataError, read_json
from paco_core.models.hub import cached_snapshot

if TYPE_CHECKING:
    from paco_core.config.params import Params

FLUX: dict[str, Any] = {
    "_class_name": "FluxTransformer2DModel", "in_channels": 64, "num_layers": 19, "num_single_layers": 38,
    "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 4096, "pooled_projection_dim": 768,
    "guidance_embeds": True, "axes_dims_rope": [16, 56, 56],
}  # fmt: skip
FLUX_VAE: dict[str, Any] = {
    "_class_name": "AutoencoderKL", "latent_channels": 16, "block_out_channels": [128, 256, 512, 512],
    "layers_per_block": 2, "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4,
    "use_quant_conv": False, "use_post_quant_conv": False, "scaling_factor": 0.3611, "shift_factor": 0.1159,
}  # fmt: skip
FLUX2: dict[str, Any] = {
    "_class_name": "Flux2Transformer2DModel", "in_channels": 128, "attention_head_dim": 128, "guidance_embeds": False,
}  # fmt: skip
KLEIN_4B = FLUX2 | {"num_layers": 5, "num_single_layers": 20, "num_attention_heads": 24, "joint_attention_dim": 7680}
KLEIN_9B = FLUX2 | {"num_layers": 8, "num_single_layers": 24, "num_attention_heads": 32, "joint_attention_dim": 12288}
FLUX3_KLEIN: dict[str, Any] = {
    "_class_name": "Flux3Transformer2DModel", "in_channels": 128, "cond_in_channels": 128, "num_layers": 5,
    "num_single_layers": 28, "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 20480,
}  # fmt: skip
QWEN: dict[str, Any] = {
    "_class_name": "QwenImageTransformer2DModel", "in_channels": 64, "out_channels": 16, "num_layers": 60,
    "num_attention_heads": 24, "attention_head_dim": 128, "joint_attention_dim": 3584, "guidance_embeds": False,
}  # fmt: skip
#: Sizes that the defaults of diffusers' classes state, which are those of the released model.
QWEN_21: dict[str, Any] = {
    "_class_name": "QwenImage21Transformer2DModel", "in_channels": 64, "num_layers": 32, "num_attention_heads": 32,
    "attention_head_dim": 128, "context_in_dim": 4096,
}  # fmt: skip
Z_IMAGE: dict[str, Any] = {
    "_class_name": "ZImageTransformer2DModel", "in_channels": 16, "all_patch_size": [2], "dim": 3840, "n_layers": 30,
    "n_refiner_layers": 2, "n_heads": 30, "n_kv_heads": 30, "cap_feat_dim": 2560, "axes_dims": [32, 48, 48],
    "axes_lens": [1536, 512, 512],
}  # fmt: skip


@dataclass(frozen=True)
class ModelConfig:
    """Configurations of a pipeline's transformer and VAE, as diffusers writes them to ``config.json``.

    ``text_patch`` = pixels a side of what a vision-language text encoder makes one token of; None where the text
    encoder reads words only.
    """

    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    text_patch: int | None = None

    @property
    def width(self) -> int:
        """Width of the transformer's hidden states."""
        config = self.transformer
        return int(config["dim"] if "dim" in config else config["num_attention_heads"] * config["attention_head_dim"])

    @property
    def blocks(self) -> int:
        """Number of the transformer's blocks that a token passes."""
        config = self.transformer
        if "n_layers" in config:
            return int(config["n_layers"] + config["n_refiner_layers"])
        return int(config["num_layers"] + config.get("num_single_layers", 0))

    @property
    def text_width(self) -> int:
        """Width of the prompt embeddings."""
        names = ("joint_attention_dim", "cap_feat_dim", "context_in_dim")
        return int(next(self.transformer[name] for name in names if name in self.transformer))

    @property
    def token_channels(self) -> int:
        """Channels of a token of latents. Some transformers divide latents into patches, others read packed latents."""
        (patch,) = self.transformer.get("all_patch_size", [1])
        return int(self.transformer["in_channels"] * patch**2)


_FLUX, _FLUX2_VAE = ModelConfig(FLUX, FLUX_VAE), {"_class_name": "AutoencoderKLFlux2"}
_KLEIN_4B, _KLEIN_9B = ModelConfig(KLEIN_4B, _FLUX2_VAE), ModelConfig(KLEIN_9B, _FLUX2_VAE)
_FLUX3_KLEIN = ModelConfig(FLUX3_KLEIN, _FLUX2_VAE)
_Z_IMAGE = ModelConfig(Z_IMAGE, FLUX_VAE)
_QWEN = ModelConfig(QWEN, {"_class_name": "AutoencoderKLQwenImage"}, text_patch=28)
PUBLIC = {
    "black-forest-labs/FLUX.1-dev": _FLUX,
    "black-forest-labs/FLUX.1-Kontext-dev": _FLUX,
    "black-forest-labs/FLUX.2-klein-base-4B": _KLEIN_4B,
    "black-forest-labs/FLUX.2-klein-4B": _KLEIN_4B,
    "black-forest-labs/FLUX.2-klein-base-9B": _KLEIN_9B,
    "black-forest-labs/FLUX.2-klein-9B": _KLEIN_9B,
    "black-forest-labs/flux-3-image-klein-base": _FLUX3_KLEIN,
    "Qwen/Qwen-Image": _QWEN,
    "Qwen/Qwen-Image-2512": _QWEN,
    "Qwen/Qwen-Image-Edit": _QWEN,
    "Qwen/Qwen-Image-Edit-2509": _QWEN,
    "Qwen/Qwen-Image-Edit-2511": ModelConfig(QWEN | {"zero_cond_t": True}, _QWEN.vae, _QWEN.text_patch),
    "Qwen/Qwen-Image-2.1": ModelConfig(QWEN_21, {"_class_name": "AutoencoderKLQwenImage21"}, text_patch=32),
    "Tongyi-MAI/Z-Image": _Z_IMAGE,
    "Tongyi-MAI/Z-Image-Turbo": _Z_IMAGE,
}

#: Weights of public models in GB as stored (bf16), from their model cards; of Qwen3-VL, from its configurations.
HUB_GB = {
    "black-forest-labs/FLUX.1-dev": 33.7,
    "black-forest-labs/FLUX.1-Kontext-dev": 33.7,  # the same parts
    "black-forest-labs/FLUX.2-klein-4B": 16.0,  # 3.9 B in the transformer, 4.0 B in the text encoder
    "black-forest-labs/FLUX.2-klein-base-4B": 16.0,
    "black-forest-labs/FLUX.2-klein-9B": 34.5,  # 9.0 B and 8.2 B
    "black-forest-labs/FLUX.2-klein-base-9B": 34.5,
    "black-forest-labs/flux-3-image-klein-base": 20.3,  # 5.6 B and 4.4 B (Qwen3-VL-4B)
    "Tongyi-MAI/Z-Image": 20.5,  # 6.2 B in the transformer, 4.0 B in the text encoder
    "Tongyi-MAI/Z-Image-Turbo": 20.5,
    "Qwen/Qwen-Image": 57.7,  # the same parts as the editor's
    "Qwen/Qwen-Image-2512": 57.7,
    "Qwen/Qwen-Image-Edit": 57.7,  # 20.4 B in the transformer, 8.3 B in the text encoder
    "Qwen/Qwen-Image-Edit-2509": 57.7,  # the same parts
    "Qwen/Qwen-Image-Edit-2511": 57.7,
    "Qwen/Qwen-Image-2.1": 33.1,  # 7.1 B in the transformer, 8.8 B in the text encoder
    "Qwen/Qwen2.5-VL-7B-Instruct": 16.6,
    "X-GenGroup/PaCo-Reward-7B": 16.6,  # that model, merged
    "Qwen/Qwen3-VL-4B-Instruct": 8.9,  # 4.44 B, of which 0.41 B in the vision tower
    "Qwen/Qwen3-VL-8B-Instruct": 17.5,  # 8.77 B and 0.58 B
    "hf-hub:laion/CLIP-ViT-H-14-laion2B-s32B-b79K": 3.9,
}

#: Bytes of a weight in fewer bits: the bits, and the scales of blocks of 64 (nf4) or of rows (fp8).
STORED_BYTES = {"nf4": 0.5 + 4 / 64, "fp8": 1.0}
#: Weights in the layers of their language models, which `serving.quantization` keeps in fewer bits.
LAYERS = {
    "Qwen/Qwen2.5-VL-7B-Instruct": 6.525e9,
    "X-GenGroup/PaCo-Reward-7B": 6.525e9,
    "Qwen/Qwen3-VL-4B-Instruct": 3.633e9,
    "Qwen/Qwen3-VL-8B-Instruct": 6.946e9,
}


def model_config(root: Path, model: str) -> ModelConfig | None:
    """Configurations of a folder below ``root``, a public model or a repository in the hub's cache; None for others.

    Raises:
        DataError: when the ``config.json`` of a folder's transformer or VAE cannot be read.
    """
    folder = root / model
    if not _has_configs(folder):
        if model in PUBLIC:
            return PUBLIC[model]
        if (snapshot := cached_snapshot(model)) is None or not _has_configs(snapshot):
            return None
        folder = snapshot
    return ModelConfig(_read(folder, "transformer"), _read(folder, "vae"), _text_patch(folder))


def _has_configs(folder: Path) -> bool:
    return all((folder / part / "config.json").is_file() for part in ("transformer", "vae"))


def _read(folder: Path, part: str) -> dict[str, Any]:
    config: dict[str, Any] = read_json(folder / part / "config.json")
    if not isinstance(config.get("_class_name"), str):
        raise DataError(f"{folder}: {part}/config.json has no _class_name; expected a class of diffusers")
    return config


def _text_patch(folder: Path) -> int | None:
    file = folder / "text_encoder" / "config.json"
    vision = read_json(file).get("vision_config") if file.is_file() else None
    return vision["patch_size"] * vision["spatial_merge_size"] if vision else None


def language_layers(root: Path, model: str | None) -> float:
    """Weights of a reward model's language layers, of a folder or a known hub id; 0 where they are not known."""
    file = root / str(model) / "config.json"
    if not file.is_file():
        return LAYERS.get(str(model), 0.0)
    config = read_json(file)
    text = config.get("text_config", config)
    width, heads = text["hidden_size"], text["num_attention_heads"]
    head = text.get("head_dim") or width // heads  # Qwen3-VL's heads together may be wider than the states
    attention = 2 * (heads + text["num_key_value_heads"]) * head
    return float(text["num_hidden_layers"] * width * (attention + 3 * text["intermediate_size"]))


def reward_gb(params: Params, root: Path) -> float:
    """Weights of the reward model that is served: the published model, or the base that is trained or adapted."""
    return model_gb(root, params.reward.model)


def model_gb(root: Path, model: str | None) -> float:
    """Weights of a model folder, a known hub id, or a repository in the hub's cache; 0 for other hub ids."""
    if model is None:
        return 0.0
    folder = root / model
    if not folder.is_dir():
        if model in HUB_GB:
            return HUB_GB[model]
        if (snapshot := cached_snapshot(model)) is None:
            return 0.0
        folder = snapshot
    return sum(p.stat().st_size for p in folder.rglob("*.safetensors")) / 1e9
