"""The small Qwen-Image-Edit: a QwenImageEditPipeline that edits storybook panels of 64 to 128 px.

Autoencoder and transformer are trained. Its text encoder comes from the zoo's Qwen2.5-VL. It is imperfect on purpose:
some training edits change another trait, or nothing. One instruction in ten is empty, for classifier-free guidance.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, QwenImageEditPipeline, QwenImageTransformer2DModel
from transformers import Qwen2VLProcessor

from zoo import edits, qwen_reader, qwen_vae, vlm
from zoo.edits import EditPool
from zoo.fitting import Log, Schedule, fit_pipeline
from zoo.flux import SHIFT, shift_mu
from zoo.qwen_reader import InstructionReader

SCHEDULE = Schedule(steps=5000, learning_rate=2e-2, warmup=60, checkpoint_every=200)
EMPTY_SHARE = 0.1  # of the training instructions


def new_transformer(width: int) -> QwenImageTransformer2DModel:
    """An untrained transformer of 2.5 M parameters that reads states of ``width`` channels."""
    return QwenImageTransformer2DModel(
        patch_size=2,
        in_channels=4 * qwen_vae.CHANNELS,
        out_channels=qwen_vae.CHANNELS,
        num_layers=4,
        attention_head_dim=32,
        num_attention_heads=4,
        joint_attention_dim=width,
        guidance_embeds=False,
        axes_dims_rope=(8, 12, 12),
    )


def pipeline(transformer: Any, vae: Any, reader: Any, tokenizer: Any) -> QwenImageEditPipeline:
    """All parts as a QwenImageEditPipeline."""
    return QwenImageEditPipeline(
        scheduler=FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **SHIFT),
        vae=vae,
        text_encoder=reader,
        tokenizer=tokenizer,
        processor=vlm.build_processor(tokenizer, Qwen2VLProcessor),
        transformer=transformer,
    )


def flow_loss(transformer: Any, reader: InstructionReader, pool: EditPool, step: int) -> torch.Tensor:
    """Flow matching on one batch of edits of one size: squared error of the velocity, a scalar."""
    rng = random.Random(step)
    size, _, count, _ = rng.choices(edits.SIZES, [share for *_, share in edits.SIZES])[0]
    batch = pool.batch(size, count, rng)
    texts = [" " if rng.random() < EMPTY_SHARE else text for text in batch.instructions]
    text, mask = reader.read(texts, batch.reference["visual"])
    generator = torch.Generator().manual_seed(step)
    pictures = (batch.targets, batch.reference["latents"])
    clean, reference = (QwenImageEditPipeline._pack_latents(x, *x.shape) for x in pictures)
    logits = torch.randn(count, generator=generator)
    sigma = torch.sigmoid(logits + shift_mu(clean.shape[1]))
    noise = torch.randn(clean.shape, generator=generator)
    noisy = clean + sigma[:, None, None] * (noise - clean)
    side = batch.targets.shape[-1] // 2
    velocity = transformer(
        hidden_states=torch.cat([noisy, reference], dim=1),
        timestep=sigma,
        encoder_hidden_states=text,
        encoder_hidden_states_mask=mask,
        img_shapes=[[(1, side, side)] * 2] * count,
    ).sample[:, : clean.shape[1]]
    loss: torch.Tensor = (velocity - (noise - clean)).square().mean()
    return loss


def build(work: Path, out: Path, zoo_vlm: Path, log: Log = print) -> None:
    """Train (or resume) the small Qwen-Image-Edit with the reader in ``zoo_vlm`` and save it to ``out``."""
    vae = qwen_vae.build_vae(work / "vae", log)
    tokenizer = qwen_reader.build_tokenizer(zoo_vlm, edits.instructions())
    model = qwen_reader.build_reader(zoo_vlm, tokenizer)
    reader = InstructionReader(model, tokenizer)

    def encode(pixels: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"latents": qwen_vae.encode(vae, pixels), "visual": reader.see(pixels)}

    pool = EditPool.build(encode, work / "latents.safetensors", log)
    torch.manual_seed(0)
    transformer = new_transformer(model.config.text_config.hidden_size)
    count = sum(parameter.numel() for parameter in transformer.parameters())
    log(f"qwen_image_edit: transformer of {count / 1e6:.2f} M parameters")

    fit_pipeline(
        transformer,
        lambda step: flow_loss(transformer, reader, pool, step),
        SCHEDULE,
        work,
        out,
        log,
        hidden=_is_hidden,
        pipeline=lambda: pipeline(transformer, vae, model, tokenizer),
    )


def _is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Matrices of the blocks but the modulations, which start from a state that is the same for all tokens."""
    return weight.ndim == 2 and "transformer_blocks" in name and "_mod" not in name
