"""FLUX.1-dev's architecture at full size with random bf16 weights: rollout and training by resolution, on a GPU.

    python -m speed.grpo_flux_gpu --sizes 256 384 512 1024

No weights are downloaded: time and memory do not depend on their values. Text embeddings are random too. Prints
images a second, peak memory and the share of the GPU's arithmetic that is used; writes JSON beside.
`--tiny` runs the same code with a small model, on a CPU as well.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from paco_core.config.params import LoraParams
from paco_core.grpo.dynamics import DYNAMICS
from paco_core.grpo.rollout import Sampling, rollout
from paco_core.planning.footprint import H100_FLOPS, Architecture
from paco_core.policies.base import NoiseKey
from paco_core.policies.encoded import Encoded
from paco_core.policies.flux import FluxPolicy

RESULT = Path(__file__).with_suffix(".json")
TARGETS = ["to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj", "add_v_proj", "to_add_out"]
TARGETS += ["net.0.proj", "net.2", "proj_mlp", "proj_out"]
NOISE_STEP, NOISE_LEVEL, GUIDANCE = 1, 0.7, 3.5


@dataclass(frozen=True)
class Scale:
    """Sizes of the model: FLUX.1-dev's, or small ones for a test."""

    double: int
    single: int
    heads: int
    head: int
    text_width: int
    pooled: int
    axes: tuple[int, int, int]
    vae: tuple[int, ...]
    text_tokens: int

    @property
    def architecture(self) -> Architecture:
        return Architecture(self.heads * self.head, self.double, self.single)


FULL = Scale(19, 38, 24, 128, 4096, 768, (16, 56, 56), (128, 256, 512, 512), 512)
TINY = Scale(1, 2, 2, 16, 16, 16, (4, 6, 6), (8, 8, 8, 8), 16)


@dataclass(frozen=True)
class Result:
    """One picture size: images a second, GB at the peak, share of the GPU's bf16 arithmetic."""

    size: int
    batch: int
    rollout_images_s: float
    train_images_s: float
    decode_images_s: float
    rollout_peak_gb: float
    train_peak_gb: float
    rollout_utilisation: float
    train_utilisation: float


def build(scale: Scale, device: str, dtype: torch.dtype, rank: int) -> FluxPolicy:
    """A policy without text encoders; weights are drawn on the device, at the scale of trained ones."""
    from diffusers import AutoencoderKL, FlowMatchEulerDiscreteScheduler, FluxPipeline, FluxTransformer2DModel

    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            transformer = FluxTransformer2DModel(
                in_channels=64,
                num_layers=scale.double,
                num_single_layers=scale.single,
                attention_head_dim=scale.head,
                num_attention_heads=scale.heads,
                joint_attention_dim=scale.text_width,
                pooled_projection_dim=scale.pooled,
                guidance_embeds=True,
                axes_dims_rope=scale.axes,
            )
            vae = AutoencoderKL(
                latent_channels=16,
                block_out_channels=scale.vae,
                layers_per_block=2,
                norm_num_groups=min(32, scale.vae[0] // 2),
                down_block_types=("DownEncoderBlock2D",) * len(scale.vae),
                up_block_types=("UpDecoderBlock2D",) * len(scale.vae),
                use_quant_conv=False,
                use_post_quant_conv=False,
                scaling_factor=0.3611,
                shift_factor=0.1159,
            )
    finally:
        torch.set_default_dtype(before)
    scheduler = FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True, base_shift=0.5, max_shift=1.15, shift=3.0)
    pipeline = FluxPipeline(
        scheduler=scheduler,
        vae=vae,
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        transformer=transformer,
    )
    pipeline.set_progress_bar_config(disable=True)
    policy = FluxPolicy(pipeline, device)
    policy.add_adapter(LoraParams(rank=rank, alpha=2 * rank, targets=TARGETS), 0)
    policy.enable_gradient_checkpointing()
    return policy


class Clock:
    """Seconds and peak memory of a piece of work, finished on the device."""

    def __init__(self, device: str) -> None:
        self.cuda = device.startswith("cuda")

    def measure(self, work: Callable[[], object], repeats: int) -> tuple[float, float]:
        """(seconds a repeat, GB at the peak) after one warm-up."""
        work()
        if self.cuda:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        begun = time.perf_counter()
        for _ in range(repeats):
            work()
        if self.cuda:
            torch.cuda.synchronize()
        seconds = (time.perf_counter() - begun) / repeats
        return seconds, torch.cuda.max_memory_allocated() / 1e9 if self.cuda else 0.0


def measure(policy: FluxPolicy, scale: Scale, size: int, batch: int, steps: int, repeats: int) -> Result:
    """Time rollout, decoding and one trained pass with its backward at one picture size."""
    device, clock = policy.device, Clock(policy.device)
    dtype = policy.transformer.dtype
    generator = torch.Generator().manual_seed(1)
    encoded = Encoded(
        [
            {
                "text": torch.randn(scale.text_tokens, scale.text_width, generator=generator).to(dtype),
                "pooled": torch.randn(scale.pooled, generator=generator).to(dtype),
            }
            for _ in range(batch)
        ],
        device,
    )
    condition = encoded.take(range(batch))
    rows, keys = list(range(batch)), [NoiseKey("p", n, 0) for n in range(batch)]
    shape = (size, size)
    sampling = Sampling.of(policy, shape, steps, GUIDANCE, noise_steps=[NOISE_STEP], noise_level=NOISE_LEVEL)
    done = rollout(policy, encoded, rows, keys, sampling)
    kept, step = done.kept[0], sampling.steps[NOISE_STEP]
    dynamics = DYNAMICS["flow_sde"]
    optimizer = torch.optim.AdamW(list(policy.trainable().values()), lr=1e-6)

    def train() -> None:
        optimizer.zero_grad(set_to_none=True)
        v = policy.velocity(kept.before, step.sigma, condition, GUIDANCE, shape)
        dynamics.log_prob(kept.after, dynamics.transition(kept.before, v, step)).mean().backward()
        optimizer.step()

    sampled, sampled_gb = clock.measure(lambda: rollout(policy, encoded, rows, keys, sampling), repeats)
    decoded, _ = clock.measure(lambda: policy.decode(done.latents, shape), repeats)
    trained, trained_gb = clock.measure(train, repeats)
    flops = scale.architecture.pass_flops((size // 16) ** 2, scale.text_tokens) * batch
    return Result(
        size=size,
        batch=batch,
        rollout_images_s=batch / sampled,
        train_images_s=batch / trained,
        decode_images_s=batch / decoded,
        rollout_peak_gb=sampled_gb,
        train_peak_gb=trained_gb,
        rollout_utilisation=flops * steps / sampled / H100_FLOPS,
        # forward, its repetition under checkpointing, and gradients of the activations; frozen weights have none
        train_utilisation=3 * flops / trained / H100_FLOPS,
    )


def main(arguments: Sequence[str] | None = None) -> list[Result]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 384, 512, 1024])
    parser.add_argument(
        "--tokens", type=int, default=8192, help="image tokens of one batch: small pictures, more of them"
    )
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--rank", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a small model, to try the script anywhere")
    parser.add_argument("--out", type=Path, default=RESULT)
    args = parser.parse_args(arguments)
    scale = TINY if args.tiny else FULL
    dtype = torch.bfloat16 if args.device.startswith("cuda") else torch.float32
    policy = build(scale, args.device, dtype, args.rank)
    results = []
    heads = ("px", "batch", "rollout/s", "train/s", "decode/s", "GB", "GB train", "MFU", "MFU train")
    print("".join(f"{head:>10}" for head in heads))
    for size in args.sizes:
        batch = max(1, args.tokens // (size // 16) ** 2)
        r = measure(policy, scale, size, batch, args.steps, args.repeats)
        results.append(r)
        print(
            f"{r.size:>10}{r.batch:>10}{r.rollout_images_s:>10.3f}{r.train_images_s:>10.3f}{r.decode_images_s:>10.3f}"
            f"{r.rollout_peak_gb:>10.1f}{r.train_peak_gb:>10.1f}{r.rollout_utilisation:>10.1%}{r.train_utilisation:>10.1%}",
            flush=True,
        )
    found = {r.size: r for r in results}
    told: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if args.device.startswith("cuda") else "cpu",
        "model": "tiny" if args.tiny else "FLUX.1-dev architecture, random weights",
        "lora_rank": args.rank,
        "sampling_steps": args.steps,
        "results": [asdict(r) for r in results],
    }
    if {512, 1024} <= found.keys():
        told["rollout_512_to_1024"] = found[512].rollout_images_s / found[1024].rollout_images_s
        told["train_512_to_1024"] = found[512].train_images_s / found[1024].train_images_s
        print(f"512 px is {told['rollout_512_to_1024']:.1f} x as fast as 1024 px to sample, ", end="")
        print(f"{told['train_512_to_1024']:.1f} x to train")
    args.out.write_text(json.dumps(told, indent=2) + "\n")
    return results


if __name__ == "__main__":
    main()
