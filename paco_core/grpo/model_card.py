"""The card that lies beside a trained adapter: what it is, how to load it, what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

import yaml

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord
from paco_core.grpo.evaluation import reference_files
from paco_core.grpo.sampling import panel_texts
from paco_core.grpo.sizes import ImageGrid, grids_of
from paco_core.models.licence import base_front
from paco_core.models.precision import weights_format
from paco_core.policies.base import Policy
from paco_core.policies.families import family_of, predecessors_of


def model_card(
    recipe: PolicyRecipe,
    policy: Policy,
    prompt: PromptRecord,
    place: str,
    licence: Mapping[str, str],
    before: Mapping[str, float],
    after: Mapping[str, float],
    epochs: int,
) -> str:
    """A Hugging Face model card in Markdown, the same text for the same training.

    Args:
        prompt: what the example paints.
        place: folder of the training's results, relative to the project.
        before, after: evaluation on unseen prompts, named ``<size>/<metric>``.
        epochs: epochs that were trained.
        licence: of the base model, for the card's head.
    """
    front = {
        **base_front(recipe.model, base_model_relation="adapter"),
        **licence,
        "library_name": "diffusers",
        "pipeline_tag": "image-to-image" if policy.edits else "text-to-image",
        "tags": ["lora", "reinforcement-learning", "paco-grpo", recipe.family],
    }
    rewards = ", ".join(f"{name} (weight {term.weight:g})" for name, term in recipe.rewards.terms.items())
    rows = [f"| {name} | {before.get(name, float('nan')):.4f} | {value:.4f} |" for name, value in after.items()]
    lora = (
        f"rank {recipe.lora.rank}, alpha {recipe.lora.alpha}"
        if recipe.start is None
        else f"continued from {recipe.start}"
    )
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# LoRA for {recipe.model}, trained by PaCo-GRPO

Reinforcement learning on the rewards {rewards}, combined by {recipe.rewards.aggregator}.

```python
{_example(recipe, policy, prompt, place)}
```

The example starts from the generator seed 0. Pictures of evaluation start from noise that is drawn on the processor
from the generator seed `NoiseKey({_named(recipe)}, 0, seed).generator_seed` (`paco_core.policies.base`), seeds
{", ".join(map(str, recipe.eval_seeds))}: put that number in place of the 0 to paint one of them again.

## Training

- LoRA: {lora}
- {epochs} epochs of {recipe.prompts_per_epoch} prompts x {recipe.group_size} pictures
- {recipe.updates_per_epoch} updates an epoch, loss {recipe.loss}, learning rate {recipe.learning_rate:g}
- seed {recipe.seed}
- pictures of {recipe.train_size} px, {recipe.sampling_steps} steps, guidance {recipe.guidance:g}
- {recipe.dynamics}, noise level {recipe.noise_level:g} at steps {recipe.noise_steps}
- the weights are the exponential moving average (decay {recipe.ema_decay:g}, every {recipe.ema_every} optimiser steps)

## Evaluation on prompts that were not trained on

{recipe.eval_steps} steps without noise; names are `<pixels>/<metric>`.

| metric | before | after |
|---|---|---|
{chr(10).join(rows)}
"""


def _named(recipe: PolicyRecipe) -> str:
    """What names the noise of a picture, or of each panel of a story."""
    return '"prompt id-panel"' if predecessors_of(recipe) else "prompt id"


def _example(recipe: PolicyRecipe, policy: Policy, record: PromptRecord, place: str) -> str:
    """Python that loads the adapter and paints the record's picture at the largest size of evaluation."""
    kind, edits, before = family_of(recipe.family).pipeline, policy.edits, predecessors_of(recipe)
    grid = grids_of(recipe, [record], max(recipe.eval_sizes), policy.multiple)[0]
    how = grid.part_size, recipe.eval_steps, recipe.guidance, recipe.max_sequence_length
    imports = [
        "import torch",
        f"from diffusers import {kind}",
        *(["from PIL import Image"] if edits or before else []),
    ]
    single = [
        f"prompt = {record.prompt!r}",
        *(_opened(record, f"{place}/samples/reference") if edits else []),
        policy.example(*how),
    ]
    lines = [
        f"pipeline = {kind}.from_pretrained({recipe.model!r}, torch_dtype={weights_format(recipe.dtype)})",
        f"pipeline.load_lora_weights({f'{place}/adapter'!r})  # this folder",
        *([] if recipe.device == "cpu" else [f"pipeline.to({recipe.device!r})"]),
        *(_story(record, before, grid, policy.panel_example(*how)) if before else single),
        'image.save("painted.png")',
    ]
    return "\n".join([*imports, "", *lines])


def _story(record: PromptRecord, before: int, grid: ImageGrid, panel: str) -> list[str]:
    """Python that paints panel after panel, each by ``panel``, and puts them into one picture."""
    (rows, columns), (high, wide) = grid.grid, grid.part_size
    return [
        "panels = []",
        "for prompt in [",
        *(f"    {text!r}," for text in panel_texts(record)),
        "]:",
        f"    picture = panels[-{before}:]",
        indent(panel, "    "),
        "    panels.append(image)",
        f'image = Image.new("RGB", ({columns * wide}, {rows * high}))',
        "for number, panel in enumerate(panels):",
        f"    image.paste(panel, (number % {columns} * {wide}, number // {columns} * {high}))",
    ]


def _opened(record: PromptRecord, folder: str) -> list[str]:
    """Python that reads what a record is about: ``picture``, a list where there are several."""
    count = len(record.references) if isinstance(record, EditRecord) else 1
    files = [f"{folder}/{name}" for name in reference_files(record.idx, count)]
    opened = ", ".join(f"Image.open({file!r})" for file in files)
    return [f"picture = {opened}" if len(files) == 1 else f"picture = [{opened}]"]
