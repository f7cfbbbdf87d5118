"""Model card of a trained adapter: purpose, limits, code that loads it, training and license."""

from __future__ import annotations

from collections.abc import Mapping
from textwrap import indent

import yaml

from paco_core.config.params import PolicyRecipe
from paco_core.data.records.edit_records import EditRecord
from paco_core.data.records.records import PromptRecord, characters_of_panels, panel_texts
from paco_core.grpo.card_sample import SAMPLE
from paco_core.grpo.encoded_prompts import starts
from paco_core.grpo.evaluation import reference_files
from paco_core.grpo.prompt_split import PromptSplit
from paco_core.grpo.sizes import ImageGrid, grids_of
from paco_core.grpo.trainer import RunContext
from paco_core.models.benchmark_section import pending_section
from paco_core.models.licence import base_front
from paco_core.models.modular import loading_code
from paco_core.models.precision import weights_format
from paco_core.policies.base import Policy, Size
from paco_core.policies.families import family_of, max_predecessors


def policy_model_card(
    recipe: PolicyRecipe,
    policy: Policy,
    split: PromptSplit,
    context: RunContext,
    licence: Mapping[str, str],
    epochs: int,
) -> str:
    """A Hugging Face model card in Markdown, the same text for the same training.

    Args:
        split: the prompts; the example in the card generates the first unseen one.
        context: place of the results, the benchmark, and whether the policy belongs to the embedded world.
        licence: license of the base model, for the front matter.
        epochs: number of epochs that were trained.
    """
    front = {
        **base_front(recipe.model, base_model_relation="adapter"),
        **licence,
        "library_name": "diffusers",
        "pipeline_tag": "image-to-image" if policy.edits else "text-to-image",
        "tags": ["lora", "reinforcement-learning", "paco-grpo", recipe.family],
    }
    rewards = ", ".join(f"`{name}` (weight {term.weight:g})" for name, term in recipe.rewards.terms.items())
    lora = (
        f"rank {recipe.lora.rank}, alpha {recipe.lora.alpha}"
        if recipe.start is None
        else f"continued from {recipe.start}"
    )
    columns = f"{'the input, ' if policy.edits else ''}the base model, and the base model with this adapter"
    return f"""---
{yaml.safe_dump(front, sort_keys=False).strip()}
---

# {context.final.name or "policy"}: a LoRA adapter for {recipe.model}

![Images of the base model and of this adapter for unseen prompts]({SAMPLE})

*One row per prompt. Each row shows {columns}. Training did not use these prompts.*

{_purpose(recipe, policy)} It was trained by reinforcement learning with PaCo-GRPO
([arXiv 2512.04784](https://arxiv.org/abs/2512.04784)) on these rewards: {rewards}.

## Intended use

{_intended(recipe, policy)}

## Out of scope

{_out_of_scope(recipe, context)}

## How to load it

```python
{_example(recipe, policy, split.unseen[0], context.final.as_posix())}
```

The example uses seed 0. To generate an image of the training's evaluation again, replace this seed by
`NoiseKey({_noise_name(recipe)}, 0, seed).generator_seed` (`paco_core.policies.base`), with a seed of \
{", ".join(map(str, recipe.eval_seeds))}.

{pending_section(context.benchmark)}
## Training data

{_training_data(recipe, policy, split)}

## Training

- LoRA: {lora}
- Epochs: {epochs}, each with {recipe.prompts_per_epoch} prompts, {recipe.group_size} images per prompt and \
{recipe.updates_per_epoch} updates
- Images: {recipe.train_size} px
- Loss: `{recipe.loss}`, learning rate {recipe.learning_rate:g}, seed {recipe.seed}
- Sampling: {recipe.sampling_steps} steps, guidance {recipe.guidance:g}, {recipe.dynamics} with noise level \
{recipe.noise_level:g} at steps {recipe.noise_steps}
- Weights: exponential moving average, decay {recipe.ema_decay:g}, update interval {recipe.ema_every} (optimizer steps)

## License

{_license(licence)}
"""


def _purpose(recipe: PolicyRecipe, policy: Policy) -> str:
    if policy.edits:
        return "This adapter makes the base model change what an instruction names and keep the rest of the image."
    if max_predecessors(recipe):
        return "This adapter makes the base model keep the subject the same from panel to panel of a story."
    return "This adapter makes the base model keep the subject the same in all panels of one image."


def _intended(recipe: PolicyRecipe, policy: Policy) -> str:
    sides = " and ".join(f"{side} px" for side in recipe.eval_sizes)
    if policy.edits:
        use = "Edit an image by a text instruction, for example to change a color and keep everything else"
    else:
        use = "Generate an image of several panels with one subject from a prompt that describes each panel"
    return (
        f"- {use}.\n- Use it with `{recipe.model}`, at {sides}. The training's evaluation used these sizes.\n"
        "- Use it for research on rewards and on reinforcement learning of image generators."
    )


def _out_of_scope(recipe: PolicyRecipe, context: RunContext) -> str:
    world = (
        "- Real images. The base model is a small demonstration model of paco's embedded world.\n"
        "  It draws simple figures, and it knows only the words of that world.\n"
        if context.world == "storybook"
        else "- Images of real persons, and images that a reader could take for facts.\n"
    )
    return (
        f"{world}- Products, before you have evaluated it on your prompts. It has no safety filter.\n"
        f"- Other base models than `{recipe.model}`, and sizes or layouts that the benchmark does not list.\n"
        "- Rewards as a measure of quality. A policy can over-optimize the reward model that trains it."
    )


def _training_data(recipe: PolicyRecipe, policy: Policy, split: PromptSplit) -> str:
    kind = "editing instructions, each with its input images" if policy.edits else "text prompts"
    images = (
        "For each of them, the training used a preferred and a rejected image from human or model rankings."
        if recipe.offline
        else "The policy generated the training images itself, and the rewards scored them."
    )
    return f"""- {len(split.trained)} {kind}. {images}
- {len(split.unseen)} further prompts were held out to evaluate the training."""


def _license(licence: Mapping[str, str]) -> str:
    name = licence.get("license_name") or licence.get("license", "other")
    text = f"[{name}]({licence['license_link']})" if "license_link" in licence else name
    if text == "other":
        return "The license of the base model applies to this adapter. paco does not know that license."
    return f"The license of the base model applies to this adapter: {text}."


def _noise_name(recipe: PolicyRecipe) -> str:
    """The name in the noise key of an image, or of each panel of a story."""
    return '"prompt id-panel"' if max_predecessors(recipe) else "prompt id"


def _example(recipe: PolicyRecipe, policy: Policy, record: PromptRecord, place: str) -> str:
    """Python that loads the adapter and generates an image for the record at the largest evaluation size."""
    edits, before = policy.edits, max_predecessors(recipe)
    class_name, load = loading_code(family_of(recipe.family).pipeline, recipe.model, weights_format(recipe.dtype))
    grid = grids_of(recipe, [record], max(recipe.eval_sizes), policy.multiple)[0]
    settings = grid.part_size, recipe.eval_steps, recipe.guidance, recipe.max_sequence_length
    imports = [
        "import torch",
        f"from diffusers import {class_name}",
        *(["from PIL import Image"] if edits or before else []),
    ]
    single = [
        f"prompt = {record.prompt!r}",
        *(_reference_lines(record, f"{place}/samples/reference") if edits else []),
        policy.example(*settings),
    ]
    lines = [
        *load,
        f"pipeline.load_lora_weights({f'{place}/adapter'!r})  # this folder",
        *([] if recipe.device == "cpu" else [f"pipeline.to({recipe.device!r})"]),
        *(_story(record, before, grid, policy, settings, place) if before else single),
        'image.save("image.png")',
    ]
    return "\n".join([*imports, "", *lines])


def _story(
    record: PromptRecord,
    before: int,
    grid: ImageGrid,
    policy: Policy,
    settings: tuple[Size, int, float, int],
    place: str,
) -> list[str]:
    """Python that generates the panels one after another, and joins them to one image.

    The reference images of a panel are those of :func:`.panel_references.panel_references`.
    """
    (rows, columns), (height, width) = grid.grid, grid.part_size
    texts = [f"    {text!r}," for text in panel_texts(record)]
    loop = ["for prompt in [", *texts, "]:", f"    picture = panels[-{before}:]"]
    if record.characters:
        most = policy.family_spec.references[1]
        loop = [
            "for prompt, characters in [",
            *(
                f"    ({text!r}, {files!r}),"
                for text, files in zip(panel_texts(record), _character_files(record, place), strict=True)
            ),
            "]:",
            "    picture = [Image.open(file) for file in characters]",
            f"    picture += panels[max(0, len(panels) - min({before}, {most} - len(picture))) :]",
        ]
    return [
        "panels = []",
        *loop,
        indent(policy.panel_example(*settings), "    "),
        "    panels.append(image)",
        f'image = Image.new("RGB", ({columns * width}, {rows * height}))',
        "for number, panel in enumerate(panels):",
        f"    image.paste(panel, (number % {columns} * {width}, number // {columns} * {height}))",
    ]


def _character_files(record: PromptRecord, place: str) -> list[list[str]]:
    """The files with the images of the characters that each panel names."""
    counts = [len(character.images) for character in record.characters]
    paths = [f"{place}/samples/reference/{name}" for name in reference_files(record.idx, sum(counts))]
    first = starts(counts)
    files = {c.name: paths[first[n] : first[n + 1]] for n, c in enumerate(record.characters)}
    return [[file for character in panel for file in files[character.name]] for panel in characters_of_panels(record)]


def _reference_lines(record: PromptRecord, folder: str) -> list[str]:
    """Python that reads the input images of an edit as ``picture``, a list if there are several."""
    count = len(record.references) if isinstance(record, EditRecord) else 1
    files = [f"{folder}/{name}" for name in reference_files(record.idx, count)]
    opened = ", ".join(f"Image.open({file!r})" for file in files)
    return [f"picture = {opened}" if len(files) == 1 else f"picture = [{opened}]"]
