"""The small FLUX Kontext: a FluxKontextPipeline that edits storybook panels of 64 to 192 px.

Its training starts from the small FLUX. It reads the panel from latents next to the noisy ones, and learns
instructions. It is imperfect on purpose: some training edits change another trait, or nothing.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxPipeline

from zoo import edits
from zoo.edits import EditPool
from zoo.fitting import Log, Schedule, fit_pipeline
from zoo.flux import GUIDANCE, SHIFT, encode, is_hidden, shift_mu
from zoo.text import build_tokenizer, grown, words_of

#: Image size in pixels, families that are drawn, edits per batch, share of the steps; as in edits.SIZES.
SIZES = ((64, 120, 40, 0.5), (128, 60, 12, 0.3), (192, 24, 6, 0.2))
SCHEDULE = Schedule(steps=6000, learning_rate=1e-2, warmup=40, checkpoint_every=200)
MAX_LENGTH = 8  # words of an instruction, function words left out, and the end token


def tokenizer() -> Any:
    """The storybook's words and those of the instructions."""
    return build_tokenizer(words_of(edits.instructions()), MAX_LENGTH)


def parts_of(flux: Path) -> dict[str, Any]:
    """Transformer and text encoders of the small FLUX. New words get new embeddings."""
    pipeline = FluxPipeline.from_pretrained(flux)
    old_vocabulary, new_vocabulary = pipeline.tokenizer.get_vocab(), tokenizer().get_vocab()
    for encoder in (pipeline.text_encoder, pipeline.text_encoder_2):
        _grow(encoder, old_vocabulary, new_vocabulary)
    return {name: getattr(pipeline, name) for name in ("transformer", "text_encoder", "text_encoder_2")}


def _grow(encoder: Any, old_vocabulary: dict[str, int], new_vocabulary: dict[str, int]) -> None:
    """Give an encoder rows for the wanted words."""
    rows = grown(encoder.get_input_embeddings().weight.detach(), old_vocabulary, new_vocabulary)
    encoder.set_input_embeddings(torch.nn.Embedding.from_pretrained(rows, freeze=False))
    encoder.config.vocab_size = len(new_vocabulary)


def pipeline(parts: dict[str, Any], vae: AutoencoderKL) -> FluxKontextPipeline:
    """All parts as a FluxKontextPipeline."""
    words = tokenizer()
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **SHIFT)
    return FluxKontextPipeline(scheduler=scheduler, vae=vae, tokenizer=words, tokenizer_2=words, **parts)


def flow_loss(parts: Any, words: Any, pool: EditPool, step: int) -> torch.Tensor:
    """Flow matching on one batch of edits of one size: squared error of the velocity, a scalar."""
    rng = random.Random(step)
    size, _, count, _ = rng.choices(SIZES, [share for *_, share in SIZES])[0]
    batch = pool.batch(size, count, rng)
    generator = torch.Generator().manual_seed(step)
    clean, reference = (
        FluxKontextPipeline._pack_latents(x, *x.shape) for x in (batch.targets, batch.reference["latents"])
    )
    logits = torch.randn(count, generator=generator)
    sigma = torch.sigmoid(logits + shift_mu(clean.shape[1]))
    noise = torch.randn(clean.shape, generator=generator)
    noisy = clean + sigma[:, None, None] * (noise - clean)
    ids = words(
        batch.instructions, padding="max_length", max_length=MAX_LENGTH, truncation=True, return_tensors="pt"
    ).input_ids
    side = batch.targets.shape[-1] // 2
    places = FluxKontextPipeline._prepare_latent_image_ids(count, side, side, "cpu", torch.float32)
    velocity = parts["transformer"](
        hidden_states=torch.cat([noisy, reference], dim=1),
        timestep=sigma,
        guidance=torch.full((count,), GUIDANCE),
        pooled_projections=parts["text_encoder"](ids).pooler_output,
        encoder_hidden_states=parts["text_encoder_2"](ids)[0],
        txt_ids=torch.zeros(MAX_LENGTH, 3),
        img_ids=torch.cat([places, places + torch.tensor([1.0, 0.0, 0.0])]),
    ).sample[:, : clean.shape[1]]
    loss: torch.Tensor = (velocity - (noise - clean)).square().mean()
    return loss


def build(work: Path, out: Path, flux: Path, log: Log = print) -> None:
    """Train (or resume) the small Kontext from the FLUX in ``flux`` and save it to ``out``."""
    vae = AutoencoderKL.from_pretrained(flux / "vae").eval()
    file = work / "latents.safetensors"
    pool = EditPool.build(lambda pixels: {"latents": encode(vae, pixels)}, file, log, sizes=SIZES)
    torch.manual_seed(0)
    parts = torch.nn.ModuleDict(parts_of(flux))
    words = tokenizer()

    fit_pipeline(
        parts,
        lambda step: flow_loss(parts, words, pool, step),
        SCHEDULE,
        work,
        out,
        log,
        hidden=is_hidden,
        pipeline=lambda: pipeline(dict(parts.items()), vae),
    )
