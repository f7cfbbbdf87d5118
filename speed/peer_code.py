"""Code that others would write with diffusers, peft and transformers: Flow-GRPO, and a reward model's training and use.

It computes the same as paco, without its caches and its shared passes. :mod:`speed.peers` measures both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import FluxPipeline
from diffusers.pipelines.flux.pipeline_flux import calculate_shift
from peft import LoraConfig, get_peft_model
from PIL.Image import Image
from transformers import AutoProcessor, Qwen2_5_VLForConditionalGeneration

Rewards = Callable[[Sequence[Image]], np.ndarray]


class FlowGrpo:
    """Flow-GRPO (arXiv 2505.05470) with one noisy step and LoRA on a FLUX; ``recipe`` has paco's keys."""

    def __init__(self, model: Path, recipe: Any, targets: Sequence[str]) -> None:
        self.recipe, self.pipeline = recipe, FluxPipeline.from_pretrained(model)
        self.transformer, scheduler = self.pipeline.transformer.requires_grad_(False), self.pipeline.scheduler
        self.transformer.add_adapter(
            LoraConfig(r=recipe.lora.rank, lora_alpha=recipe.lora.alpha, target_modules=list(targets))
        )
        self.parameters = {name: p for name, p in self.transformer.named_parameters() if p.requires_grad}
        self.optimizer = torch.optim.AdamW(
            self.parameters.values(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay
        )
        rows = recipe.train_size // self.pipeline.vae_scale_factor // 2
        steps, config = recipe.sampling_steps, scheduler.config
        shift = calculate_shift(
            rows * rows, config.base_image_seq_len, config.max_image_seq_len, config.base_shift, config.max_shift
        )
        scheduler.set_timesteps(sigmas=np.linspace(1.0, 1 / steps, steps), mu=shift)
        self.sigmas = scheduler.sigmas.tolist()
        self.image_ids = self.pipeline._prepare_latent_image_ids(1, rows, rows, "cpu", torch.float32)

    def step(self, x: torch.Tensor, step: int, embeds: Sequence[torch.Tensor]) -> tuple[torch.Tensor, float]:
        """Mean (N, tokens, channels) and standard deviation of a step; 0 where there is no noise."""
        prompt_embeds, pooled, text_ids = embeds
        sigma, dt = self.sigmas[step], self.sigmas[step + 1] - self.sigmas[step]
        v = self.transformer(
            hidden_states=x,
            timestep=torch.full((len(x),), sigma),
            guidance=torch.full((len(x),), float(self.recipe.guidance)),
            pooled_projections=pooled,
            encoder_hidden_states=prompt_embeds,
            txt_ids=text_ids,
            img_ids=self.image_ids,
            return_dict=False,
        )[0]
        if step not in self.recipe.noise_steps:
            return x + v * dt, 0.0
        rate = self.recipe.noise_level * math.sqrt(sigma / (1 - sigma))
        drift = rate**2 / (2 * sigma)
        return x * (1 + drift * dt) + v * (1 + drift * (1 - sigma)) * dt, rate * math.sqrt(-dt)

    @torch.no_grad()
    def sample(self, x: torch.Tensor, noise: torch.Tensor, embeds: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """Images, and of the noisy step the latents before, after, and the log-probability (N,)."""
        for step in range(self.recipe.sampling_steps):
            before = x
            x, std = self.step(x, step, embeds)
            if std:
                mean, x = x, x + std * noise
                noisy = before, x, log_prob(x, mean, std)
        side, vae = self.recipe.train_size, self.pipeline.vae
        latents = self.pipeline._unpack_latents(x, side, side, self.pipeline.vae_scale_factor)
        latents = latents / vae.config.scaling_factor + vae.config.shift_factor
        return self.pipeline.image_processor.postprocess(vae.decode(latents, return_dict=False)[0]), *noisy

    def epoch(self, prompts: Sequence[str], start: torch.Tensor, noise: torch.Tensor, rewards: Rewards) -> list[Image]:
        """Sample, reward and train one epoch of groups of images; returns the images.

        Args:
            prompts: one per group.
            start, noise: initial noise and that of the noisy step, (images, tokens, channels).
        """
        group, updates = len(start) // len(prompts), self.recipe.updates_per_epoch
        with torch.no_grad():
            prompt_embeds, pooled, text_ids = self.pipeline.encode_prompt(
                list(prompts), None, max_sequence_length=self.recipe.max_sequence_length
            )
        all_embeds = prompt_embeds.repeat_interleave(group, 0), pooled.repeat_interleave(group, 0)
        images, parts = [], []
        for first in range(0, len(start), self.recipe.rollout_batch):
            rows = slice(first, first + self.recipe.rollout_batch)
            embeds = *(tensor[rows] for tensor in all_embeds), text_ids
            pictures, *noisy = self.sample(start[rows], noise[rows], embeds)
            images += pictures
            parts.append(noisy)
        before, after, old = (torch.cat(part) for part in zip(*parts, strict=True))
        values = rewards(images).reshape(-1, group)
        deviation = np.maximum(values.std(1, keepdims=True), 1e-6)
        advantages = torch.tensor((values - values.mean(1, keepdims=True)) / deviation).float().flatten()
        advantages = advantages.clamp(-self.recipe.max_advantage, self.recipe.max_advantage)
        size = len(start) // updates
        for first in range(0, len(start), size):
            for part in torch.arange(first, first + size).split(self.recipe.train_batch):
                embeds = *(tensor[part] for tensor in all_embeds), text_ids
                mean, std = self.step(before[part], self.recipe.noise_steps[0], embeds)
                ratio = (log_prob(after[part], mean, std) - old[part]).exp()
                clipped = ratio.clamp(1 - self.recipe.clip_range, 1 + self.recipe.clip_range)
                (torch.maximum(-advantages[part] * ratio, -advantages[part] * clipped).sum() / size).backward()
            torch.nn.utils.clip_grad_norm_(self.parameters.values(), self.recipe.max_grad_norm)
            self.optimizer.step()
            self.optimizer.zero_grad()
        return images


def log_prob(x: torch.Tensor, mean: torch.Tensor, std: float) -> torch.Tensor:
    """Log density of N(mean, std^2), averaged over a sample's elements: (N,)."""
    return (-((x - mean) ** 2) / (2 * std**2) - math.log(std) - 0.5 * math.log(2 * math.pi)).flatten(1).mean(1)


class RewardModel:
    """A Qwen2.5-VL that answers Yes or No about two images; ``pixels`` of an image after resizing."""

    def __init__(self, folder: Path, pixels: int) -> None:
        self.processor = AutoProcessor.from_pretrained(folder)
        bounds = self.processor.image_processor.size
        self.processor.image_processor.size = type(bounds)(shortest_edge=pixels, longest_edge=pixels)
        self.model: Any = Qwen2_5_VLForConditionalGeneration.from_pretrained(folder).eval()
        self.yes, self.no = (self.processor.tokenizer(word)["input_ids"][0] for word in ("Yes", "No"))

    def inputs(self, pairs: Sequence[tuple[Image, Image]], texts: Sequence[str], answers: Sequence[str] = ()) -> Any:
        """Inputs of the model for pairs of images, their questions, and perhaps answers."""
        content = [[{"type": "image"}, {"type": "image"}, {"type": "text", "text": text}] for text in texts]
        prompts = [
            self.processor.apply_chat_template([{"role": "user", "content": parts}], add_generation_prompt=True)
            for parts in content
        ]
        prompts = [a + b for a, b in zip(prompts, answers, strict=True)] if answers else prompts
        side = "right" if answers else "left"
        images = [list(pair) for pair in pairs]
        return self.processor(text=prompts, images=images, padding=True, padding_side=side, return_tensors="pt")

    @torch.inference_mode()
    def score(self, pairs: Sequence[tuple[Image, Image]], texts: Sequence[str]) -> list[float]:
        """P(Yes) of pairs, in one padded batch."""
        logits = self.model(**self.inputs(pairs, texts)).logits[:, -1, [self.yes, self.no]].double()
        return torch.sigmoid(logits[:, 0] - logits[:, 1]).tolist()

    def attach_lora(self, lora: Any) -> dict[str, torch.Tensor]:
        """Attach an adapter to the language model; its trained parameters by name."""
        targets = rf".*language_model.*\.({'|'.join(lora.targets)})"
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, task_type="CAUSAL_LM")
        self.model = get_peft_model(self.model.requires_grad_(False), config).train()
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def loss(self, pairs: Sequence[tuple[Image, Image]], texts: Sequence[str], answers: Sequence[str]) -> torch.Tensor:
        """Cross-entropy of the answer tokens of a padded batch, as supervised fine-tuning computes it."""
        complete = [answer + self.processor.tokenizer.eos_token for answer in answers]
        inputs = self.inputs(pairs, texts, complete)
        labels = torch.full_like(inputs["input_ids"], -100)
        for row, (answer, mask) in enumerate(zip(complete, inputs["attention_mask"], strict=True)):
            end = int(mask.sum())
            places = slice(end - len(self.processor.tokenizer(answer)["input_ids"]), end)
            labels[row, places] = inputs["input_ids"][row, places]
        loss: torch.Tensor = self.model(**inputs, labels=labels, use_cache=False).loss
        return loss
