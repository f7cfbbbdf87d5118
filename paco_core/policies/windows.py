"""How many tokens of a prompt a diffusers pipeline takes, known before anything of it is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from paco_core.io.files import DataError, read_json

#: The most that the ``__call__`` of a class takes as ``max_sequence_length``. Of a class that is not here, the
#: tokenizers decide: those of CLIP read 77 tokens.
WINDOWS = {
    "FluxPipeline": 512,
    "FluxKontextPipeline": 512,
    "Flux2KleinPipeline": 512,
    "QwenImagePipeline": 1024,
    "QwenImageEditPipeline": 1024,
    "QwenImageEditPlusPipeline": 1024,
    "StableDiffusion3Pipeline": 512,
    "ChromaPipeline": 512,
    "Lumina2Pipeline": 512,
    "KolorsPipeline": 256,
}
UNBOUNDED = 1 << 20  # transformers writes 1e30 for a tokenizer that names no window


class Reader(Protocol):
    """A section of ``params.yaml`` that names who reads prompts, and how far."""

    @property
    def model(self) -> str: ...
    @property
    def max_sequence_length(self) -> int: ...


def refuse_window(key: str, section: Reader, root: Path, pipeline: str | None = None) -> None:
    """Compare a text window with what the model takes.

    Args:
        key: of the section in ``params.yaml``.
        section: its model is a folder of the project, or a hub id; of the latter no tokenizer is read.
        pipeline: class of the model, where it is settled; else its folder names it.

    Raises:
        DataError: when the window is wider, naming the widest.
    """
    asked = section.max_sequence_length
    widest = min(_windows(root / section.model, pipeline), default=asked)
    if asked > widest:
        raise DataError(
            f"{key}.max_sequence_length: {asked} tokens, but {section.model} takes at most {widest} of a prompt; "
            f"choose {widest}"
        )


def _windows(folder: Path, pipeline: str | None) -> Iterator[int]:
    """What the class of the pipeline takes, and what its tokenizer does."""
    index = folder / "model_index.json"
    parts = read_json(index) if index.is_file() else {}
    if (known := WINDOWS.get(str(pipeline or parts.get("_class_name")))) is not None:
        yield known
    config = folder / (main_tokenizer(parts) or "tokenizer") / "tokenizer_config.json"
    length = read_json(config).get("model_max_length") if config.is_file() else None
    if isinstance(length, int | float) and not isinstance(length, bool) and length < UNBOUNDED:
        yield int(length)


def frame_of(pipeline: str, tokenizer: Path) -> tuple[str, str]:
    """What a pipeline writes before and behind each prompt, and reads within the same window.

    Args:
        pipeline: its class.
        tokenizer: folder of the tokenizer, whose chat template FLUX.2 [klein] uses.
    """
    answer = "<|im_end|>\n<|im_start|>assistant\n"
    if pipeline == "QwenImagePipeline":
        return "", answer
    if pipeline != "Flux2KleinPipeline":
        return "", ""
    files = [tokenizer / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    thinks = any("<think>" in file.read_text(encoding="utf-8") for file in files if file.is_file())
    return "<|im_start|>user\n", answer + "<think>\n\n</think>\n\n" * thinks


def main_tokenizer(parts: Iterable[str]) -> str | None:
    """Which part of a pipeline reads prompts word by word: the last tokenizer. Before it CLIP's, for a summary."""
    return max((name for name in parts if name.startswith("tokenizer")), default=None)
