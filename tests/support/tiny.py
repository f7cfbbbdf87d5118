"""A complete FluxPipeline folder with random weights, for tests: loads as the released checkpoints do.

Half a megabyte, built in about a second; a 64 px picture of four steps takes some 30 ms on one core.
"""

from __future__ import annotations

from pathlib import Path

TEXT_LENGTH = 40  # tokens; pass as max_sequence_length


def tiny_flux(folder: Path, *, seed: int = 0) -> Path:
    """Write transformer, both text encoders, tokenizers, autoencoder and scheduler to ``folder`` and return it.

    Random weights of a size that makes pictures differ from prompt to prompt and from noise to noise.
    """
    import torch
    from diffusers import (
        AutoencoderKL,
        FlowMatchEulerDiscreteScheduler,
        FluxPipeline,
        FluxTransformer2DModel,
    )
    from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

    from zoo.text import build_tokenizer

    tokenizer = build_tokenizer()
    words, eos, pad = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        clip = CLIPTextModel(
            CLIPTextConfig(
                vocab_size=words, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
                max_position_embeddings=TEXT_LENGTH, eos_token_id=eos, pad_token_id=pad, bos_token_id=eos,
            )
        )  # fmt: skip
        t5 = T5EncoderModel(
            T5Config(
                vocab_size=words, d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, dropout_rate=0.0,
                relative_attention_num_buckets=8, eos_token_id=eos, pad_token_id=pad,
                is_encoder_decoder=False, use_cache=False,
            )
        )  # fmt: skip
        transformer = FluxTransformer2DModel(
            in_channels=64, num_layers=1, num_single_layers=1, attention_head_dim=16, num_attention_heads=2,
            joint_attention_dim=16, pooled_projection_dim=16, guidance_embeds=True, axes_dims_rope=(4, 6, 6),
        )  # fmt: skip
        vae = AutoencoderKL(
            latent_channels=16, block_out_channels=(8, 8, 8, 8), layers_per_block=1, norm_num_groups=4,
            down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
            mid_block_add_attention=False, use_quant_conv=False, use_post_quant_conv=False,
            scaling_factor=0.36, shift_factor=0.12,
        )  # fmt: skip
    scheduler = FlowMatchEulerDiscreteScheduler(
        use_dynamic_shifting=True,
        base_shift=0.5,
        max_shift=1.15,
        base_image_seq_len=16,
        max_image_seq_len=144,
    )
    FluxPipeline(
        scheduler=scheduler, vae=vae, text_encoder=clip, tokenizer=tokenizer, text_encoder_2=t5,
        tokenizer_2=tokenizer, transformer=transformer,
    ).save_pretrained(folder)  # fmt: skip
    return folder


def tiny_kontext(folder: Path, *, seed: int = 0) -> Path:
    """The same parts as an editor: a FluxKontextPipeline folder."""
    from diffusers import FluxKontextPipeline, FluxPipeline

    flux = FluxPipeline.from_pretrained(tiny_flux(folder.parent / f"{folder.name}_flux", seed=seed))
    FluxKontextPipeline(**flux.components).save_pretrained(folder)
    return folder
