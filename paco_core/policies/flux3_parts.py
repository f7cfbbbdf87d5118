"""Validation of the folder of a ``Flux3ModularPipeline``: its parts must belong to one base model."""

from __future__ import annotations

from pathlib import Path

from paco_core.io.files import DataError
from paco_core.policies.flux2_parts import part_config, validate_chat_template

LAYERS = (4, 8, 12, 16, 20, 24, 28, 32)  # of the text encoder, whose states are concatenated (Flux3TextEncoderStep)


def validate_flux3_parts(folder: Path) -> None:
    """Compare the configurations of transformer, text encoder, autoencoder, scheduler and tokenizer in a folder.

    Raises:
        DataError: if two of them differ, the model is distilled, or the chat template is missing.
    """
    transformer, text, vae = (part_config(folder / part) for part in ("transformer", "text_encoder", "vae"))
    if transformer.get("flow_map"):
        raise DataError(
            f"{folder}: the transformer is distilled to a few steps (flow_map: true in its config.json); train "
            "black-forest-labs/flux-3-image-klein-base, whose adapter the distilled model loads"
        )
    text = text.get("text_config", text)
    width, joint = text.get("hidden_size"), transformer.get("joint_attention_dim")
    if width is not None and joint is not None and joint != len(LAYERS) * width:
        raise DataError(
            f"{folder}: the transformer reads texts of width {joint}, but {len(LAYERS)} layers of the text encoder "
            f"have {len(LAYERS) * width}; take all parts from one model"
        )
    if (layers := text.get("num_hidden_layers", max(LAYERS))) < max(LAYERS):
        raise DataError(f"{folder}: the text encoder has {layers} layers, but the pipeline reads layer {max(LAYERS)}")
    latents = vae.get("latent_channels")
    for name in ("in_channels", "cond_in_channels"):
        channels = transformer.get(name)
        if channels is not None and latents is not None and channels != 4 * latents:
            raise DataError(
                f"{folder}: the transformer has {name}: {channels}, but the autoencoder gives 4 x {latents} per token; "
                "take all parts from one model"
            )
    scheduler = folder / "scheduler" / "scheduler_config.json"
    if part_config(scheduler.parent, scheduler.name).get("use_dynamic_shifting"):
        raise DataError(
            f"{scheduler}: use_dynamic_shifting is true, but the pipeline has a fixed shift; set it to false"
        )
    validate_chat_template(folder)
