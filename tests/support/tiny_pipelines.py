"""Text-to-image pipelines of other families than FLUX, complete and with random weights, for tests.

Each encodes prompts in its own way: StableDiffusion with a negative prompt for guidance, PixArt with masks of
fixed length, Qwen-Image with embeddings as long as the prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

TEXT_LENGTH = 40


def stable_diffusion(folder: Path) -> Path:
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
    from transformers import CLIPTextConfig, CLIPTextModel

    from zoo.text import build_tokenizer

    tokenizer = build_tokenizer()
    tokenizer.model_max_length = TEXT_LENGTH
    end = tokenizer.eos_token_id
    text = CLIPTextConfig(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        max_position_embeddings=TEXT_LENGTH, eos_token_id=end, pad_token_id=tokenizer.pad_token_id, bos_token_id=end,
    )  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=4, block_out_channels=(8, 16), layers_per_block=1, norm_num_groups=4, cross_attention_dim=16,
        attention_head_dim=2, down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    )  # fmt: skip
    StableDiffusionPipeline(
        vae=_autoencoder(AutoencoderKL, 4), text_encoder=CLIPTextModel(text), tokenizer=tokenizer, unet=unet,
        scheduler=DDIMScheduler(), safety_checker=None, feature_extractor=None, requires_safety_checker=False,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def pixart(folder: Path) -> Path:
    from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    from zoo.text import build_tokenizer

    tokenizer = build_tokenizer()
    text = T5Config(
        vocab_size=len(tokenizer), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
        relative_attention_num_buckets=8, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
        is_encoder_decoder=False, use_cache=False,
    )  # fmt: skip
    transformer = PixArtTransformer2DModel(
        sample_size=4, num_layers=1, patch_size=2, attention_head_dim=8, num_attention_heads=2, caption_channels=16,
        cross_attention_dim=16, in_channels=4, out_channels=8, num_embeds_ada_norm=1000,
        use_additional_conditions=False,
    )  # fmt: skip
    PixArtAlphaPipeline(
        tokenizer=tokenizer, text_encoder=T5EncoderModel(text), transformer=transformer,
        vae=_autoencoder(AutoencoderKL, 4), scheduler=DPMSolverMultistepScheduler(),
    ).save_pretrained(folder)  # fmt: skip
    return folder


def qwen_image(folder: Path) -> Path:
    from diffusers import (
        AutoencoderKLQwenImage,
        FlowMatchEulerDiscreteScheduler,
        QwenImagePipeline,
        QwenImageTransformer2DModel,
    )
    from transformers import AutoTokenizer, Qwen2_5_VLForConditionalGeneration

    from tests.support.tiny_vlm import build

    encoder = build(folder.parent / "encoder")
    vae = AutoencoderKLQwenImage(
        base_dim=8, z_dim=4, dim_mult=[1, 1, 1, 1], num_res_blocks=1, temperal_downsample=[False, True, True],
        latents_mean=[0.0] * 4, latents_std=[1.0] * 4,
    )  # fmt: skip
    transformer = QwenImageTransformer2DModel(
        patch_size=2, in_channels=16, out_channels=4, num_layers=1, attention_head_dim=16, num_attention_heads=2,
        joint_attention_dim=32, guidance_embeds=False, axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    QwenImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(), vae=vae, transformer=transformer,
        text_encoder=Qwen2_5_VLForConditionalGeneration.from_pretrained(encoder),
        tokenizer=AutoTokenizer.from_pretrained(encoder),
    ).save_pretrained(folder)  # fmt: skip
    return folder


def qwen_image_edit(folder: Path) -> Path:
    from diffusers import QwenImageEditPipeline, QwenImagePipeline
    from transformers import AutoProcessor

    parts = QwenImagePipeline.from_pretrained(qwen_image(folder.parent / "text_to_image")).components
    QwenImageEditPipeline(**parts, processor=AutoProcessor.from_pretrained(folder.parent / "encoder")).save_pretrained(
        folder
    )
    return folder


def qwen_image_edit_plus(folder: Path, **transformer: Any) -> Path:
    """As 2509; with ``zero_cond_t=True`` as 2511."""
    from diffusers import QwenImageEditPlusPipeline, QwenImagePipeline, QwenImageTransformer2DModel
    from transformers import AutoProcessor

    parts = QwenImagePipeline.from_pretrained(qwen_image(folder.parent / "text_to_image")).components
    if transformer:
        parts["transformer"] = QwenImageTransformer2DModel(**{**parts["transformer"].config, **transformer})
    processor = AutoProcessor.from_pretrained(folder.parent / "encoder")
    QwenImageEditPlusPipeline(**parts, processor=processor).save_pretrained(folder)
    return folder


#: As the released tokenizer writes a prompt with ``enable_thinking=False``, in short.
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def flux2_klein(folder: Path, *, distilled: bool = False, gain: float = 3.0, **transformer: Any) -> Path:
    """27 layers of text encoder as the pipeline reads them, and an autoencoder whose batch norm changes something.

    Args:
        gain: of the transformer's weights: as drawn, words and references hardly move a picture. Half precision loses
            its way at 3.
    """
    import torch
    from diffusers import (
        AutoencoderKLFlux2,
        FlowMatchEulerDiscreteScheduler,
        Flux2KleinPipeline,
        Flux2Transformer2DModel,
    )
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from tests.support.tiny_vlm import SENTENCES
    from zoo.vlm import build_tokenizer

    tokenizer = build_tokenizer(SENTENCES)
    tokenizer.chat_template = CHAT_TEMPLATE
    text = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=27, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=512, initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    vae = _autoencoder(AutoencoderKLFlux2, 4)
    vae.bn.running_mean.copy_(torch.linspace(-0.3, 0.3, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    config = {
        "in_channels": 16, "num_layers": 1, "num_single_layers": 2, "attention_head_dim": 16, "num_attention_heads": 2,
        "joint_attention_dim": 48, "timestep_guidance_channels": 16, "axes_dims_rope": (4, 4, 4, 4),
        "guidance_embeds": False, **transformer,
    }  # fmt: skip
    network = Flux2Transformer2DModel(**config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(gain if parameter.ndim > 1 else 1)
    Flux2KleinPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0), vae=vae, tokenizer=tokenizer,
        text_encoder=Qwen3ForCausalLM(text), transformer=network, is_distilled=distilled,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def flux3_klein(folder: Path, *, gain: float = 3.0, **transformer: Any) -> Path:
    """A modular pipeline: 32 layers of text encoder as its steps read them, and one block of each kind of tokens.

    Args:
        gain: of the transformer's weights: as drawn, words and references hardly move a picture.
    """
    import torch
    from diffusers import AutoencoderKLFlux2, Flux3ModularPipeline, Flux3Transformer2DModel
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    from paco_core.models.modular import build_modular
    from tests.support import tiny_qwen3_vl

    encoder = tiny_qwen3_vl.build(folder.parent / "encoder", layers=32)
    processor = AutoProcessor.from_pretrained(encoder)
    processor.chat_template = processor.tokenizer.chat_template = CHAT_TEMPLATE
    vae = _autoencoder(AutoencoderKLFlux2, 4)
    vae.bn.running_mean.copy_(torch.linspace(-0.3, 0.3, 16))
    vae.bn.running_var.copy_(torch.linspace(0.5, 2.0, 16))
    config = {
        "in_channels": 16, "cond_in_channels": 16, "num_layers": 1, "num_single_layers": 2, "attention_head_dim": 16,
        "num_attention_heads": 2, "joint_attention_dim": 256, "timestep_channels": 16, "axes_dims_rope": (4, 4, 4, 4),
        **transformer,
    }  # fmt: skip
    network = Flux3Transformer2DModel(**config)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(gain if parameter.ndim > 1 else 1)
    parts = {
        "text_encoder": Qwen3VLForConditionalGeneration.from_pretrained(encoder), "tokenizer": processor, "vae": vae,
        "transformer": network,
    }  # fmt: skip
    build_modular(Flux3ModularPipeline, parts).save_pretrained(str(folder), overwrite_modular_index=True)
    return folder


def z_image(folder: Path, *, gain: float = 3.0, **scheduler: Any) -> Path:
    """As released: a fixed shift, separate blocks for image and text before those for both.

    Args:
        gain: of the transformer's weights: as drawn, words hardly move a picture.
        scheduler: of its configuration, in place of the fixed shift.
    """
    import torch
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, ZImagePipeline, ZImageTransformer2DModel
    from transformers import Qwen3Config, Qwen3Model

    from tests.support.tiny_vlm import SENTENCES
    from zoo.vlm import build_tokenizer

    tokenizer = build_tokenizer(SENTENCES)
    tokenizer.chat_template = CHAT_TEMPLATE
    text = Qwen3Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
        num_key_value_heads=1, head_dim=8, max_position_embeddings=512, initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    network = ZImageTransformer2DModel(
        in_channels=4, dim=32, n_layers=2, n_refiner_layers=1, n_heads=2, n_kv_heads=2, cap_feat_dim=16,
        axes_dims=[4, 6, 6], axes_lens=[128, 16, 16],
    )  # fmt: skip
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(gain if parameter.ndim > 1 else 1)
        for token in (network.x_pad_token, network.cap_pad_token):  # zeros as built
            token.normal_()
    vae = _autoencoder(AutoencoderKL, 4)
    vae.register_to_config(scaling_factor=0.4, shift_factor=0.1)
    ZImagePipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(**scheduler or {"shift": 6.0}), vae=vae, tokenizer=tokenizer,
        text_encoder=Qwen3Model(text), transformer=network,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def qwen_image_21(folder: Path, *, gain: float = 3.0, sample_sigmas: list[float] | None = None) -> Path:
    """As released: an autoencoder with an alpha channel that compresses 16 times, and a text encoder that sees images.

    Args:
        gain: of the transformer's weights: as drawn, words and references hardly move a picture.
    """
    import torch
    from diffusers import (
        AutoencoderKLQwenImage21,
        FlowMatchEulerDiscreteScheduler,
        QwenImage21Pipeline,
        QwenImage21Transformer2DModel,
    )
    from transformers import AutoProcessor, Qwen3VLForConditionalGeneration

    from tests.support import tiny_qwen3_vl

    encoder = tiny_qwen3_vl.build(folder.parent / "encoder")
    processor = AutoProcessor.from_pretrained(encoder)
    processor.image_processor.size = {"shortest_edge": 32 * 32, "longest_edge": 1024 * 1024}
    vae = AutoencoderKLQwenImage21(
        base_dim=4, decoder_base_dim=4, z_dim=4, dim_mult=[1, 1, 2, 2, 2], num_res_blocks=1,
        latents_mean=[0.1, 0.0, -0.1, 0.2], latents_std=[1.0, 0.8, 1.2, 1.0],
    )  # fmt: skip
    network = QwenImage21Transformer2DModel(
        in_channels=4, out_channels=4, num_layers=2, attention_head_dim=16, num_attention_heads=2, context_in_dim=32,
        axes_dims_rope=(4, 6, 6),
    )  # fmt: skip
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(gain if parameter.ndim > 1 else 1)
    QwenImage21Pipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), vae=vae, transformer=network,
        text_encoder=Qwen3VLForConditionalGeneration.from_pretrained(encoder), processor=processor,
        sample_sigmas=sample_sigmas,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def _autoencoder(kind: Any, channels: int) -> Any:
    return kind(
        latent_channels=channels, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        mid_block_add_attention=False,
    )  # fmt: skip


FAMILIES: dict[str, Callable[[Path], Path]] = {
    "StableDiffusionPipeline": stable_diffusion,
    "PixArtAlphaPipeline": pixart,
    "QwenImagePipeline": qwen_image,
}
