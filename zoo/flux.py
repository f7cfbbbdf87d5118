"""The small FLUX: a FluxPipeline that generates storybook sets at 64 to 256 pixels.

It is imperfect on purpose: half of its training sets differ from their prompt in a shared trait. It therefore generates
consistent sets only part of the time, and reinforcement learning can improve it. The training shows every set at every
size. The schedule shifts with the size by FLUX's formula, so results at one size transfer to another.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import CLIPTextConfig, CLIPTextModel, T5Config, T5EncoderModel

from paco_core.io.progress import Progress
from paco_core.storybook.drawing import draw
from paco_core.storybook.prompts import KINDS, compose_storybook_prompt, place_marks, random_set
from paco_core.storybook.world import SHARED_TRAITS, VOCABULARY, Panel
from zoo.fitting import Log, Schedule, fit_pipeline
from zoo.text import MAX_LENGTH, build_tokenizer

#: Grids per batch by the size of a panel in pixels: about 1,800 tokens per batch. A 2x2 grid has twice the size.
COUNTS = {32: 32, 48: 24, 64: 17, 96: 9, 128: 5}
CONSISTENT_SHARE = 0.5  # of the training sets; the rest strays from its prompt
STRAYING = {"colour": 0.45, "species": 0.25, "accessory": 0.2, "style": 0.1}
SHIFT = {"base_image_seq_len": 16, "max_image_seq_len": 144, "base_shift": 0.5, "max_shift": 1.15}
GUIDANCE = 3.5
PLACE_WEIGHT = 0.1


@dataclass(frozen=True)
class Phase:
    """One part of the training.

    Args:
        name: the folder of its checkpoints.
        sizes: share of the steps by the size of a panel in pixels.
        consistent: share of the training sets that agree with their prompt.
        last_steps: number of steps at the end in which ``last_consistent`` replaces ``consistent``.
        seed: number of the first batch.
    """

    name: str
    schedule: Schedule
    sizes: dict[int, float]
    consistent: float
    last_steps: int = 0
    last_consistent: float = 0.0
    seed: int = 0


FIRST = Phase(
    "",
    Schedule(steps=8000, learning_rate=2e-2, warmup=60, checkpoint_every=200),
    {32: 0.2, 48: 0.15, 64: 0.35, 96: 0.3},
    consistent=CONSISTENT_SHARE,
    last_steps=700,  # at the end, more sets differ from their prompt, so RL can improve the model
    last_consistent=0.3,
)
#: Mostly large panels: after the first phase, the parts of a figure are mixed at 64 and 96 px.
SECOND = Phase(
    "second",
    Schedule(steps=4500, learning_rate=8e-3, warmup=60, checkpoint_every=100),
    {32: 0.1, 48: 0.05, 64: 0.3, 96: 0.55},
    consistent=0.35,
    seed=20_000,
)
#: Adds panels of 128 px, and corrects errors in figures of 64 and 96 px.
THIRD = Phase(
    "third",
    Schedule(steps=8000, learning_rate=8e-3, warmup=60, checkpoint_every=200),
    {32: 0.1, 48: 0.05, 64: 0.25, 96: 0.4, 128: 0.2},
    consistent=0.35,
    seed=40_000,
)


def shift_mu(tokens: int) -> float:
    """mu of the resolution-dependent schedule for an image of ``tokens`` packed latents (FLUX's formula)."""
    slope = (SHIFT["max_shift"] - SHIFT["base_shift"]) / (SHIFT["max_image_seq_len"] - SHIFT["base_image_seq_len"])
    return slope * (tokens - SHIFT["base_image_seq_len"]) + SHIFT["base_shift"]


def new_parts() -> dict[str, Any]:
    """Untrained transformer and text encoders."""
    tokenizer = build_tokenizer()
    words, eos, pad = len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id
    clip = CLIPTextConfig(
        vocab_size=words, hidden_size=96, intermediate_size=192, num_hidden_layers=2, num_attention_heads=3,
        max_position_embeddings=MAX_LENGTH, eos_token_id=eos, pad_token_id=pad, bos_token_id=eos, projection_dim=96,
    )  # fmt: skip
    t5 = T5Config(
        vocab_size=words, d_model=128, d_kv=32, d_ff=256, num_layers=3, num_heads=4, dropout_rate=0.0,
        relative_attention_num_buckets=32, relative_attention_max_distance=64, eos_token_id=eos, pad_token_id=pad,
        is_encoder_decoder=False, use_cache=False,
    )  # fmt: skip
    transformer = FluxTransformer2DModel(
        in_channels=64, num_layers=2, num_single_layers=3, attention_head_dim=32, num_attention_heads=5,
        joint_attention_dim=128, pooled_projection_dim=96, guidance_embeds=True, axes_dims_rope=(8, 12, 12),
    )  # fmt: skip
    encoder = T5EncoderModel(t5)
    _look_back(encoder)
    return {"transformer": transformer, "text_encoder": CLIPTextModel(clip), "text_encoder_2": encoder}


def _look_back(encoder: Any) -> None:
    """Let two heads of T5 start with a liking for the words just before: a panel's mark precedes its words."""
    bias = encoder.encoder.block[0].layer[0].SelfAttention.relative_attention_bias.weight
    before = len(bias) // 2  # first half of the buckets: distances backwards; second half: forwards
    with torch.no_grad():
        for head, slope in ((0, 1.0), (1, 0.5)):
            bias[:before, head] = -slope * torch.arange(before)
            bias[before:, head] = -6.0


def pipeline(parts: dict[str, Any], vae: AutoencoderKL) -> FluxPipeline:
    """All parts as a FluxPipeline."""
    tokenizer = build_tokenizer()
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, **SHIFT)
    return FluxPipeline(scheduler=scheduler, vae=vae, tokenizer=tokenizer, tokenizer_2=tokenizer, **parts)


def perturbed_panels(panels: list[Panel], rng: random.Random, consistent: float = CONSISTENT_SHARE) -> list[Panel]:
    """Training panels of a prompt: the requested panels, or some of them with one or two wrong shared traits."""
    if rng.random() < consistent:
        return panels
    stray_panels = list(panels)
    for n in range(len(panels)):
        if rng.random() < 0.5:
            for trait in {
                rng.choices(list(STRAYING), list(STRAYING.values()))[0] for _ in range(rng.choice((1, 1, 2)))
            }:
                words = [word for word in VOCABULARY[trait] if word != getattr(panels[n], trait)]
                stray_panels[n] = stray_panels[n].with_trait(trait, rng.choice(words))
    return stray_panels


@dataclass
class LatentPool:
    """Every panel of the world, drawn and encoded once a size: size -> (panel -> row, latents of all rows)."""

    rows: dict[int, dict[Panel, list[int]]]
    latents: dict[int, torch.Tensor]

    @classmethod
    def build(
        cls, encode: Callable[[torch.Tensor], torch.Tensor], sizes: Sequence[int], file: Path, log: Log
    ) -> LatentPool:
        """Draw and encode, or load the encodings of an earlier run with the same autoencoder.

        Args:
            encode: pixels (n, 3, s, s) in -1..1 -> scaled latents, one row per image.
            sizes: sizes of the panels in pixels.
        """
        plan = {size: _drawings(size) for size in sizes}
        if not file.is_file():
            file.parent.mkdir(parents=True, exist_ok=True)
            save_file({str(size): _encoded(encode, size, panels, log) for size, panels in plan.items()}, file)
        latents = {int(size): tensor for size, tensor in load_file(file).items()}
        rows: dict[int, dict[Panel, list[int]]] = {}
        for size, panels in plan.items():
            table = rows.setdefault(size, {})
            for n, panel in enumerate(panels):
                table.setdefault(panel, []).append(n)
        return cls(rows, latents)

    def grid(self, size: int, panels: list[Panel], rng: random.Random) -> torch.Tensor:
        """Latents (channels, 2 s, 2 s) of a 2x2 grid, one drawing a panel at random."""
        picked = [self.latents[size][rng.choice(self.rows[size][panel])] for panel in panels]
        return torch.cat([torch.cat(picked[:2], 2), torch.cat(picked[2:], 2)], 1).float()


def _drawings(size: int) -> list[Panel]:
    """Drawings of every panel, more than once if drawing is cheap."""
    every = [Panel(**dict(zip(VOCABULARY, words, strict=True))) for words in product(*VOCABULARY.values())]  # type: ignore[arg-type]
    return every * {32: 2}.get(size, 1)


def encode(vae: Any, pixels: torch.Tensor) -> torch.Tensor:
    """Scaled latents (n, channels, height, width) of drawings (n, 3, s, s), as in the pipelines."""
    with torch.autocast("cpu", torch.bfloat16):
        latents: torch.Tensor = vae.encode(pixels).latent_dist.mode()
    return (latents.float() - vae.config.shift_factor) * vae.config.scaling_factor


def _encoded(encode: Callable[[torch.Tensor], torch.Tensor], size: int, panels: list[Panel], log: Log) -> torch.Tensor:
    rng, encoded = random.Random(size), []
    with torch.inference_mode(), Progress(len(panels), f"latents at {size} px", "panels", log) as progress:
        for start in range(0, len(panels), 128):
            chunk = panels[start : start + 128]
            images = np.stack([np.asarray(draw(panel, size, rng)) for panel in chunk])
            encoded.append(encode(torch.from_numpy(images).permute(0, 3, 1, 2).float() / 127.5 - 1))
            progress.advance(len(chunk))
    return torch.cat(encoded).to(torch.bfloat16).contiguous()


def tokenise(tokenizer: Any, prompts: list[str]) -> torch.Tensor:
    """Token ids (batch, MAX_LENGTH), as FluxPipeline pads them."""
    options = {"padding": "max_length", "max_length": MAX_LENGTH, "truncation": True}
    ids: torch.Tensor = tokenizer(prompts, return_tensors="pt", **options).input_ids
    return ids


def place_loss(embedded: torch.Tensor, ids: torch.Tensor, tokenizer: Any) -> torch.Tensor:
    """Cross-entropy of the panel that a word belongs to, read from the first four channels of its embedding.

    FLUX gives text no positions, so the embedding of a word must contain its panel. With flow matching only, the model
    learns this late, and scenes appear in wrong panels.

    Args:
        embedded: (batch, length, width).
        ids: int64 (batch, length).
    """
    marks = tokenizer.convert_tokens_to_ids([mark.rstrip(":").lower() for mark in place_marks(2, 2)])
    started = torch.stack([(ids == mark).cumsum(1) > 0 for mark in marks]).sum(0)
    inside = (started > 0) & (ids != tokenizer.pad_token_id) & (ids != tokenizer.eos_token_id)
    return functional.cross_entropy(embedded[..., :4][inside], started[inside] - 1)


def flow_loss(parts: Any, tokenizer: Any, pool: LatentPool, step: int, phase: Phase) -> torch.Tensor:
    """Scalar: flow matching on a batch of grids of one size (squared error of the velocity), and the place loss."""
    rng = random.Random(phase.seed + step)
    share = phase.consistent if step < phase.schedule.steps - phase.last_steps else phase.last_consistent
    size = rng.choices(list(phase.sizes), list(phase.sizes.values()))[0]
    count = COUNTS[size]
    sets = [random_set(rng.randrange(len(KINDS)), 4, rng) for _ in range(count)]
    prompts = [compose_storybook_prompt(panels, "2x2", kind).prompt for kind, panels in sets]
    latents = torch.stack([pool.grid(size, perturbed_panels(panels, rng, share), rng) for _, panels in sets])
    generator = torch.Generator().manual_seed(phase.seed + step)
    side = latents.shape[-1]
    packed = FluxPipeline._pack_latents(latents, count, 16, side, side)
    logits = torch.randn(count, generator=generator)
    sigma = torch.sigmoid(logits + shift_mu(packed.shape[1]))
    noise = torch.randn(packed.shape, generator=generator)
    noisy = packed + sigma[:, None, None] * (noise - packed)
    ids = tokenise(tokenizer, prompts)
    tokens = parts["text_encoder_2"](ids)[0]
    velocity = parts["transformer"](
        hidden_states=noisy,
        timestep=sigma,
        guidance=torch.full((count,), GUIDANCE),
        pooled_projections=parts["text_encoder"](ids).pooler_output,
        encoder_hidden_states=tokens,
        txt_ids=torch.zeros(MAX_LENGTH, 3),
        img_ids=FluxPipeline._prepare_latent_image_ids(count, side // 2, side // 2, "cpu", torch.float32),
    ).sample
    flow = (velocity - (noise - packed)).square().mean()
    return flow + PLACE_WEIGHT * place_loss(tokens, ids, tokenizer)


def build_flux(work: Path, out: Path, log: Log = print) -> None:
    """Train (or resume) the small FLUX and save it to ``out``. The autoencoder is in ``work/../vae``."""
    vae = AutoencoderKL.from_pretrained(work.parent / "vae" / "final").eval()
    pool = LatentPool.build(lambda pixels: encode(vae, pixels), list(COUNTS), work / "latents.safetensors", log)
    torch.manual_seed(0)
    parts = torch.nn.ModuleDict(new_parts())
    tokenizer = build_tokenizer()
    count = sum(parameter.numel() for parameter in parts["transformer"].parameters())
    log(f"flux: transformer of {count / 1e6:.2f} M parameters, {math.prod(map(len, VOCABULARY.values()))} panels")

    for phase in (FIRST, SECOND, THIRD):
        fit_pipeline(
            parts,
            partial(flow_loss, parts, tokenizer, pool, phase=phase),
            phase.schedule,
            work / phase.name,
            out,
            log,
            hidden=is_hidden,
            pipeline=lambda: pipeline(dict(parts.items()), vae),
        )


def is_hidden(name: str, weight: torch.Tensor) -> bool:
    """Weights for Muon: matrices (out, in) of the blocks, without embeddings, modulations, and input and output layers.

    T5's queries and keys are excluded: its attention scores are not scaled, and Muon's large steps saturate them.
    """
    inside = "block" in name or ".layers." in name
    unscaled = "SelfAttention.q" in name or "SelfAttention.k" in name
    return weight.ndim == 2 and inside and not unscaled and "norm" not in name and "bias" not in name


assert set(STRAYING) == set(SHARED_TRAITS)
