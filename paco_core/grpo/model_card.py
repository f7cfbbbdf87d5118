"""The card that lies beside a trained adapter: what it is, how to load it, what was measured."""

from __future__ import annotations

from collections.abc import Mapping

import yaml

from paco_core.config.params import PoliciesParams, PolicyRecipe
from paco_core.policies.families import family_of


def model_card(
    params: PoliciesParams, recipe: PolicyRecipe, before: Mapping[str, float], after: Mapping[str, float], epochs: int
) -> str:
    """A Hugging Face model card in Markdown, the same text for the same training.

    Args:
        before, after: evaluation on unseen prompts, named ``<size>/<metric>``.
        epochs: epochs that were trained.
    """
    family = family_of(recipe.family)
    front = {
        "base_model": recipe.model,
        "library_name": "diffusers",
        "pipeline_tag": "image-to-image" if family.edits else "text-to-image",
        "tags": ["lora", "reinforcement-learning", "paco-grpo", recipe.family],
    }
    pipeline = family.pipeline
    rewards = ", ".join(f"{name} (weight {term.weight:g})" for name, term in recipe.rewards.terms.items())
    rows = [f"| {name} | {before.get(name, float('nan')):.4f} | {value:.4f} |" for name, value in after.items()]
    lora = (
        f"rank {params.lora.rank}, alpha {params.lora.alpha}"
        if recipe.start is None
        else f"gone on from {recipe.start}"
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# LoRA for {recipe.model}, trained by PaCo-GRPO

Reinforcement learning on the rewards {rewards}, combined by {recipe.rewards.aggregator}.

```python
from diffusers import {pipeline}

pipeline = {pipeline}.from_pretrained({recipe.model!r})
pipeline.load_lora_weights("<this folder>")
```

## Training

- LoRA: {lora}
- {epochs} epochs of {params.prompts_per_epoch} prompts x {params.group_size} pictures
- {params.updates_per_epoch} updates an epoch, loss {params.loss}, learning rate {params.learning_rate:g}
- pictures of {recipe.train_size} px, {recipe.sampling_steps} steps, guidance {recipe.guidance:g}
- {recipe.dynamics}, noise level {recipe.noise_level:g} at steps {recipe.noise_steps}
- the weights are the exponential moving average (decay {params.ema_decay:g}, every {params.ema_every} optimiser steps)

## Evaluation on prompts that were not trained on

{params.eval_steps} steps without noise; names are `<pixels>/<metric>`.

| metric | before | after |
|---|---|---|
{chr(10).join(rows)}
"""
