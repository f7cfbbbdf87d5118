"""Text windows: the number of tokens of a prompt that a diffusers pipeline reads, without loading the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Protocol

from paco_core.io.files import DataError, read_json
from paco_core.models.pipeline_index import read_index

#: The maximum ``max_sequence_length`` of the ``__call__`` of each class. For other classes, the tokenizer decides: for
#: example, those of CLIP read 77 tokens.
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
    "Flux3ModularPipeline": 8192,  # the default of the pipeline
    "ZImagePipeline": 1504,  # of 1536 positions, in steps of 32, because the image has one as well
}
#: Classes that write each prompt in the chat template of their tokenizer, with the template's ``enable_thinking``.
#: FLUX.3 does not set it, and the template of Qwen3-VL does not read it.
CHATS = {"Flux2KleinPipeline": False, "ZImagePipeline": True, "Flux3ModularPipeline": True}
UNBOUNDED = 1 << 20  # transformers writes 1e30 for a tokenizer without a window


class TextWindow(Protocol):
    """A section of ``params.yaml`` with a model that reads prompts, and its text window."""

    @property
    def model(self) -> str: ...
    @property
    def max_sequence_length(self) -> int: ...


def validate_window(key: str, section: TextWindow, root: Path, pipeline: str | None = None) -> None:
    """Compare a text window of ``params.yaml`` with the window of the model.

    Args:
        key: of the section in ``params.yaml``.
        section: its model is a folder of the project or a hub id. For a hub id, no tokenizer is read.
        pipeline: class of the pipeline. None = read it from the folder.

    Raises:
        DataError: if the window is larger than that of the model.
    """
    window = section.max_sequence_length
    largest = min(_windows(root / section.model, pipeline), default=window)
    if window > largest:
        raise DataError(
            f"{key}.max_sequence_length: {window} tokens, but {section.model} reads at most {largest} tokens of a "
            f"prompt; choose {largest}"
        )


def _windows(folder: Path, pipeline: str | None) -> Iterator[int]:
    """The windows of the class of the pipeline and of its tokenizer."""
    parts = read_index(folder)
    if (window := WINDOWS.get(str(pipeline or parts.get("_class_name")))) is not None:
        yield window
    config = folder / (find_main_tokenizer(parts) or "tokenizer") / "tokenizer_config.json"
    length = read_json(config).get("model_max_length") if config.is_file() else None
    if isinstance(length, int | float) and not isinstance(length, bool) and length < UNBOUNDED:
        yield int(length)


def prompt_frame(pipeline: str, tokenizer: Path) -> tuple[str, str]:
    """Return the text that a pipeline adds before and after each prompt. Its tokens count within the window.

    Args:
        pipeline: class of the pipeline.
        tokenizer: folder of the tokenizer, for a class that uses its chat template (:data:`CHATS`).
    """
    answer = "<|im_end|>\n<|im_start|>assistant\n"
    if pipeline == "QwenImagePipeline":
        return "", answer
    if pipeline not in CHATS:
        return "", ""
    files = [tokenizer / name for name in ("chat_template.jinja", "tokenizer_config.json")]
    thinks = not CHATS[pipeline] and any(
        "<think>" in file.read_text(encoding="utf-8") for file in files if file.is_file()
    )
    return "<|im_start|>user\n", answer + "<think>\n\n</think>\n\n" * thinks


def find_main_tokenizer(parts: Iterable[str]) -> str | None:
    """Return the part of a pipeline that tokenizes prompts: the last tokenizer, or the processor without tokenizers.

    Earlier tokenizers are those of CLIP.
    """
    names = set(parts)
    return max(
        (name for name in names if name.startswith("tokenizer")), default="processor" if "processor" in names else None
    )
