"""Image generators of random weights, built from configurations.

Time and memory do not depend on the values of the weights, so nothing has to be downloaded.
"""

from __future__ import annotations

import inspect
from typing import Any

import diffusers
import torch

from paco_core.config.params import PolicyRecipe
from paco_core.io.files import DataError
from paco_core.models.modular import build_modular, is_modular
from paco_core.models.precision import weights_format
from paco_core.planning.models import ModelConfig
from paco_core.policies.base import Size, sized_name
from paco_core.policies.encoded import Encoded, shapes_of
from paco_core.policies.families import family_of
from paco_core.policies.pipeline_policy import PipelinePolicy


def build_policy(recipe: PolicyRecipe, config: ModelConfig, device: str) -> PipelinePolicy:
    """A policy as it is loaded for a training, without adapter and text encoders.

    Args:
        device: where the weights are drawn; "meta" = they have shapes and no contents.

    Raises:
        DataError: when diffusers cannot build a part from its configuration.
    """
    family = family_of(recipe.family)
    dtype = torch.get_default_dtype()
    torch.set_default_dtype(weights_format(recipe.dtype))
    try:
        torch.manual_seed(0)
        with torch.device(device):
            parts: dict[str, Any] = {
                name: _build(recipe.model, name, getattr(config, name)) for name in ("transformer", "vae")
            }
    finally:
        torch.set_default_dtype(dtype)
    parts["scheduler"] = diffusers.FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True)
    policy: PipelinePolicy = family.load_class()(
        _assemble(getattr(diffusers, family.pipeline), parts),
        device,
        task=recipe.task,
        reference_size=recipe.reference_size,
    )
    policy.dtype = recipe.dtype
    return policy


def _assemble(pipeline_class: Any, parts: dict[str, Any]) -> Any:
    """A pipeline of these parts, without the other parts that it needs."""
    if is_modular(pipeline_class):
        return build_modular(pipeline_class, parts)
    arguments = inspect.signature(pipeline_class.__init__).parameters.values()
    required = [argument for argument in arguments if argument.default is inspect.Parameter.empty]
    missing = [argument.name for argument in required if argument.name != "self"]
    processor = {"processor": _EmptyProcessor()} if "processor" in missing else {}
    return pipeline_class(**{**dict.fromkeys(missing), **processor, **parts})


class _EmptyProcessor:
    """The processor of a pipeline that encodes no prompts. Qwen-Image-2.1 counts the tokens of its template with it."""

    @property
    def tokenizer(self) -> _EmptyProcessor:
        return self

    def apply_chat_template(self, _messages: object, **_options: object) -> list[list[int]]:
        return [[]]

    def encode(self, _text: str) -> list[int]:
        return [0]


def _build(model: str, part: str, config: dict[str, object]) -> torch.nn.Module:
    name = str(config["_class_name"])
    try:
        module: torch.nn.Module = getattr(diffusers, name).from_config(config)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{model}: diffusers {diffusers.__version__} builds no {part} {name}: {error}") from error
    in_fp32 = set(getattr(module, "_keep_in_fp32_modules", None) or ())
    for path, layer in module.named_modules():
        if in_fp32 & set(path.split(".")):  # as it is loaded
            layer.float()
    return module


def add_trained_adapter(policy: PipelinePolicy, recipe: PolicyRecipe) -> PipelinePolicy:
    """The policy with the adapter that the recipe trains, ready for a pass with gradient."""
    policy.add_adapter(recipe.lora, 0)
    if recipe.gradient_checkpointing:
        policy.enable_gradient_checkpointing()
    policy.transformer.train()  # diffusers checkpoints in training only
    return policy


def random_prompt(
    policy: PipelinePolicy, recipe: PolicyRecipe, config: ModelConfig, size: Size, references: int | None = None
) -> Encoded:
    """One encoded prompt of the longest length, of random values.

    Args:
        size: height and width in pixels of the image that is generated.
        references: number of reference images; None = one of an edit.
    """
    transformer, dtype = policy.transformer.config, policy.transformer.dtype
    count = int(policy.edits) if references is None else references
    words = recipe.max_sequence_length + count * _tokens_seen(policy, config, size)
    text = torch.randn(words, config.text_width).to(dtype)
    if "pooled_projection_dim" in transformer:
        row = {"prompt_embeds": text, "pooled_prompt_embeds": torch.randn(transformer.pooled_projection_dim).to(dtype)}
    elif not (policy.family_spec.text_sees_references and count):
        row = {"prompt_embeds": text, "negative_prompt_embeds": text.clone()}
    else:
        row = {sized_name("prompt_embeds", size): text, sized_name("negative_prompt_embeds", size): text.clone()}
    shapes = policy.text_parts(words, [policy.reference_size_for(size)] * count)
    row |= {shapes_of(name): shapes for name in row}
    if count:
        rows, columns = policy.grid(policy.reference_size_for(size))
        row[sized_name("image_latents", size)] = torch.randn(count * rows * columns, transformer.in_channels).to(dtype)
        row[shapes_of(sized_name("image_latents", size))] = torch.tensor([[rows, columns]] * count)
    return Encoded([row], policy.device)


def _tokens_seen(policy: PipelinePolicy, config: ModelConfig, size: Size) -> int:
    """Tokens that a vision-language text encoder makes of one reference image."""
    if config.text_patch is None or not policy.family_spec.text_sees_references:
        return 0
    side = policy.family_spec.condition_size
    height, width = (side, side) if side else policy.reference_size_for(size)
    return round(height / config.text_patch) * round(width / config.text_patch)
