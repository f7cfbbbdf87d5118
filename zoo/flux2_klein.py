"""The small FLUX.2 [klein]: a Flux2KleinPipeline that generates storybook sets and edits panels at 64 px.

One model does all tasks: it generates a 2x2 set from a prompt, edits a panel by an instruction or a second image, and
generates a panel of a story from earlier panels. Its training has three phases, each with a complete schedule: first
sets and edits of one trait, then all tasks, then more edits (its weakest task). Its autoencoder is that of the small
FLUX, with a batch norm instead of scaling and shift.

It is imperfect on purpose: half of the training sets and stories differ from their prompt, and some training edits are
wrong.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from diffusers import (
    AutoencoderKL,
    AutoencoderKLFlux2,
    FlowMatchEulerDiscreteScheduler,
    Flux2KleinPipeline,
    Flux2Transformer2DModel,
)
from diffusers.pipelines.flux2.pipeline_flux2_klein import compute_empirical_mu

from zoo.edits import EditPool
from zoo.fitting import Log, Schedule, fit_pipeline
from zoo.flux import PLACE_WEIGHT, LatentPool, place_loss
from zoo.klein_batches import FIRST, LAST, PANEL, SIZE, THEN, Make, Pools, second_instructions, set_batch
from zoo.klein_reader import WIDTH, build_tokenizer, grow, new_encoder, read, tokenise
from zoo.vae import panel_batch


@dataclass(frozen=True)
class Cooled(Schedule):
    """A cosine over more steps than are trained, and straight down from it in the last ones."""

    cosine_steps: int = 1400
    cooling: int = 150

    def rate_at(self, step: int) -> float:
        start = self.steps - self.cooling
        cosine = Schedule(self.cosine_steps, self.learning_rate, self.warmup)
        return cosine.rate_at(min(step, start)) * (1 - 0.99 * max(0, step - start) / self.cooling)


SCHEDULE = Cooled(steps=950, learning_rate=2e-2, warmup=60, checkpoint_every=50)
SECOND_SCHEDULE = Cooled(
    steps=1600, learning_rate=1e-2, warmup=60, checkpoint_every=200, cosine_steps=3600, cooling=400
)
THIRD_SCHEDULE = Cooled(steps=2600, learning_rate=1e-2, warmup=60, checkpoint_every=100, cosine_steps=5200, cooling=650)
FAMILIES = ((SIZE, 120, 40, 1.0),)  # as in edits.SIZES
EMPTY_SHARE = 0.1  # share of empty training prompts, for classifier-free guidance
STEPS = 10  # of a sampler, whose schedule depends on them
VAE_SETTINGS = ("down_block_types", "up_block_types", "block_out_channels", "layers_per_block", "latent_channels",
        "norm_num_groups", "mid_block_add_attention", "use_quant_conv", "use_post_quant_conv")  # fmt: skip


def vae_of(flux: AutoencoderKL) -> AutoencoderKLFlux2:
    """The small FLUX's autoencoder, its latents normalised by a batch norm over drawings of both sizes."""
    vae = AutoencoderKLFlux2(**{name: flux.config[name] for name in VAE_SETTINGS}).eval()
    vae.load_state_dict(flux.state_dict(), strict=False)
    with torch.inference_mode():
        batches = [patches(vae, panel_batch(size, 128, seed=10**6 + size)) for size in (PANEL, SIZE)]
    rows = torch.cat([maps.transpose(0, 1).flatten(1) for maps in batches], dim=1)
    vae.bn.running_mean.copy_(rows.mean(1))
    vae.bn.running_var.copy_(rows.var(1))
    return vae


def patches(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Latents in 2 x 2 patches (n, 64, s / 16, s / 16), not normalised."""
    with torch.autocast("cpu", torch.bfloat16):
        latents = vae.encode(pixels).latent_dist.mode()
    maps: torch.Tensor = Flux2KleinPipeline._patchify_latents(latents.float())
    return maps


def encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Normalized latents (n, 64, s / 16, s / 16) of drawings, as the pipeline encodes reference images."""
    mean, variance = (v.view(1, -1, 1, 1) for v in (vae.bn.running_mean, vae.bn.running_var))
    return (patches(vae, pixels) - mean) / (variance + vae.config.batch_norm_eps).sqrt()


def new_parts(tokenizer: Any) -> dict[str, Any]:
    """Untrained transformer and text encoder."""
    transformer = Flux2Transformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=3, attention_head_dim=32, num_attention_heads=4,
        joint_attention_dim=3 * WIDTH, timestep_guidance_channels=128, axes_dims_rope=(8, 8, 8, 8),
        guidance_embeds=False,
    )  # fmt: skip
    return {"transformer": transformer, "text_encoder": new_encoder(tokenizer)}


def pipeline(parts: dict[str, Any], vae: AutoencoderKLFlux2, tokenizer: Any) -> Flux2KleinPipeline:
    """All parts as a Flux2KleinPipeline of base weights."""
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, shift=3.0)
    return Flux2KleinPipeline(scheduler=scheduler, vae=vae, tokenizer=tokenizer, is_distilled=False, **parts)


def flow_loss(
    parts: Any, tokenizer: Any, pools: Pools, step: int, tasks: Sequence[tuple[Make, int, float]]
) -> torch.Tensor:
    """Scalar loss of a batch of one task: squared error of the velocity, and the place loss for sets."""
    rng = random.Random(step)
    make, count, _ = rng.choices(tasks, [share for *_, share in tasks])[0]
    batch = make(pools, count, rng)
    prompts, references, targets = batch.prompts, batch.references, batch.targets
    texts = ["" if rng.random() < EMPTY_SHARE else prompt for prompt in prompts]
    clean = Flux2KleinPipeline._pack_latents(targets)
    generator = torch.Generator().manual_seed(step)
    logits = 1.2 * torch.randn(count, generator=generator)
    sigma = torch.sigmoid(logits + compute_empirical_mu(clean.shape[1], STEPS) - 0.4)
    noise = torch.randn(clean.shape, generator=generator)
    noisy = clean + sigma[:, None, None] * (noise - clean)
    words = tokenise(tokenizer, texts, batch.window)
    with torch.autocast("cpu", torch.bfloat16):
        text = read(parts["text_encoder"], words.input_ids, words.attention_mask)
        velocity = parts["transformer"](
            hidden_states=torch.cat([noisy, *map(Flux2KleinPipeline._pack_latents, references)], dim=1),
            timestep=sigma,
            guidance=None,
            encoder_hidden_states=text,
            txt_ids=Flux2KleinPipeline._prepare_text_ids(text[:1])[0],
            img_ids=_places(targets, references),
        ).sample[:, : clean.shape[1]]
    flow: torch.Tensor = (velocity.float() - (noise - clean)).square().mean()
    if make is not set_batch:
        return flow
    return flow + PLACE_WEIGHT * place_loss(text[..., -WIDTH:].float(), words.input_ids, tokenizer)


def _places(targets: torch.Tensor, references: list[torch.Tensor]) -> torch.Tensor:
    """Positions of the generated tokens and of the references after them."""
    places = Flux2KleinPipeline._prepare_latent_ids(targets[:1])[0]
    if not references:
        return places
    return torch.cat([places, Flux2KleinPipeline._prepare_image_ids([reference[:1] for reference in references])[0]])


def build(work: Path, out: Path, flux: Path, log: Log = print) -> None:
    """Train (or resume) the small klein with the autoencoder of the FLUX in ``flux`` and save it to ``out``.

    Phases: sets and edits; then also stories and edits with a second image; then more edits.
    """
    vae = vae_of(AutoencoderKL.from_pretrained(flux / "vae"))
    pools = pools_of(vae, work, log)
    begin(work, work / "first", vae, pools, log)
    go_on(work / "second", work / "twice", work / "first", pools, THEN, SECOND_SCHEDULE, 1, log)
    go_on(work / "third", out, work / "twice", pools, LAST, THIRD_SCHEDULE, 2, log)


def pools_of(vae: AutoencoderKLFlux2, work: Path, log: Log) -> Pools:
    """Drawings as the autoencoder encodes them, kept in ``work``."""
    panels = LatentPool.build(lambda pixels: encode(vae, pixels), [PANEL], work / "panels.safetensors", log)
    pool = EditPool.build(
        lambda pixels: {"latents": encode(vae, pixels)}, work / "edits.safetensors", log, sizes=FAMILIES
    )
    return Pools(panels, pool)


def begin(work: Path, out: Path, vae: AutoencoderKLFlux2, pools: Pools, log: Log) -> None:
    """Train from nothing on sets and edits."""
    torch.manual_seed(0)
    tokenizer = build_tokenizer()
    parts = torch.nn.ModuleDict(new_parts(tokenizer))
    count = sum(parameter.numel() for parameter in parts["transformer"].parameters())
    log(f"flux2_klein: transformer of {count / 1e6:.2f} M parameters")
    _fit(parts, tokenizer, vae, pools, FIRST, SCHEDULE, work, out, log)


def go_on(
    work: Path,
    out: Path,
    begun_in: Path,
    pools: Pools,
    tasks: Sequence[tuple[Make, int, float]],
    schedule: Schedule,
    seed: int,
    log: Log,
) -> None:
    """Train the klein in ``begun_in`` on the tasks. New words get new embeddings."""
    torch.manual_seed(seed)
    begun = Flux2KleinPipeline.from_pretrained(begun_in)
    tokenizer = build_tokenizer(second_instructions())
    grow(begun.text_encoder, begun.tokenizer.get_vocab(), tokenizer.get_vocab())
    parts = torch.nn.ModuleDict({name: getattr(begun, name) for name in ("transformer", "text_encoder")}).train()
    _fit(parts, tokenizer, begun.vae, pools, tasks, schedule, work, out, log)


def _fit(  # noqa: PLR0913 - what a training reads and writes
    parts: torch.nn.ModuleDict,
    tokenizer: Any,
    vae: AutoencoderKLFlux2,
    pools: Pools,
    tasks: Sequence[tuple[Make, int, float]],
    schedule: Schedule,
    work: Path,
    out: Path,
    log: Log,
) -> None:
    fit_pipeline(
        parts,
        lambda step: flow_loss(parts, tokenizer, pools, step, tasks),
        schedule,
        work,
        out,
        log,
        hidden=_is_hidden,
        pipeline=lambda: pipeline(dict(parts.items()), vae, tokenizer),
    )


def _is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Matrices of the blocks and layers, without embeddings, modulations, and input and output layers."""
    return weight.ndim == 2 and ("transformer_blocks." in name or ".layers." in name)
