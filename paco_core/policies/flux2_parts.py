"""Validation of the folder of a ``Flux2KleinPipeline``: its parts must belong to one model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paco_core.io.files import DataError, read_json

LAYERS = (9, 18, 27)  # of the text encoder, whose states stand side by side (Flux2KleinPipeline.encode_prompt)


def validate_flux2_parts(folder: Path) -> None:
    """Compare the configurations of transformer, text encoder, autoencoder and tokenizer in a folder.

    Raises:
        DataError: if two of them differ, or the chat template is missing.
    """
    transformer, text, vae = (part_config(folder / part) for part in ("transformer", "text_encoder", "vae"))
    width, joint = text.get("hidden_size"), transformer.get("joint_attention_dim")
    if width is not None and joint is not None and joint != len(LAYERS) * width:
        raise DataError(
            f"{folder}: the transformer reads texts of width {joint}, and three layers of the text encoder have "
            f"{len(LAYERS) * width}: these are parts of klein models of two sizes; take all from one"
        )
    if (layers := text.get("num_hidden_layers", max(LAYERS))) < max(LAYERS):
        raise DataError(f"{folder}: the text encoder has {layers} layers, and the pipeline reads layer {max(LAYERS)}")
    channels, latents = transformer.get("in_channels"), vae.get("latent_channels")
    if channels is not None and latents is not None and channels != 4 * latents:
        raise DataError(
            f"{folder}: the transformer takes {channels} channels, and the autoencoder gives 4 x {latents} a token"
        )
    if transformer.get("guidance_embeds"):
        raise DataError(f"{folder}: the transformer takes guidance as a number, as FLUX.2-dev does and no klein model")
    validate_chat_template(folder)


def part_config(part: Path, name: str = "config.json") -> dict[str, Any]:
    """The configuration of a part of a pipeline; empty if its folder has no such file."""
    file = part / name
    return read_json(file) if file.is_file() else {}


def validate_chat_template(folder: Path) -> None:
    """Raise DataError if the tokenizer in the folder of a pipeline has no chat template."""
    tokenizer = folder / "tokenizer"
    if tokenizer.is_dir() and not _has_chat_template(tokenizer):
        raise DataError(
            f"{folder}: the tokenizer has no chat template, in which the pipeline writes prompts; add "
            "tokenizer/chat_template.jinja of the released model"
        )


def _has_chat_template(tokenizer: Path) -> bool:
    """Whether the folder of a tokenizer or processor contains a chat template."""
    files = (tokenizer / name for name in ("chat_template.jinja", "chat_template.json"))
    return any(file.is_file() for file in files) or bool(
        part_config(tokenizer, "tokenizer_config.json").get("chat_template")
    )
